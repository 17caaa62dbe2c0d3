"""The banner that `specmesh up` prints when the mesh is ready. Pure: settings and facts in, text out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from services.api.messages import ModelCard
from services.api.settings import Settings, served_model_name
from services.cli.launch_plan import Process

WIDTH = 78


def box(settings: Settings, processes: Sequence[Process], card: ModelCard | None, took: float, folder: Path) -> str:
    """No lines at the sides, so that the command can be pasted as it is."""
    url = door_url(settings)
    title = f" specmesh {_version()} is ready ({took:.1f} s) "
    rows = [
        ("URL", f"{url}/v1"),
        ("docs", f"{url}/docs"),
        ("model", _model(settings, card)),
        ("proposers", _proposers(settings, card)),
        *(
            (
                "metrics" if not number else "",
                f"http://{_host(settings.metrics_host)}:{each.metrics_port}/metrics  {each.instance}",
            )
            for number, each in enumerate(processes)
        ),
        ("logs", str(folder / "logs")),
    ]
    return "\n".join(
        [
            "",
            "┌" + title + "─" * max(0, WIDTH - len(title)),
            *(f"│ {name:<10} {value}" for name, value in rows),
            "├ try it " + "─" * (WIDTH - 8),
            curl(settings, url),
            "└" + "─" * WIDTH,
        ]
    )


def door_url(settings: Settings) -> str:
    return f"http://{_host(settings.host)}:{settings.port}"


def curl(settings: Settings, url: str) -> str:
    """A command that streams an answer."""
    body = {
        "model": served_model_name(settings),
        "messages": [{"role": "user", "content": "Tell me a story about the sea."}],
        "stream": True,
    }
    key = " -H 'authorization: Bearer YOUR_KEY'" if settings.api_keys else ""
    quoted = json.dumps(body).replace("'", "'\\''")
    return f"curl -N {url}/v1/chat/completions -H 'content-type: application/json'{key} -d '{quoted}'"


def _host(host: str) -> str:
    """An address that clients can connect to."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{shown}]" if ":" in shown else shown


def _model(settings: Settings, card: ModelCard | None) -> str:
    context = f", context {card.max_context}" if card else ""
    engine = "mock engine" if settings.engine == "mock" else card.path if card else f"dtype {settings.dtype}"
    return f"{served_model_name(settings)}  ({engine}{context})"


def _proposers(settings: Settings, card: ModelCard | None) -> str:
    methods = ", ".join(card.methods) if card else settings.method
    limit = settings.num_speculative_tokens
    length = "adaptive draft length" if limit < 0 else f"drafts of at most {limit} tokens"
    return f"{methods}  (default {settings.method}, {length})"


def _version() -> str:
    try:
        return version("specmesh")
    except PackageNotFoundError:
        return "from source"
