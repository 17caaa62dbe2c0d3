"""Creates .venv and keeps it up to date with pyproject.toml and constraints.txt. Standard library only.

A stamp in .venv holds the digest of the installation, so a second call returns at once. The stamp is written last, and
everything runs under a lock: an interrupted call is repeated, and concurrent calls do the work once. Knows nothing of
specmesh.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / ".venv.lock"
OLDEST = (3, 11)
# First words of pip's output lines, and the text shown instead.
PHASES = {
    "Collecting": "finding",
    "Downloading": "downloading",
    "Building": "building",
    "Installing collected": "installing packages (torch takes a while)",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", action="store_true", help="also what the tests, linters and oracles need")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where (default: .venv)")
    options = parser.parse_args()
    if sys.version_info < OLDEST:
        print(f"specmesh needs Python 3.11 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.11 ...")
        return 2
    with LOCK.open("w") as lock:
        _wait_for(lock)
        return install(options.venv.absolute(), dev=options.dev)


def install(venv: Path, *, dev: bool) -> int:
    digest = fingerprint(venv)
    with_dev, without = venv / ".installed-dev", venv / ".installed"
    # An installation for developers also suffices for users.
    if digest in [_read(stamp) for stamp in ([with_dev] if dev else [with_dev, without])]:
        return 0
    started = time.monotonic()
    create(venv)
    log = venv / "pip.log"
    target = f"{ROOT}[dev]" if dev else str(ROOT)
    command = [venv / "bin/python", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["-c", ROOT / "constraints.txt"]
    if index := os.environ.get("TORCH_INDEX"):
        command += ["--extra-index-url", index]
    code = run_pip([*map(str, command), "-e", target], log)
    if code:
        print("\n".join(log.read_text(errors="replace").splitlines()[-15:]), file=sys.stderr)
        print(f"pip failed; all it said is in {log}", file=sys.stderr)
        return code
    stamp = with_dev if dev else without
    fresh = stamp.with_name(stamp.name + ".new")
    fresh.write_text(digest)
    fresh.replace(stamp)
    print(f"installed into {venv.name} in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return 0


def fingerprint(venv: Path) -> str:
    """Digest of what decides the installation: the two files, the interpreter and the path (scripts contain it)."""
    digest = hashlib.sha256()
    for part in (ROOT / "pyproject.toml", ROOT / "constraints.txt"):
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
    outer_pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "-q", "pip"]
    subprocess.run(outer_pip, check=True)


def _has_pip(venv: Path) -> bool:
    python = venv / "bin/python"
    return python.exists() and subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0


def run_pip(command: list[str], log: Path) -> int:
    """Runs pip with its output in `log`, and shows one status line."""
    environment = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    with log.open("w") as words:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
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
        if not self._terminal and phase.startswith("installing"):
            print(phase, file=sys.stderr, flush=True)
        self._text = f"{phase} {name}".strip()

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
        return path.read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
