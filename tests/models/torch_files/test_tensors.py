"""Tensors are bit-equal to those that torch.save was given; places and shapes outside a file are refused by name."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch_file_writer import Named, packed, pickle_of, state_dict_file, tensor
from torch_samples import SAMPLES, bits, tensors_of

from models.errors import TorchFileError
from models.torch_files import safetensors_file
from models.torch_files.safetensors_file import SafetensorsFile
from models.torch_files.tensors import read_tensors


def saved(value: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **how)
    return file.getvalue()


def converted(raw: bytes) -> bytes:
    made, file = SafetensorsFile(read_tensors(memoryview(raw)).tensors), io.BytesIO()
    made.write(file)
    assert len(file.getvalue()) == made.bytes
    return file.getvalue()


def refusal(raw: bytes) -> str:
    with pytest.raises(TorchFileError) as refused:
        read_tensors(memoryview(raw))
    return str(refused.value)


def assert_same(made: bytes, value: Any) -> None:
    found, right = load(made), tensors_of(value)
    assert found.keys() == right.keys()
    for name, each in right.items():
        assert bits(found[name]) == bits(each), name


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_torch_save_writes_has_the_same_bits(sample: str) -> None:
    value = SAMPLES[sample]()
    assert_same(converted(saved(value)), value)


@pytest.fixture
def without_checksums() -> Iterator[None]:
    torch.serialization.set_crc32_options(False)
    yield
    torch.serialization.set_crc32_options(True)


def test_a_file_without_checksums_is_read(without_checksums: None) -> None:
    value = SAMPLES["shared"]()
    assert_same(converted(saved(value)), value)


@pytest.mark.parametrize("chunk", [8, 20, 64, 1000])
def test_large_views_are_copied_piece_by_piece(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "_CHUNK", chunk)
    value = {
        "w": torch.randn(5, 4, 3).permute(2, 0, 1), "one": torch.randn(40, 1)[::2].t(), "v": torch.arange(90)[::7],
        "e": torch.ones(1, 2).expand(3, 2),
    }  # fmt: skip
    raw = saved(value)
    assert_same(converted(raw), value)
    for each in read_tensors(memoryview(raw)).tensors.values():
        assert all(len(piece) <= chunk for piece in safetensors_file.pieces(each))


def test_what_a_training_script_keeps_beside_is_named() -> None:
    assert read_tensors(memoryview(saved(SAMPLES["training"]()))).left_out == ("best", "epoch", "notes", "optimizer")


def test_what_is_no_tensor_is_refused_by_its_name() -> None:
    assert refusal(saved({"w": torch.ones(1), "epoch": 3})) == "epoch is no tensor but a int"
    assert refusal(saved([torch.ones(1)])) == "it holds no state dict but a list"
    assert refusal(saved({3: torch.ones(1)})) == "it has a tensor called 3"
    assert refusal(saved({"__metadata__": torch.ones(1)})) == "it has a tensor called '__metadata__'"
    assert refusal(saved({})) == "it holds no tensors"
    both = {"model": {"w": torch.ones(1)}, "state_dict": {"w": torch.ones(1)}}
    assert refusal(saved(both)) == "it holds several state dicts: state_dict and model"
    assert "torch._utils._rebuild_sparse_tensor" in refusal(saved({"w": torch.eye(3).to_sparse()}))
    assert "torch.ComplexFloatStorage" in refusal(saved({"w": torch.ones(2, dtype=torch.complex64)}))
    assert "torch.nn.modules.linear.Linear" in refusal(saved(torch.nn.Linear(2, 2)))
    assert "torch.FloatStorage" in refusal(packed(pickle_of({"w": Named("torch FloatStorage")})))
    assert "form of torch before 1.6" in refusal(saved({"w": torch.ones(1)}, _use_new_zipfile_serialization=False))
    assert "protocol 4" in refusal(saved({"w": torch.ones(1)}, pickle_protocol=4))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"offset": 1}, "reaches to byte 28 of a storage with 24"),
        ({"offset": -1}, "begins at -1"),
        ({"offset": 1 << 61}, "reaches to byte"),
        ({"offset": "0"}, "begins at a str"),
        ({"shape": (3, 3)}, "reaches to byte 36 of a storage with 24"),
        ({"shape": (1 << 40, 1), "strides": (1, 1)}, "reaches to byte"),
        ({"shape": (1 << 62, 1)}, "has the shape"),
        ({"shape": (-2, 3)}, "has the shape (-2, 3)"),
        ({"shape": (True, 3)}, "has the shape"),
        ({"shape": [2, 3]}, "has the shape a list"),
        ({"shape": ((2,), 3)}, "has the shape a tuple"),
        ({"shape": (1,) * 9, "strides": (1,) * 9}, "has the shape"),
        ({"strides": (-3, 1)}, "has the strides (-3, 1)"),
        ({"strides": (3,)}, "has the strides (3,)"),
        ({"strides": None}, "has the strides a NoneType"),
        ({"strides": (1 << 61, 1)}, "reaches to byte"),
        ({"count": 7}, "has a storage of 28 bytes, which has 24 bytes"),
        ({"count": -6}, "has a storage of -24 bytes"),
        ({"count": 1 << 60}, "which has 24 bytes"),
        ({"key": "1"}, "which is not there"),
        ({"key": "../version"}, "which is not there"),
        ({"key": "/etc/passwd"}, "which is not there"),
        ({"kind": "torch DoubleStorage"}, "has a storage of 48 bytes"),
        ({"kind": "torch.storage UntypedStorage", "count": 24}, "is of a type that safetensors doesn't have"),
    ],
)
def test_places_shapes_and_types_outside_the_file_are_refused(given: dict[str, Any], told: str) -> None:
    assert told in refusal(state_dict_file(w=tensor(**given)))


def test_a_type_that_safetensors_does_not_have_is_refused_by_its_tensor() -> None:
    given = tensor(
        kind="torch.storage UntypedStorage", count=24, more=(Named("torch FloatStorage"),),
        rebuild="torch._utils _rebuild_tensor_v3",
    )  # fmt: skip
    assert "tensor w is of a type" in refusal(state_dict_file(w=given))


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({"byteorder": b"big"}, "byte order b'big'"),
        ({"byteorder": b"\xff" * 500}, "byte order"),
        ({"version": b"4\n"}, "version b'4\\n'"),
        ({"version": b"three"}, "version b'three'"),
        ({"version": None}, "version b''"),
        ({"version": "³".encode()}, "version"),
        ({"constants.pkl": b"}."}, "its entry constants.pkl is none of torch.save's; a TorchScript file holds code"),
        ({"code/x.py": b""}, "its entry code/x.py"),
        ({"data.pkl": None}, "it has no data.pkl"),
    ],
)  # fmt: skip
def test_other_archives_are_refused_by_their_entries(others: dict[str, bytes | None], told: str) -> None:
    assert told in refusal(packed(pickle_of({"w": tensor()}), **others))


def test_an_archive_without_a_byte_order_is_of_an_older_torch_and_read() -> None:
    made = converted(packed(pickle_of({"w": tensor()}), byteorder=None))
    assert load(made)["w"].tolist() == [[1.5, -2.0, 0.0], [4.0, 5.0, 6.25]]


def test_a_file_saved_again_by_another_zip_writer_is_read() -> None:
    value = SAMPLES["transposed"]()
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(value))) as old, zipfile.ZipFile(file, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    assert_same(converted(file.getvalue()), value)


def test_names_and_shapes_beyond_a_header_are_refused() -> None:
    raw = state_dict_file(**{f"{number}" + "\\" * 100_000: tensor() for number in range(150)})
    with pytest.raises(TorchFileError, match="names and shapes take"):
        SafetensorsFile(read_tensors(memoryview(raw)).tensors)
