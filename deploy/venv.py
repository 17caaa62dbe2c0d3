"""Creates .venv and keeps it up to date with pyproject.toml and deploy/locks/. Standard library only.

pip installs only files whose hashes are in deploy/locks/ (deploy/lock.py writes them) and resolves nothing; then the
project itself, without its dependencies. Without a GPU torch's CPU build is taken where pip is offered one, else the
ordinary build with its CUDA packages; with a GPU, or with GPU=1 for another machine's, the ordinary one.
TORCH_INDEX=URL names the index that torch comes from. Other builds, for another CUDA say, have no hash in the locks:
TORCH_UNVERIFIED=1 installs them all the same.

A stamp in .venv holds the digest of the installation, so a second call returns at once. The stamp is written last, and
everything runs under a lock: an interrupted call is repeated, and concurrent calls do the work once. Knows nothing of
specmesh.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "deploy" / "locks"
LOCK = ROOT / ".venv.lock"
OLDEST = (3, 11)
# No file without a known hash: no dependency that isn't listed, and no source, whose build downloads more.
VERIFIED = ("--require-hashes", "--no-deps", "--only-binary", ":all:")
EXTRAS = ("ray", "nixl")
GPU = Path("/dev/nvidia0")
NOT_OFFERED = "No matching distribution found for torch=="
COST = (
    "no GPU here, but pip is offered no CPU build of torch: the ordinary one brings CUDA packages, several GB that "
    "nothing here uses.\n"
    "To do without them: Ctrl-C, then `make up TORCH_INDEX=URL` with the index of PyTorch's CPU builds"
)
# First words of pip's output lines, and the text shown instead.
PHASES = {
    "Collecting": "finding",
    "Downloading": "downloading",
    "Building": "building",
    "Installing collected": "installing",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", action="store_true", help="also what the tests, linters and oracles need")
    parser.add_argument("--ray", action="store_true", help="also Ray, for `up --on ray` (hundreds of MB)")
    parser.add_argument("--nixl", action="store_true", help="also NIXL, for --page-transport nixl (hundreds of MB)")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where (default: .venv)")
    parser.add_argument("--no-project", action="store_true", help="the packages it needs, not specmesh itself")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="use no index if this folder has wheels")
    options = parser.parse_args()
    if sys.version_info < OLDEST:
        print(f"specmesh needs Python 3.11 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.11 ...")
        return 2
    wheels = options.wheels if options.wheels and any(options.wheels.glob("*.whl")) else None
    with LOCK.open("w") as lock:
        _wait_for(lock)
        venv, project = options.venv.absolute(), not options.no_project
        extras = [name for name in EXTRAS if vars(options)[name]]
        return install(venv, dev=options.dev, project=project, wheels=wheels, extras=extras)


def install(
    venv: Path, *, dev: bool, project: bool = True, wheels: Path | None = None, extras: Sequence[str] = ()
) -> int:
    digest = fingerprint(venv)
    with_dev, without = venv / ".installed-dev", venv / ".installed"
    # An installation for developers also suffices for users.
    there = digest in [_read(stamp) for stamp in ([with_dev] if dev else [with_dev, without])]
    with_extra = {name: venv / f".installed-{name}" for name in extras}
    missing = [name for name, stamp in with_extra.items() if _read(stamp) != digest]
    if there and not missing:
        return 0
    started = time.monotonic()
    create(venv)
    log = venv / "pip.log"
    log.write_text("")
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    # On one core; see compile_modules.
    pip += ["--no-compile"]
    if wheels:
        pip += ["--no-index", "--find-links", str(wheels)]
    code = install_packages(pip, log, dev=dev)
    for name in missing:
        # Beside what is there: neither stamp below says anything of it.
        code = code or run_pip([*pip, *VERIFIED, *locked(name)], log)
    if not code and project:
        code = run_pip([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], log)
    if code:
        print("\n".join(log.read_text(errors="replace").splitlines()[-15:]), file=sys.stderr)
        print(f"pip failed; all it said is in {log}", file=sys.stderr)
        return code
    compile_modules(venv)
    if project:
        stamp = with_dev if dev else without
        for stamp_of_extra in with_extra.values():
            stamp_of_extra.write_text(digest)
        fresh = stamp.with_name(stamp.name + ".new")
        fresh.write_text(digest)
        fresh.replace(stamp)
    print(f"installed into {venv.name} in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return 0


def install_packages(pip: list[str], log: Path, *, dev: bool) -> int:
    """Everything but the project. pip's exit code."""
    verified = [*pip, *VERIFIED]
    code = run_pip([*verified, *locked("run"), *(locked("dev") if dev else [])], log)
    if code:
        return code
    index = os.environ.get("TORCH_INDEX")
    if os.environ.get("TORCH_UNVERIFIED") == "1":
        return run_pip([*pip, *(["--extra-index-url", index] if index else []), pinned_torch()], log)
    # From that index alone: another one would offer the ordinary build, with several GB of CUDA.
    verified_torch = [*verified, *(["--index-url", index] if index else [])]
    # Who names an index says by it which build is wanted.
    on_gpu = GPU.exists() or os.environ.get("GPU") == "1"
    if index or not on_gpu:
        code = run_pip([*verified_torch, *locked("torch-cpu")], log)
        if not code:
            print("took torch's CPU build, without CUDA packages", file=sys.stderr, flush=True)
            return 0
        if NOT_OFFERED not in log.read_text(encoding="utf-8", errors="replace"):
            return code
        if not on_gpu:
            print(COST, file=sys.stderr, flush=True)
    return run_pip([*verified_torch, *locked("torch")], log) or run_pip([*verified, *locked("cuda")], log)


