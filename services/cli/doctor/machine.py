"""The doctor's checks of this machine: model, disk, memory, packages. Nothing here talks to a process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from kernels.interpreter import has_gpu
from services.api.settings import Settings, cache_dir, run_dir, store_dir
from services.cli.doctor.finding import Finding, bad, ok, warn
from services.runtime.descriptors import hard_limit, room_for
from services.runtime.memory import BY_DEVICE, CPU_KV_MB, available_bytes
from services.runtime.own_folder import is_own

MB = 1 << 20
# What a fetched default model and its download take at most.
MODEL_ROOM = 600 * MB
LOG_ROOM = 64 * MB
LEAST_TORCH = (2, 11)
LEAST_TRITON = (3, 6)
LEAST_SHARED_MEMORY = 64 * MB
TORCH_IMPORT_TIMEOUT = 120.0


def model(settings: Settings) -> list[Finding]:
    """Is there one, and is it whole? Nothing is fetched to find out."""
    from models.check import check_context, check_model
    from models.sources import MODEL_NAMES, ModelError, kept_as

    name = settings.model
    path = Path(name).expanduser()
    if name.lower() in MODEL_NAMES and not path.exists():
        path = cache_dir(settings) / "models" / kept_as(name.lower(), settings.dtype)
        if not path.is_dir():
            what = f"{name} is not in the cache yet; the first start fetches it"
            return [warn("model", what, f"specmesh model fetch {name}")]
    try:
        if path.is_dir():
            check_context(check_model(path).network, settings.max_context)
        elif path.is_file():
            _check_gguf(path)
        elif re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith((".", "/", "~")):
            return [warn("model", f"{name} is not here; a hub would be asked for it", f"specmesh model fetch {name}")]
        else:
            fix = f"give a path that exists, or --model {MODEL_NAMES[0]}"
            return [bad("model", f"there is no model at {name}", fix)]
    except ModelError as error:
        return [bad("model", error.what, error.fix)]
    return [ok("model", f"{path}: whole")]


def _check_gguf(path: Path) -> None:
    from models.gguf import GgufError, GgufFile
    from models.sources import ModelError

    try:
        GgufFile(path)
    except GgufError as error:
        raise ModelError(str(error), "fetch the file again") from error


def disk(settings: Settings) -> list[Finding]:
    """Room for the model where it isn't there yet, and for sockets and pid files."""
    cache, runs = cache_dir(settings), run_dir(settings)
    model_room = LOG_ROOM if (cache / "models" / settings.model.lower()).is_dir() else MODEL_ROOM
    return [_room("cache_dir", cache, model_room), _room("run_dir", runs, MB)]


def store(settings: Settings) -> list[Finding]:
    """What proposers learn is kept where this user alone can write."""
    folder = store_dir(settings)
    if folder is None or not folder.is_dir():
        return [ok("store_dir", "kept in memory" if folder is None else f"{folder} is not there yet; a start makes it")]
    facts = folder.stat()
    if is_own(facts):
        return [ok("store_dir", f"{folder}: only you can change it")]
    if facts.st_uid != os.geteuid():
        what, fix = f"{folder} belongs to user {facts.st_uid}", "start with --store-dir and a folder of your own"
    else:
        what, fix = f"{folder} can be written by others", f"chmod 700 {folder}"
    return [bad("store_dir", f"{what}: nothing learned is kept", fix)]


def _room(setting: str, folder: Path, needed: int) -> Finding:
    place = _existing_parent(folder)
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK):
        return bad("disk", f"{folder} cannot be written", f"set {setting} to a folder of yours")
    if free < needed:
        what = f"{place} has {free // MB} MB free, {needed // MB} MB are needed"
        return bad("disk", what, f"free some space, or set {setting} to another disk")
    return ok("disk", f"{folder}: {free // MB} MB free")


