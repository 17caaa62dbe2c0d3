"""`specmesh doctor --bundle FILE`: what a report of a fault needs, as one archive without texts of users.

    about.json       versions, the machine
    settings.json    values and where they come from; of secrets, that they are set
    doctor.json      what was found
    store.json       sizes of what was learned
    logs/NAME.log    the last lines of each process, as log_lines.py leaves them
    mesh/            what a mesh that runs says: ready.json, mesh.json, metrics.txt

Values of secrets and of the environment's keys and tokens are looked for in all of it, and cut wherever they are.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from services.api.hosts import client_host, http_url
from services.api.settings import ROLES, Settings, keys_of, mesh_metrics_port, run_dir, store_dir
from services.cli.chat import ChatError, Conversation, answer_of, server_of
from services.cli.clean import LIBRARY
from services.cli.doctor.finding import Finding
from services.cli.doctor.log_lines import CUT, QUOTED, without_text
from services.runtime.memory import available_bytes
from services.runtime.version import own_version

PACKAGES = (
    "aiohttp", "jinja2", "llguidance", "llvmlite", "msgpack", "msgspec", "nixl", "numba", "numpy", "orjson",
    "prometheus-client", "pyzmq", "ray", "safetensors", "tokenizers", "torch", "triton", "uvloop", "vllm",
)  # fmt: skip
LAST_LINES, LAST_BYTES = 400, 1 << 18
METRICS = "/metrics"
ASKED = {"ready.json": "/health/ready", "mesh.json": "/v1/mesh", "metrics.txt": METRICS}
MOST_ANSWERED = 4 << 20
SECRET_NAMES = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL|HEADERS", re.IGNORECASE)
# Shorter values would be found in words.
LEAST_SECRET = 6
IN_URL = re.compile(r"(?<=://)[^/@\s\"]+(?=@)")
# Names that the operator gave to callers.
LABEL = re.compile(r'\bkey="[^"]*"')
WORTH_KNOWING = ("avx2", "avx512f", "avx512_bf16", "amx_tile")


def write(path: Path, findings: Sequence[Finding], settings: Settings | None, url: str | None) -> int:
    """The number of files. OSError: the archive can't be written, or is there already."""
    secrets = [*_secrets(settings)]
    files = {name: _without(text, secrets) for name, text in _files(findings, settings, url)}
    with path.open("xb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
        os.fchmod(raw.fileno(), 0o600)
        for name, text in files.items():
            data = text.encode()
            member = tarfile.TarInfo(f"{path.name.partition('.')[0]}/{name}")
            member.size, member.mtime = len(data), int(time.time())
            archive.addfile(member, io.BytesIO(data))
    return len(files)


def _files(findings: Sequence[Finding], settings: Settings | None, url: str | None) -> Iterator[tuple[str, str]]:
    yield "about.json", _json(about())
    # A setting that can't be read is quoted.
    told = [{k: QUOTED.sub(CUT, v) if settings is None else v for k, v in asdict(each).items()} for each in findings]
    yield "doctor.json", _json(told)
    if settings is None:
        return
    yield "settings.json", _json(_shown(settings))
    yield "store.json", _json(list(_stored(store_dir(settings))))
    for log in sorted((run_dir(settings) / "logs").glob("*.log")):
        yield f"logs/{log.name}", "\n".join([*without_text(_last_lines(log)), ""])
    for name, text in asyncio.run(_asked(server_of(url, settings), settings, url)):
        yield f"mesh/{name}", LABEL.sub(f'key="{CUT}"', text)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


# Secrets --------------------------------------------------------------------------------------------------


def _secrets(settings: Settings | None) -> Iterator[str]:
    if settings is not None:
        yield from (each for each in keys_of(settings.api_keys) if len(each) >= LEAST_SECRET)
    for name, value in os.environ.items():
        if SECRET_NAMES.search(name):
            yield from (each for each in (value, *keys_of(value)) if len(each) >= LEAST_SECRET)


def _without(text: str, secrets: Sequence[str]) -> str:
    for each in sorted(secrets, key=len, reverse=True):
        text = text.replace(json.dumps(each)[1:-1], CUT).replace(each, CUT)
    return IN_URL.sub(CUT, text)


def _shown(settings: Settings) -> Mapping[str, Any]:
    return {
        name: {"value": "set" if value != settings.shown(name) else value, "origin": settings.origin(name)}
        for name, value in settings
    }


# This machine ---------------------------------------------------------------------------------------------


def about() -> Mapping[str, Any]:
    return {
        "specmesh": own_version(),
        "python": sys.version,
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "processor": _cpu_info("model name"),
        "instructions": [each for each in WORTH_KNOWING if each in _cpu_info("flags").split()],
        "cores": {"all": os.cpu_count(), "ours": len(os.sched_getaffinity(0))},
        "memory_mb": {
            "all": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
            "available": available_bytes() >> 20,
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_info(name: str) -> str:
    try:
        found = re.search(rf"^{name}\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8", "replace"), re.MULTILINE)
    except OSError:
        return ""
    return found[1] if found else ""


def _stored(folder: Path | None) -> Iterator[Mapping[str, Any]]:
    """Of each library, by kind of file."""
    for library in sorted(folder.glob("*")) if folder is not None else ():
        if LIBRARY.fullmatch(library.name):
            files, held = Counter[str](), Counter[str]()
            for path in library.rglob("*.*"):
                with suppress(OSError):
                    held[path.suffix] += path.lstat().st_size
                    files[path.suffix] += 1
            yield {"library": library.name, "files": files, "bytes": held}


def _last_lines(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
        return file.read().decode("utf-8", "replace").splitlines()[-LAST_LINES:]


# A mesh that runs -----------------------------------------------------------------------------------------


async def _asked(server: Conversation, settings: Settings, url: str | None) -> list[tuple[str, str]]:
    found = []
    try:
        for name, path in ASKED.items():
            status, text = await _answer(server, path)
            if path == METRICS and status >= 400 and not url:
                # With several keys they aren't served there; the health ports of this machine have no keys.
                found += [(f"metrics-{role}.txt", await _of_port(settings, role)) for role in ROLES]
            else:
                found.append((name, text))
    except ChatError as error:
        found.append(("error.txt", f"{error}\n"))
    return found


async def _of_port(settings: Settings, role: str) -> str:
    door = http_url(client_host(settings.metrics_host), mesh_metrics_port(settings, role))
    return (await _answer(Conversation(url=door), METRICS))[1]


async def _answer(server: Conversation, path: str) -> tuple[int, str]:
    async with answer_of(server, path) as response:
        return response.status, (await response.read())[:MOST_ANSWERED].decode("utf-8", "replace")
