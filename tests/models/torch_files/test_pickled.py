"""What the machine reads, and that it refuses everything else by name. Nothing in a file is ever run."""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nothing_happens import nothing_happens
from torch_file_writer import Built, Call, Kept, Named, Raw, encoded, pickle_of, tensor

from models.errors import TorchFileError
from models.torch_files.names import Name, Rebuilt, Storage
from models.torch_files.pickled import MAX_BYTES, MAX_STEPS, read_pickle


def refusal(raw: bytes) -> str:
    with nothing_happens(), pytest.raises(TorchFileError) as refused:
        read_pickle(raw)
    return str(refused.value)


def test_values_are_read_as_they_are() -> None:
    value = {"a": [1, -2, 1 << 40, 0.5], "b": (None, True, False), 3: "é", "d": {}}
    assert read_pickle(pickle_of(value)) == value
    assert read_pickle(pickle.dumps(value, protocol=2)) == value


def test_a_tensor_is_read_without_its_values() -> None:
    (found,) = read_pickle(pickle_of({"w": tensor(offset=2)})).values()
    assert found == Rebuilt(Storage("0", Name("torch", "FloatStorage"), 6), 2, (2, 3), (3, 1), None)


def test_the_attribute_of_a_modules_state_dict_is_left_out() -> None:
    built = Built(Call("collections OrderedDict", ()), {"_metadata": {"": {"version": 1}}})
    assert read_pickle(pickle_of(built)) == {}
    assert "attributes" in refusal(pickle_of(Built(Call("collections OrderedDict", ()), {"__class__": 1})))
    assert "attributes" in refusal(pickle_of(Built({}, 7)))


class Reduced:
    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


HERE = "/tmp/never"


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("called", "given"),
    [
        (__import__("os").system, (f"touch {HERE}",)), (eval, ("1",)), (exec, ("1",)), (open, (HERE, "w")),
        (getattr, (1, "real")), (__import__, ("os",)), (subprocess.Popen, (["true"],)), (bytearray, (1 << 40,)),
        (print, ("x",)), (type, ("x", (), {})),
    ],
)  # fmt: skip
def test_what_would_be_called_is_refused_and_not_imported(
    called: Callable[..., Any], given: tuple[Any, ...], protocol: int
) -> None:
    told = refusal(pickle.dumps({"w": Reduced(called, given)}, protocol=protocol))
    # Other protocols than torch's are refused by their number, or by the first opcode that isn't torch's.
    assert f".{called.__name__}," in told if protocol in (1, 2) else "protocol" in told or "opcode" in told
    assert not Path(HERE).exists()


@pytest.mark.parametrize(
    "name",
    [
        "posix system", "os system", "builtins eval", "torch load", "torch.nn.modules.linear Linear", "torch Tensor",
        "torch._utils _rebuild_sparse_tensor", "torch._utils _rebuild_tensor_v1", "torch.storage _load_from_bytes",
        "torch._tensor _rebuild_from_type_v2", "torch ComplexFloatStorage", "numpy.core.multiarray scalar",
        "collections OrderedDict.update", "collections OrderedDict\0", "torch FloatStorage ", "_codecs encode",
    ],
)  # fmt: skip
def test_a_name_that_is_not_read_is_refused_by_itself(name: str) -> None:
    assert f"its pickle names {'.'.join(name.rsplit(' ', 1))}," in refusal(pickle_of({"w": Named(name)}))


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (b"i", "INST"), (b"o", "OBJ"), (b"\x81", "NEWOBJ"), (b"\x92", "NEWOBJ_EX"), (b"\x93", "STACK_GLOBAL"),
        (b"\x82\1", "EXT1"), (b"P0\n", "PERSID"), (b"0", "POP"), (b"2", "DUP"), (b"I1\n", "0x49"), (b"\xff", "0xff"),
    ],
)  # fmt: skip
def test_an_opcode_that_is_not_read_is_refused_by_name(code: bytes, named: str) -> None:
    assert refusal(b"\x80\x02}" + code + b".") == f"its pickle has the opcode {named}"


@pytest.mark.parametrize(
    "value",
    [
        Call("collections OrderedDict", ([],)), Call("collections OrderedDict", 1), Call("torch FloatStorage", ()),
        Call("torch._utils _rebuild_tensor_v2", ()), Call("torch._utils _rebuild_parameter", (1, True, {})),
        Call("torch._utils _rebuild_parameter", (tensor(), True, {"hook": 1})), tensor(hooks={"hook": 1}),
        tensor(more=({"conj": True},)), tensor(more=(None, None)), Raw(b"K\1)R"), Raw(b"}" + encoded({}) + b"R"),
        Kept(("storage", "FloatStorage", "0", "cpu", 6)), Kept(("module", Named("torch FloatStorage"), "0", "", "")),
        Kept(7), Kept(("storage", Named("torch._utils _rebuild_parameter"), "0", "cpu", 6)),
        {"w": {(1, 2): 3}}, {"w": {1.0: 3}}, {"w": Raw(b"}(K\1K\2K\1K\3u")}, {"w": Raw(b"](K\1K\2u")},
        {"w": Raw(b"}(K\1K\2e")}, {"w": Raw(b"}(K\1u")}, {"w": Raw(b")K\1a")},
    ],
)  # fmt: skip
def test_what_torch_save_does_not_write_is_refused(value: Any) -> None:
    assert refusal(pickle_of(value)).startswith("its pickle ")


@pytest.mark.parametrize(
    "raw",
    [
        b"", b".", b"\x80", b"\x80\x02.", b"\x80\x02}", b"\x80\x02}}.", b"\x80\x02(}.", b"\x80\x02}.}", b"\x80\x02t.",
        b"\x80\x02\x85.", b"\x80\x02(\x85.", b"\x80\x02}(R.", b"\x80\x02h\1.", b"\x80\x02X\xff\xff\xff\xffa.",
        b"\x80\x02X\1\0\0\0\xff.", b"\x80\x02ctorch", b"\x80\x02c" + b"a" * 200 + b"\nb\n.", b"\x80\x02c\xff\n\xff\n.",
        b"\x80\x02Q.", b"\x80\x02q\1.", b"\x80\x02\x8a\xff" + b"\1" * 255 + b".", b"\x80\x02r\xff\xff\xff\xff.",
        b"\x80\x02}s.", b"\x80\x02K\1}b.",
    ],
)  # fmt: skip
def test_a_damaged_pickle_is_refused(raw: bytes) -> None:
    assert refusal(raw).startswith("its pickle ")


@pytest.mark.parametrize("protocol", [0, 1, 3, 4, 5, 255])
def test_another_protocol_is_refused_by_its_number(protocol: int) -> None:
    assert f"protocol {protocol};" in refusal(b"\x80" + bytes([protocol]) + b"}.")


# What would take all memory or never end ------------------------------------------------------------------


def test_deep_and_endless_values_are_read_without_recursion() -> None:
    deep = b"\x80\x02" + b")" + b"\x85" * 1_000_000 + b"."
    assert type(read_pickle(deep)) is tuple
    loop = b"\x80\x02}q\1X\1\0\0\0ah\1s."
    assert (found := read_pickle(loop))["a"] is found
    assert "as the key" in refusal(b"\x80\x02})" + b"\x85" * 100_000 + b"K\1s.")


def test_the_number_of_opcodes_and_of_bytes_is_bounded() -> None:
    assert f"more than {MAX_STEPS} opcodes" in refusal(b"\x80\x02(" + b"}" * MAX_STEPS + b"t.")
    assert f"at most {MAX_BYTES >> 20}" in refusal(bytes(MAX_BYTES + 1))