def _existing_parent(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def memory(settings: Settings) -> list[Finding]:
    """Will the KV pages fit beside everything else?"""
    available = available_bytes()
    on_gpu = has_gpu() and settings.executor in ("auto", "triton")
    setting = 0 if on_gpu else CPU_KV_MB if settings.kv_cache_mb == BY_DEVICE else settings.kv_cache_mb
    if setting * MB > available:
        what = f"kv_cache_mb asks for {setting} MB, {available // MB} MB are available"
        return [warn("memory", what, f"--kv-cache-mb {max(1, available // MB // 2)}")]
    return [ok("memory", f"{available // MB} MB available")]


def open_files(settings: Settings) -> list[Finding]:
    """Does every connection get a descriptor? The start raises the soft limit by itself, as far as the hard one."""
    limit, wanted = hard_limit(), settings.max_connections
    if (possible := room_for(wanted, limit=limit)) < wanted:
        what = f"max_connections is {wanted}, the hard limit of {limit} open files has room for {possible}"
        fix = f"raise it (limits.conf, LimitNOFILE of systemd, ulimits of compose), or --max-connections {possible}"
        return [warn("open files", what, fix)]
    return [ok("open files", f"room for {wanted} connections")]


def shared_memory(settings: Settings, mount: Path = Path("/dev/shm")) -> list[Finding]:
    """Containers get 64 MB or none; torch and Triton put their workers' memory there."""
    fix = "docker run --shm-size=1g, or shm_size: 1g in compose"
    if not mount.is_dir():
        return [warn("shared memory", f"there is no {mount}", fix)]
    free = shutil.disk_usage(mount).free
    if free < LEAST_SHARED_MEMORY:
        return [warn("shared memory", f"{mount} has {free // MB} MB free", fix)]
    return [ok("shared memory", f"{mount}: {free // MB} MB free")]


def processor(settings: Settings) -> list[Finding]:
    """What of it the compiled loops use."""
    try:
        from kernels import amx, cpu_vectors
    except ImportError:
        # The packages' check says so.
        return []
    if settings.determinism == "portable":
        return [ok("processor", "determinism is portable: instructions for bfloat16 aren't used")]
    if amx.FOUND and settings.amx and not amx.AVAILABLE:
        what = "has AMX, and the system doesn't let this process use it: prompts and batches are slower"
        fix = "use Linux 5.16 or newer, and allow arch_prctl in the container's seccomp profile"
        return [warn("processor", what, fix)]
    if amx.AVAILABLE and settings.amx:
        return [ok("processor", "AMX is used")]
    wide = "AVX-512" if cpu_vectors.HAS_WIDE else "no AVX-512"
    return [ok("processor", f"{wide}, {'' if cpu_vectors.HAS_BFLOAT16_DOT else 'no '}instructions for bfloat16")]


def torch(settings: Settings) -> list[Finding]:
    """Present, new enough, and does it load? A build for another processor dies on import."""
    if settings.engine == "mock":
        return [ok("torch", "not needed by the mock engine")]
    least = ".".join(map(str, LEAST_TORCH))
    fix = f"pip install 'torch>={least}' (constraints.txt has the tested version)"
    found = _version("torch")
    if found is None:
        return [bad("torch", "torch is not installed here", fix)]
    if _numbers(found) < LEAST_TORCH:
        return [bad("torch", f"torch {found} is older than {least}", fix)]
    if problem := _import_problem("torch"):
        reinstall = f"pip install --force-reinstall torch=={found}"
        return [bad("torch", f"torch {found} does not load: {problem}", reinstall)]
    return [ok("torch", f"torch {found} loads"), *_triton()]


def _triton() -> list[Finding]:
    """Not needed on a CPU; where it is there, it must be the one torch was built for."""
    found = _version("triton")
    if found is None:
        return []
    wanted = _pinned("torch", "triton")
    if wanted and _numbers(wanted) != _numbers(found):
        what = f"triton {found} is here, this torch was built for {wanted}"
        return [bad("triton", what, f"pip install triton=={wanted}")]
    if _numbers(found) < LEAST_TRITON:
        least = ".".join(map(str, LEAST_TRITON))
        return [bad("triton", f"triton {found} is older than {least}", f"pip install 'triton>={least}'")]
    return [ok("triton", f"triton {found}")]


def packages(settings: Settings) -> list[Finding]:
    """Everything the project asks for."""
    findings = []
    for requirement in requires("specmesh") or [] if _version("specmesh") else []:
        name, _, condition = requirement.partition(";")
        parts = re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", name)
        if not parts or "extra" in condition or parts[1] == "torch":
            continue
        here = _version(parts[1])
        if here is None or _numbers(here) < _numbers(parts[2]):
            what = f"{parts[1]} {here or 'is missing'}, {parts[2]} or newer is needed"
            findings.append(bad("packages", what, f"pip install '{parts[1]}>={parts[2]}'"))
    return findings or [ok("packages", "all there")]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    """2.13.0+cpu -> (2, 13, 0)"""
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("+")[0])[:3])


def _pinned(package: str, dependency: str) -> str | None:
    """The exact version a package asks for, if it does."""
    for requirement in requires(package) or []:
        if found := re.match(rf"{dependency}\s*==\s*([\d.]+)", requirement):
            return found[1]
    return None


def _import_problem(package: str) -> str:
    """Empty when it loads, in a process of its own: what dies there doesn't take the doctor with it."""
    command = [sys.executable, "-P", "-c", f"import {package}"]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=TORCH_IMPORT_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no end after {TORCH_IMPORT_TIMEOUT:g} s"
    if done.returncode < 0:
        return f"killed by signal {-done.returncode}" + (" (illegal instruction)" if done.returncode == -4 else "")
    return done.stderr.strip().splitlines()[-1] if done.returncode and done.stderr.strip() else ""
