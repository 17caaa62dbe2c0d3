"""The banner that `specmesh up` prints when the mesh is ready. Pure: settings and facts in, text out."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from services.api.hosts import client_host, http_url
from services.api.messages import ModelCard
from services.api.own_door import has_tls, own_url
from services.api.sampling_defaults import API_ONLY, SamplingDefaults
from services.api.settings import NO_PORT, Settings, served_model_name, store_dir
from services.cli.launch_plan import Process
from services.runtime.version import own_version

WIDTH = 78
LABEL = 10


def box(
    settings: Settings,
    processes: Sequence[Process],
    card: ModelCard | None,
    took: float,
    folder: Path,
    sampling: SamplingDefaults | None = None,
) -> str:
    """No lines at the sides, so that the command can be pasted as it is. `sampling`: of requests that set none."""
    url = door_url(settings)
    title = f" specmesh {own_version()} is ready ({took:.1f} s) "
    rows = [
        *([("socket", settings.uds)] if settings.uds else []),
        ("page", f"{url}/"),
        ("API", f"{url}/v1"),
        ("docs", f"{url}/docs"),
        ("model", _model(settings, card)),
        ("drafts", _drafts(settings, card)),
        ("sampling", _sampling(settings, sampling or SamplingDefaults())),
        ("learning", _learning(settings)),
        *(
            (
                "metrics" if not number else "",
                f"{http_url(client_host(settings.metrics_host), each.metrics_port)}/metrics  {each.instance}",
            )
            for number, each in enumerate(processes)
            if each.metrics_port != NO_PORT
        ),
        ("logs", str(folder / "logs")),
    ]
    return "\n".join(
        [
            "",
            "┌" + title + "─" * max(0, WIDTH - len(title)),
            *(line for name, value in rows for line in _lines(name, value)),
            "├ try it " + "─" * (WIDTH - 8),
            curl(settings, url),
            "└" + "─" * WIDTH,
        ]
    )


def _lines(name: str, value: str) -> Iterator[str]:
    """Sentences are whole: a long one goes on in the next line. Paths and addresses aren't cut."""
    for line in value.split("\n"):
        for part in textwrap.wrap(line, WIDTH - LABEL - 2, break_long_words=False, break_on_hyphens=False) or [""]:
            yield f"│ {name:<{LABEL}} {part}"
            name = ""


def door_url(settings: Settings) -> str:
    return "http://localhost" if settings.uds else own_url(settings)


def curl(settings: Settings, url: str) -> str:
    """A command that streams an answer."""
    body = {
        "model": served_model_name(settings),
        "messages": [{"role": "user", "content": "Tell me a story about the sea."}],
        "temperature": 0,
        "stream": True,
    }
    key = " -H 'authorization: Bearer YOUR_KEY'" if settings.api_keys else ""
    quoted = json.dumps(body).replace("'", "'\\''")
    socket = f" --unix-socket {settings.uds}" if settings.uds else ""
    trust = f" --cacert {settings.ssl_certfile}" if has_tls(settings) else ""
    return f"curl -N{socket}{trust} {url}/v1/chat/completions -H 'content-type: application/json'{key} -d '{quoted}'"


def _model(settings: Settings, card: ModelCard | None) -> str:
    context = f", context {card.max_context}" if card else ""
    engine = "mock engine" if settings.engine == "mock" else card.path if card else f"dtype {settings.dtype}"
    return f"{served_model_name(settings)}  ({engine}{context})"


def _drafts(settings: Settings, card: ModelCard | None) -> str:
    limit = settings.num_speculative_tokens
    length = "their length adapts" if limit < 0 else f"at most {limit} tokens each"
    others = f"\nRequests may name {', '.join(card.methods)}." if card else ""
    return f"By method {settings.method}, {length}.{others}"


def _sampling(settings: Settings, sampling: SamplingDefaults) -> str:
    if settings.generation_config == API_ONLY:
        return "Requests that set none get temperature 1 and top_p 1."
    if not (changed := sampling.changed()):
        return "Requests that set none get temperature 1 and top_p 1; the model's files say no other."
    # A model that only changes another value leaves temperature where it is, which one wants to know, too.
    values = ", ".join(f"{name} {value:g}" for name, value in {"temperature": sampling.temperature, **changed}.items())
    return (
        f"Requests that set none get {values}, as the model's authors suggest.\n"
        f"--generation-config {API_ONLY} leaves temperature 1 and top_p 1."
    )


def _learning(settings: Settings) -> str:
    if settings.suffix_decoding_max_cached_requests == 0:
        return "Answers aren't learned."
    folder = store_dir(settings)
    if folder is None:
        return "Answers are learned in memory only, and forgotten at the end."
    return f"Answers are learned to {folder}, to draft from.\n--store-dir none keeps them off the disk."
