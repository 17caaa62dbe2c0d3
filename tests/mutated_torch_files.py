"""Files of torch.save with random changes: of their bytes, and of their pickles with checksums that fit."""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch_file_writer import Built, Call, packed, pickle_of, tensor
from torch_samples import SAMPLES

# What a payload that ran would leave behind.
CANARY = Path("/tmp/specmesh-a-pickle-was-run")
_WORDS = [0, 1, 2, 3, 8, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 62), (1 << 64) - 1]
_CODES = b"(.0129BCFGIJKLMNPQRSTUVX]abcdeghijlopqrstu}\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8b\x8c\x92\x93\x94\x95"


class _Payload:
    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


def _written() -> Iterator[bytes]:
    torch.manual_seed(0)
    for name in ("float32", "bfloat16", "shared", "parameters", "module", "float8", "transposed", "empty and scalar"):
        file = io.BytesIO()
        torch.save(SAMPLES[name](), file)
        yield file.getvalue()


def _pickles() -> Iterator[bytes]:
    yield pickle_of({"w": tensor(), "v": tensor((3,), (2,), 1)})
    yield pickle_of(Built(Call("collections OrderedDict", ()), {"_metadata": {}}))
    yield pickle_of({"state_dict": {"w": tensor()}, "epoch": [1, 2.5, None, (True,)]})
    yield pickle.dumps({"w": _Payload(os.system, (f"mkdir {CANARY}",))}, 2)
    yield pickle.dumps({"w": _Payload(os.mkdir, (str(CANARY),))}, 2)
    for name in ("float32", "module", "float8"):
        file = io.BytesIO()
        torch.save(SAMPLES[name](), file)
        with zipfile.ZipFile(file) as archive:
            yield archive.read("archive/data.pkl")


def mutations(source: random.Random, count: int) -> Iterator[bytes]:
    files, pickles = list(_written()), list(_pickles())
    storages = {str(key): bytes(range(96)) for key in range(8)}
    for _ in range(count):
        if source.random() < 0.4:
            yield _changed(source, source.choice(files))
        else:
            made = _changed(source, source.choice(pickles))
            yield packed(made, storages | {"0": bytes(24)})


def _changed(source: random.Random, raw: bytes) -> bytes:
    made = bytearray(raw)
    for _ in range(source.choice((1, 1, 2, 4))):
        at = source.randrange(len(made))
        match source.randrange(7):
            case 0:
                made[at] ^= 1 << source.randrange(8)
            case 1:
                made[at : at + 8] = struct.pack("<Q", source.choice(_WORDS))
            case 2:
                made[at : at + 4] = struct.pack("<I", source.choice(_WORDS) & 0xFFFFFFFF)
            case 3:
                other, length = source.randrange(len(raw)), source.randrange(1, 40)
                made[at : at + length] = raw[other : other + length]
            case 4:
                made[at] = source.choice(_CODES)
            case 5:
                made[at:at] = bytes(source.choice(_CODES) for _ in range(source.randrange(1, 6)))
            case _:
                del made[at : at + source.randrange(1, 20)]
        if not made:
            break
    return bytes(made)
