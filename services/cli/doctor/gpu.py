"""The doctor's checks of a worker on a GPU: driver, compiler, Python's headers, and the folder that Triton loads from.

Triton compiles kernels when they are first launched, and before the first one a module that launches them: with a C
compiler and Python's headers, into its cache folder, from which both are loaded. What is missing there shows at the
first step. Nothing here imports torch or triton: what dies there doesn't take the doctor with it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from kernels.interpreter import DEVICES, has_gpu
from services.api.settings import Settings
from services.cli.doctor.finding import Finding, bad, ok

IN_A_CONTAINER = "in a container: the NVIDIA container toolkit, and compose.gpu.yaml or --gpus all"
IN_THE_IMAGE = "an image: build it with --build-arg GPU=1, as compose.gpu.yaml does"
INSTALL_GCC = f"apt install gcc libc6-dev; {IN_THE_IMAGE}"
ASK_TORCH = """
import json, torch
print(json.dumps({"cuda": torch.version.cuda, "found": torch.cuda.is_available(), "gpus": [
    [torch.cuda.get_device_name(i), *torch.cuda.get_device_capability(i)] for i in range(torch.cuda.device_count())]}))
"""
ASK_TIMEOUT = 120.0
# The oldest that the kernels are compiled for.
LEAST_CAPABILITY = (8, 0)
NO_GPU = "none here: the model runs on the CPU"


def gpu(settings: Settings) -> list[Finding]:
    """All of it where a GPU is, or is asked for; one line elsewhere."""
    if settings.engine == "mock" or settings.executor not in ("auto", "triton"):
        return [ok("gpu", "not asked for")]
    if settings.executor == "auto" and not has_gpu():
        return [ok("gpu", NO_GPU)]
    return [*driver(), *triton(), *compiler(), *cache_folder()]


# The driver -----------------------------------------------------------------------------------------------


def driver() -> list[Finding]:
    """The device, the driver's library, and whether torch can use them."""
    if not has_gpu():
        return [bad("gpu", f"no NVIDIA device ({' or '.join(DEVICES)})", f"install the driver; {IN_A_CONTAINER}")]
    version = driver_version()
    if version is None:
        what = "libcuda.so.1, the driver's library, is not found"
        fix = f"install the driver's libraries; {IN_A_CONTAINER}, with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return [bad("gpu", what, fix)]
    return _torch_on_it(version, torch_facts())


def driver_version() -> tuple[int, int] | None:
    """The newest CUDA that the driver runs; None: no library of a driver."""
    try:
        number = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
            return None
    except (OSError, AttributeError):
        return None
    return number.value // 1000, number.value % 1000 // 10


def torch_facts() -> dict[str, object]:
    """What torch sees, from a process of its own; empty if it doesn't load (the check of torch says why)."""
    try:
        done = subprocess.run([sys.executable, "-P", "-c", ASK_TORCH], capture_output=True, timeout=ASK_TIMEOUT)
        facts = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    return facts if isinstance(facts, dict) else {}


def _torch_on_it(version: tuple[int, int], facts: dict[str, object]) -> list[Finding]:
    if not facts:
        return []
    here = ".".join(map(str, version))
    built = facts["cuda"]
    if built is None:
        fix = "install torch's CUDA build: make with the GPU in sight, or TORCH_INDEX=URL of PyTorch's CUDA builds"
        return [bad("gpu", "this torch is a build for CPUs", fix)]
    if int(str(built).partition(".")[0]) > version[0]:
        fix = "install a newer driver, or a torch for an older CUDA (TORCH_INDEX=URL, TORCH_UNVERIFIED=1)"
        return [bad("gpu", f"torch was built for CUDA {built}, the driver runs {here} at most", fix)]
    if not facts["found"]:
        what = f"the driver is there (CUDA {here}), but torch sees no GPU"
        return [bad("gpu", what, "nvidia-smi says more; look at CUDA_VISIBLE_DEVICES and at the container's devices")]
    gpus = [tuple(each) for each in facts["gpus"]]  # type: ignore[attr-defined]
    old = [name for name, *capability in gpus if tuple(capability) < LEAST_CAPABILITY]
    if old:
        what = f"{', '.join(old)}: older than sm_{LEAST_CAPABILITY[0]}{LEAST_CAPABILITY[1]}, which the kernels need"
        return [bad("gpu", what, "hide it with CUDA_VISIBLE_DEVICES, or --executor compiled")]
    said = ", ".join(f"{name} (sm_{major}{minor})" for name, major, minor in gpus)
    return [ok("gpu", f"{said}; CUDA {here}, torch for {built}")]


# What Triton needs ----------------------------------------------------------------------------------------


def triton() -> list[Finding]:
    """Torch's CUDA build brings it, and its CPU build doesn't. Whether it is the right one, the check of torch says."""
    if importlib.util.find_spec("triton") is None:
        fix = "install torch's CUDA build, which names its triton, or in a checkout of specmesh pip install '.[gpu]'"
        return [bad("triton", "triton is not installed: the GPU's kernels are written in it", fix)]
    return []


def compiler() -> list[Finding]:
    """A C compiler that makes a module for this Python: tried, since a compiler without its parts is found, too."""
    command = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if not command:
        return [bad("compiler", "no C compiler: Triton builds its launcher with one", INSTALL_GCC)]
    header = Path(include_folder()) / "Python.h"
    if not header.is_file():
        return [bad("compiler", f"Python's headers are missing ({header})", f"apt install python3-dev; {IN_THE_IMAGE}")]
    if problem := _build_problem(command):
        return [bad("compiler", f"{command} builds no module: {problem}", INSTALL_GCC)]
    return [ok("compiler", f"{command}, with Python's headers")]


def include_folder() -> str:
    """As Triton looks for it: Debian's own scheme is not where its headers are."""
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    return sysconfig.get_paths(scheme=scheme)["include"]


def _build_problem(command: str) -> str:
    """Empty if it compiles and links a module of nothing."""
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        source = Path(folder) / "module.c"
        source.write_text("#include <Python.h>\nint nothing(void) { return PY_MAJOR_VERSION; }\n", "utf-8")
        words = [command, str(source), "-shared", "-fPIC", f"-I{include_folder()}", "-o", f"{folder}/module.so"]
        try:
            done = subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", timeout=ASK_TIMEOUT)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    lines = [line for line in done.stderr.splitlines() if re.search("error|cannot", line)] or ["it failed"]
    return lines[0] if done.returncode else ""


def triton_cache() -> Path:
    home = os.environ.get("TRITON_HOME") or Path.home()
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path(home) / ".triton" / "cache")


def cache_folder() -> list[Finding]:
    """Triton writes there and loads what it wrote: both are tried. Many containers mount /tmp with noexec."""
    folder = triton_cache()
    fix = "set TRITON_CACHE_DIR to a folder that this user may write, on a mount without noexec"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(mmap.PAGESIZE))
            file.flush()
            try:
                mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
            except PermissionError:
                what = f"{folder} is mounted noexec: what Triton compiles there can't be loaded"
                return [bad("triton cache", what, f"{fix}; in compose a volume, not a tmpfs")]
    except OSError as error:
        return [bad("triton cache", f"{folder} cannot be written ({error.strerror})", fix)]
    return [ok("triton cache", f"{folder}: can be written, and loaded from")]
