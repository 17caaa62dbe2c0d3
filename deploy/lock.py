"""Writes deploy/locks/: every package of constraints.txt with the hashes of its files. deploy/venv.py and the image
install from them, so pip refuses a file that isn't the one that was tested.

    python deploy/lock.py                    after a change of pyproject.toml or constraints.txt
    TORCH_INDEX=URL python deploy/lock.py    with the hashes of torch's CPU builds in that index, too

    run.txt        what specmesh needs, without torch
    dev.txt        what its developers need in addition
    ray.txt        what `up --on ray` needs in addition to run.txt
    nixl.txt       what `page_transport nixl` needs in addition to run.txt
    torch-cpu.txt  torch's CPU builds
    torch.txt      torch's ordinary builds
    cuda.txt       what the ordinary builds need in addition, several GB
    pip.txt        pip itself, for a Python without ensurepip

uv resolves them (`pip install uv`), for Linux on x86-64 and aarch64 and every supported Python. It reads the index from
its own configuration; no file here names one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "deploy" / "locks"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
ENTRY = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)(?: *; *([^\\]+?))? *\\?$")
HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
# Only torch's CUDA builds need them. Its CPU builds don't, and they are several GB.
CUDA = re.compile(r"(cuda|nvidia)-.*|triton$")
HEADS = {
    "run": "What specmesh needs, without torch.",
    "dev": "What the developers of specmesh need in addition to run.txt and torch.",
    "ray": "What `up --on ray` needs in addition to run.txt.",
    "nixl": "What `page_transport nixl` needs in addition to run.txt.",
    "torch-cpu": "torch's CPU builds, which have an index of their own (TORCH_INDEX).",
    "torch": "torch's ordinary builds. They need cuda.txt, too.",
    "cuda": "What torch's ordinary builds need in addition to run.txt.",
    "pip": "pip itself, for a Python without ensurepip.",
}


@dataclass(frozen=True, slots=True)
class LockEntry:
    name: str
    version: str
    marker: str
    hashes: frozenset[str]

    def text(self) -> str:
        marker = f" ; {self.marker}" if self.marker else ""
        lines = [f"{self.name}=={self.version}{marker}", *(f"--hash={each}" for each in sorted(self.hashes))]
        return " \\\n    ".join(lines)


def main() -> int:
    run, everything = compiled(), compiled("--extra", "dev")
    torch = next(each for each in run if each.name == "torch")
    cuda = [each for each in run if CUDA.match(each.name)]
    run = [each for each in run if each not in cuda and each is not torch]
    known = {each.name for each in (*run, torch)}
    dev = [each for each in everything if each.name not in known and (each.name == "triton" or each not in cuda)]
    locks = {"run": run, "dev": dev}
    for extra in ("ray", "nixl"):
        locks[extra] = [each for each in compiled("--extra", extra) if each.name not in known and each not in cuda]
    locks |= {"torch-cpu": cpu_builds(f"{torch.version}+cpu"), "torch": [torch], "cuda": cuda}
    locks["pip"] = parse(uv("-c", str(ROOT / "constraints.txt"), requirement="pip"))
    LOCKS.mkdir(exist_ok=True)
    for name, entries in locks.items():
        text = "\n".join(each.text() for each in sorted(entries, key=lambda each: each.name))
        (LOCKS / f"{name}.txt").write_text(f"# {HEADS[name]}\n# Written by deploy/lock.py.\n{text}\n")
        print(f"{name}.txt: {len(entries)} packages, {sum(len(each.hashes) for each in entries)} hashes")
    return 0


def compiled(*extra: str) -> list[LockEntry]:
    """What pyproject.toml needs at the versions of constraints.txt. setuptools builds the project itself."""
    return list(needed(parse(uv("-c", str(ROOT / "constraints.txt"), str(ROOT / "pyproject.toml"), *extra))))


def cpu_builds(version: str) -> list[LockEntry]:
    """Those in TORCH_INDEX; without it those that are written already."""
    if index := os.environ.get("TORCH_INDEX"):
        return parse(uv("--no-deps", "--default-index", index, requirement=f"torch=={version}"))
    written = LOCKS / "torch-cpu.txt"
    found = [each for each in parse(written.read_text() if written.exists() else "") if each.version == version]
    if not found:
        raise SystemExit(f"the hashes of torch {version} aren't known: TORCH_INDEX=URL, the index of the CPU builds")
    return found


def uv(*arguments: str, requirement: str = "setuptools") -> str:
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", PYTHONS[0], "--generate-hashes"]
    command += ["--no-header", "--no-annotate", *arguments, "-"]
    with tempfile.TemporaryDirectory() as empty:
        # Not in the repository: a uv.lock or uv.toml there would be obeyed.
        done = subprocess.run(command, cwd=empty, input=requirement, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def parse(text: str) -> list[LockEntry]:
    entries: list[LockEntry] = []
    for line in text.splitlines():
        if found := ENTRY.match(line):
            entries.append(LockEntry(found[1], found[2], found[3] or "", frozenset()))
        elif (hash := HASH.search(line)) and entries:
            last = entries.pop()
            entries.append(LockEntry(last.name, last.version, last.marker, last.hashes | {hash[1]}))
    return entries


def needed(entries: Iterable[LockEntry]) -> Iterable[LockEntry]:
    """Without what other systems need; a marker that holds on all of ours is left out."""
    for each in entries:
        held = [not each.marker or Marker(each.marker).evaluate(where) for where in environments()]
        if any(held):
            yield LockEntry(each.name, each.version, "" if all(held) else each.marker, each.hashes)


def environments() -> list[dict[str, str]]:
    common = {
        "implementation_name": "cpython", "platform_python_implementation": "CPython", "os_name": "posix",
        "sys_platform": "linux", "platform_system": "Linux", "extra": "",
    }  # fmt: skip
    return [
        {**common, "python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
        for python in PYTHONS
        for machine in MACHINES
    ]


if __name__ == "__main__":
    sys.exit(main())
