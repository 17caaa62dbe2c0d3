"""Converts one file of torch.save in a process of its own, which has two open files and can open no other, with limits
of memory, processor time and bytes written, and without secrets in its environment.

The reader executes nothing (models/torch_files). This is the second wall, should it be wrong about that.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from models.errors import ModelError, TorchFileError
from models.tensor_headers import MAX_HEADER_BYTES, file_size, read_headers
from models.torch_files.safetensors_file import SafetensorsFile
from models.torch_files.tensors import read_tensors
from services.runtime.children import tied
from services.runtime.environment import harmless_environment
from specmesh.rooms import command

# Tensors that share their values are written once for each.
MOST_WRITTEN = 4  # bytes for each byte of the file
MEMORY = 1 << 30
SECONDS = 60
BYTES_A_SECOND = 1 << 24  # beyond those seconds
_LONGEST_ANSWER = 1 << 20
_FIX = "take a whole file with a state dict of plain tensors (docs/use/heads.md)"
_ENDED = {
    -signal.SIGXCPU: "took more processor time than its size allows",
    -signal.SIGKILL: "took more processor time than its size allows, or was killed",
    -signal.SIGBUS: "was changed while it was read",
}


class Converted(msgspec.Struct, frozen=True):
    tensors: int = 0
    bytes: int = 0
    left_out: tuple[str, ...] = ()
    refused: str = ""


def convert_file(source: Path, target: Path) -> Converted:
    """`target` appears whole or not at all, in place of what was there. Raises `ModelError` or `OSError`."""
    most = MOST_WRITTEN * file_size(source) + MAX_HEADER_BYTES
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with source.open("rb") as read, partial.open("xb") as written:
            converted = _converted(read.fileno(), written.fileno(), most, source)
        # By the reader that models are loaded with.
        read_headers(partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return converted


def _converted(read: int, written: int, most: int, source: Path) -> Converted:
    child = subprocess.Popen(
        tied(command(__name__, str(read), str(written), str(most))),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(read, written),
        # A thread of a numeric library takes addresses, and none is needed.
        env=harmless_environment() | {"OPENBLAS_NUM_THREADS": "1"},
    )
    with child:
        try:
            assert child.stdout is not None
            answer = child.stdout.read(_LONGEST_ANSWER)
            status = child.wait()
        finally:
            child.kill()
    if status:
        raise ModelError(f"{source} {_ENDED.get(status, f'could not be read: its process ended with {status}')}", _FIX)
    converted = msgspec.json.decode(answer, type=Converted)
    if converted.refused:
        raise ModelError(f"{source} is not converted: {converted.refused}", _FIX)
    return converted


# The child's side ---------------------------------------------------------------------------------------


def main() -> None:
    read, written, most = map(int, sys.argv[1:])
    # Ctrl-C reaches the whole foreground group: the parent ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    size = os.fstat(read).st_size
    raw = mmap.mmap(read, size, prot=mmap.PROT_READ) if size else b""
    _limit(size, most)
    try:
        answer = _write(memoryview(raw), written, most)
    except TorchFileError as error:
        answer = Converted(refused=str(error)[:4000])
    except MemoryError:
        answer = Converted(refused="it takes more memory than any state dict does")
    except OSError as error:
        answer = Converted(refused=f"its tensors cannot be written: {error.strerror}")
    sys.stdout.buffer.write(msgspec.json.encode(answer))


def _limit(size: int, most: int) -> None:
    """Of memory that is its own, of addresses (the file is mapped), and of all else that a process could do."""
    seconds = SECONDS + size // BYTES_A_SECOND
    limits = {
        resource.RLIMIT_DATA: MEMORY,
        resource.RLIMIT_AS: size + 2 * MEMORY,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: most,
        # Of new ones: those that are open stay open.
        resource.RLIMIT_NOFILE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
    }
    for each, limit in limits.items():
        resource.setrlimit(each, (limit, limit))


def _write(raw: memoryview, written: int, most: int) -> Converted:
    found = read_tensors(raw)
    made = SafetensorsFile(found.tensors)
    if made.bytes > most:
        raise TorchFileError(f"its tensors would take {made.bytes} bytes, and at most {most} are written for its size")
    # A disk that is too full says so before anything is written.
    os.posix_fallocate(written, 0, made.bytes)
    with open(written, "wb", closefd=False) as file:
        made.write(file)
    return Converted(len(found.tensors), made.bytes, found.left_out)


if __name__ == "__main__":
    main()