def compile_modules(venv: Path) -> None:
    """To bytecode, on all cores. What is no Python, such as a template, is passed over, as pip does."""
    for folder in venv.glob("lib/python3*/site-packages"):
        print("compiling modules", file=sys.stderr, flush=True)
        command = [venv / "bin/python", "-m", "compileall", "-q", "-j", "0", folder]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def locked(name: str) -> list[str]:
    return ["-r", str(LOCKS / f"{name}.txt")]


def pinned_torch() -> str:
    found = re.search(r"^torch==[^ ]+", (LOCKS / "torch.txt").read_text(), re.MULTILINE)
    assert found, "deploy/locks/torch.txt has no torch"
    return found[0]


def fingerprint(venv: Path) -> str:
    """Digest of what decides the installation: these files, the interpreter and the path (scripts contain it)."""
    digest = hashlib.sha256()
    for part in (ROOT / "pyproject.toml", ROOT / "setup.py", *sorted(LOCKS.glob("*.txt"))):
        digest.update(part.read_bytes() + b"\0")
    digest.update(f"{venv}\0{ROOT}\0{sys.version}".encode())
    return digest.hexdigest()


def create(venv: Path) -> None:
    """Creates a venv with pip, even without Debian's python3-venv (ensurepip)."""
    if _has_pip(venv):
        return
    shutil.rmtree(venv, ignore_errors=True)
    print(f"making {venv.name} with Python {sys.version.split()[0]}", file=sys.stderr)
    made = subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True)
    if made.returncode == 0:
        return
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    outer_pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "-q"]
    subprocess.run([*outer_pip, *VERIFIED, *locked("pip")], check=True)


def _has_pip(venv: Path) -> bool:
    python = venv / "bin/python"
    return python.exists() and subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0


def run_pip(command: list[str], log: Path) -> int:
    """Runs pip with its output added to `log`, and shows one status line."""
    with log.open("a", encoding="utf-8") as words:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        shown = _Line()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                words.write(line)
                shown.say(line)
            return process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
            shown.close()


class _Line:
    """A status line, rewritten twice a second on a terminal; otherwise a line for each phase."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._started = time.monotonic()
        self._text = "starting pip"
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        if self._terminal:
            self._ticker.start()

    def say(self, line: str) -> None:
        words = line.split()
        phase = next((PHASES[opening] for opening in PHASES if line.lstrip().startswith(opening)), None)
        if phase is None:
            return
        name = Path(words[1]).name if phase in ("finding", "downloading") and len(words) > 1 else ""
        if phase == "installing":
            names = line.partition(":")[2].split(",")
            name = names[0].strip() if len(names) == 1 else f"{len(names)} packages"
        self._text = f"{phase} {name}".strip()
        if not self._terminal and phase == "installing":
            print(self._text, file=sys.stderr, flush=True)

    def _tick(self) -> None:
        while not self._over.wait(0.5):
            seconds = time.monotonic() - self._started
            print(f"\r\033[K{seconds:4.0f} s  {self._text[:70]}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._over.set()
        if self._terminal:
            self._ticker.join()
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _wait_for(lock: TextIO) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another make is installing; waiting for it", file=sys.stderr)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
