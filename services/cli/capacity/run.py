"""`specmesh capacity`: starts a mesh, measures for two minutes what it gives and takes, and recommends settings."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from kernels.interpreter import has_gpu
from services.api.settings import Settings
from services.cli.capacity.advice import Advice, advised, per_stream_mb
from services.cli.capacity.measure import PROMPT, Limits, Measured, Target, measured
from services.cli.server_used import START_S, exit_code, own_mesh
from services.runtime.memory import BY_DEVICE, CPU_KV_MB
from services.runtime.process_tree import memory_mb
from specmesh.connection import Connection

# Where the worker doesn't tell.
CPU_SEQUENCES = 64


def main(options: argparse.Namespace, settings: Settings) -> int:
    return exit_code(options, lambda: _measure(options, settings))


def _measure(options: argparse.Namespace, settings: Settings) -> int:
    mesh = own_mesh(options, settings, "what this machine can do with it")
    connection = Connection("http://localhost", mesh.socket, settings.api_keys.partition(",")[0].strip())
    try:
        connection.run(connection.ready(START_S, mesh.check))
        name, limits = _limits(connection, settings)
        target = Target(connection, name, lambda: memory_mb(mesh.pid))
        found = measured(target, limits, options.seconds, tell=_tell)
    finally:
        connection.close()
        mesh.close()
    advice = advised(found, _kv_mb(settings), options.prompt_tokens, options.answer_tokens)
    if options.json:
        print(json.dumps({"model": name, "measured": asdict(found), "recommended": asdict(advice)}, indent=2))
    else:
        print("\n".join(_lines(name, found, advice, options)))
    return 0


def _tell(what: str) -> None:
    print(f"specmesh: measuring {what}", file=sys.stderr, flush=True)


def _limits(connection: Connection, settings: Settings) -> tuple[str, Limits]:
    """The model's name, and what its worker can hold at once."""
    [model] = connection.run(connection.get("/v1/models"))["data"]
    seen: dict[str, Any] = connection.run(connection.get("/v1/mesh"))
    [figures] = [each["figures"] for each in seen["members"] if each["role"] == "worker"][:1]
    pages = re.findall(r"^specmesh:kv_pages\{.*\} (\S+)", connection.run(connection.get("/metrics")), re.MULTILINE)
    return model["id"], Limits(
        max_sequences=int(figures.get("max_sequences", settings.max_sequences or CPU_SEQUENCES)),
        max_context=model["max_model_len"],
        kv_tokens=int(sum(map(float, pages))) * settings.page_tokens,
    )


def _kv_mb(settings: Settings) -> float:
    """Of the memory of this machine; a GPU's pages are in its own."""
    if settings.kv_cache_mb == BY_DEVICE:
        return 0.0 if has_gpu() and settings.executor in ("auto", "triton") else CPU_KV_MB
    return float(settings.kv_cache_mb)


def _lines(name: str, found: Measured, advice: Advice, options: argparse.Namespace) -> Iterator[str]:
    yield f"{name}, without drafts"
    yield f"  memory at rest                {found.at_rest_mb:8,.0f} MB, of all processes"
    yield f"  memory of a stream            {per_stream_mb(found):8,.1f} MB"
    yield f"  first token of {PROMPT} tokens     {found.first_token_s:8.2f} s"
    yield f"  tokens that KV pages hold     {found.limits.kv_tokens:8,d}"
    yield ""
    yield "  streams  tokens/s      each  memory, MB"
    for streams, rate in found.tokens_per_s.items():
        yield f"  {streams:7d}  {rate:8,.1f}  {rate / streams:8,.1f}  {found.memory_mb[streams]:10,.0f}"
    yield ""
    yield f"For prompts of {options.prompt_tokens} and answers of {options.answer_tokens} tokens:"
    yield f"  --max-sequences {advice.max_sequences}; more streams are slower, each, and together hardly faster"
    yield f"  {advice.memory_mb:,.0f} MB of memory, with all KV pages in use"
    yield f"  {advice.requests_per_s:.2g} requests a second with a load of 80 %, {advice.seconds_each:.1f} s each"
