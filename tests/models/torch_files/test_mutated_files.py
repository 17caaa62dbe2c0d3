"""Random changes of files that torch.save wrote and of hostile ones: each is refused by name, or its tensors are those
that torch itself reads. Nothing is executed."""

from __future__ import annotations

import io
import random

import pytest
import torch
from mutated_torch_files import mutations
from nothing_happens import nothing_happens
from safetensors.torch import load
from torch_samples import bits, tensors_of

from models.errors import TorchFileError
from models.torch_files.safetensors_file import SafetensorsFile
from models.torch_files.tensors import read_tensors

MUTATIONS = 400
MOST = 1 << 20


def test_a_mutated_file_is_refused_or_read_as_torch_reads_it() -> None:
    read = 0
    for raw in mutations(random.Random("in process"), MUTATIONS):
        try:
            with nothing_happens():
                made = SafetensorsFile(read_tensors(memoryview(raw)).tensors)
        except TorchFileError as error:
            assert str(error)
            continue
        if made.bytes > MOST:
            # The process that converts refuses it.
            continue
        file = io.BytesIO()
        made.write(file)
        right = tensors_of(torch.load(io.BytesIO(raw), weights_only=True))
        found = load(file.getvalue())
        assert {name: bits(each) for name, each in found.items()} == {name: bits(each) for name, each in right.items()}
        read += 1
    assert read > MUTATIONS // 20


def test_the_hook_sees_what_is_done() -> None:
    with pytest.raises(AssertionError), nothing_happens():
        open("/dev/null").close()
