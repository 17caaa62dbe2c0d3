"""Archives that torch.save doesn't write are refused by what is wrong with them; no entry is larger than the file."""

from __future__ import annotations

import io
import struct
import zipfile

import pytest
from torch_file_writer import VALUES, packed, pickle_of, state_dict_file, tensor

from models.errors import TorchFileError
from models.torch_files.archive import read_archive

WHOLE = state_dict_file()
LOCAL, CENTRAL, END = b"PK\3\4", b"PK\1\2", b"PK\5\6"


def refusal(raw: bytes) -> str:
    with pytest.raises(TorchFileError) as refused:
        read_archive(memoryview(raw))
    return str(refused.value)


def changed(header: bytes, number: int, at: int, form: str, value: int) -> bytes:
    """`WHOLE` with another value in its nth header of that kind."""
    raw, place = bytearray(WHOLE), -1
    for _ in range(number + 1):
        place = raw.index(header, place + 1)
    struct.pack_into(form, raw, place + at, value)
    return bytes(raw)


def renamed(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("a/data.pkl"), b"}.")
        info = zipfile.ZipInfo("a/x")
        info.filename = name
        archive.writestr(info, b"x")
    return file.getvalue()


def test_entries_are_pieces_of_the_file_by_their_names_in_its_folder() -> None:
    found = read_archive(memoryview(WHOLE))
    assert set(found) == {"data.pkl", "byteorder", "data/0", "version"}
    assert found["data/0"] == VALUES and found["data/0"].obj is WHOLE


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_bomb_is_not_unpacked(method: int) -> None:
    raw = packed(pickle_of({"w": tensor()}), {"0": bytes(100 << 20)}, method=method)
    assert len(raw) < 1 << 20
    assert f"its entry archive/data.pkl is packed (method {method})" in refusal(raw)


@pytest.mark.parametrize("name", ["/etc/passwd", "a/../../x", "../x", "a//x", "a/.", "a\\x", "a/\x1b[2J", "a/x\n", ""])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    assert "has a name that torch.save doesn't write" in refusal(renamed(name))


def test_two_entries_of_one_name_are_refused() -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        raw = renamed("a/data.pkl")
    assert refusal(raw) == "two of its entries have the same name"


def test_entries_in_several_folders_or_none_are_refused() -> None:
    assert "aren't in one folder" in refusal(renamed("b/x"))
    assert "aren't in one folder" in refusal(renamed("x"))
    assert "aren't in one folder" in refusal(END + bytes(18))


def test_two_names_for_the_same_bytes_are_refused() -> None:
    raw = changed(CENTRAL, 2, 42, "<I", WHOLE.index(LOCAL))
    assert "overlaps another" in refusal(raw) or "another name in its place" in refusal(raw)


def test_an_entry_inside_another_is_refused() -> None:
    inner = LOCAL + bytes(22) + struct.pack("<2H", 9, 0) + b"archive/x" + b"body"
    raw = bytearray(packed(pickle_of("") + inner, x=b"body"))
    entry = raw.rindex(CENTRAL)
    assert raw[entry + 46 :].startswith(b"archive/x")
    struct.pack_into("<I", raw, entry + 42, raw.index(inner))
    assert refusal(bytes(raw)) == "its entry archive/x overlaps another"


@pytest.mark.parametrize("place", [len(WHOLE) - 1, 1 << 31, (1 << 32) - 2])
def test_an_entry_outside_the_file_is_refused(place: int) -> None:
    assert "isn't where the archive says" in refusal(changed(CENTRAL, 1, 42, "<I", place))


def test_an_entry_larger_than_the_file_is_refused() -> None:
    raw = bytearray(changed(CENTRAL, 2, 20, "<I", 1 << 31))
    struct.pack_into("<I", raw, raw.index(CENTRAL, raw.index(CENTRAL, raw.index(CENTRAL) + 1) + 1) + 24, 1 << 31)
    assert refusal(bytes(raw)) == "its entry archive/data/0 is larger than the file"


def test_a_size_that_should_stand_elsewhere_and_does_not_is_refused() -> None:
    assert "has no size or no place" in refusal(changed(CENTRAL, 2, 24, "<I", 0xFFFFFFFF))


def test_sizes_of_64_bits_are_read() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, archive.open("a/data.pkl", "w", force_zip64=True) as entry:
        entry.write(b"}.")
    raw = bytearray(file.getvalue())
    at = raw.index(CENTRAL)
    (name, more) = struct.unpack_from("<2H", raw, at + 28)
    wide = struct.pack("<2H3Q", 1, 24, 2, 2, 0)
    begin, directory = at, raw[at : at + 46 + name]
    struct.pack_into("<2I", directory, 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<H", directory, 30, len(wide))
    struct.pack_into("<I", directory, 42, 0xFFFFFFFF)
    assert more == 0
    directory += wide
    locator = begin + len(directory)
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(directory), begin)
    end += struct.pack("<4sLQL", b"PK\6\7", 0, locator, 1) + END + bytes(4) + b"\xff" * 12 + bytes(2)
    made = bytes(raw[:begin] + directory + end)
    assert read_archive(memoryview(made)) == {"data.pkl": b"}."}


@pytest.mark.parametrize("kept", [*range(0, len(WHOLE), 23), len(WHOLE) - 1])
def test_a_file_that_is_cut_short_is_refused(kept: int) -> None:
    assert "cut short" in refusal(WHOLE[:kept])


def test_a_changed_byte_of_an_entry_is_seen() -> None:
    raw = WHOLE.replace(VALUES, VALUES[:-1] + b"\0")
    assert "checksum of its entry archive/data/0 is wrong" in refusal(raw)


@pytest.mark.parametrize(
    ("at", "form", "value", "told"),
    [
        (4, "<H", 1, "several disks"), (6, "<H", 1, "several disks"), (20, "<H", 9, "a comment"),
        (10, "<H", 999, "directory isn't where"), (12, "<I", 1 << 31, "directory isn't where"),
        (16, "<I", 0, "directory isn't where"), (16, "<I", 1 << 31, "directory isn't where"),
    ],
)  # fmt: skip
def test_an_end_that_lies_is_refused(at: int, form: str, value: int, told: str) -> None:
    assert told in refusal(changed(END, 0, at, form, value))


@pytest.mark.parametrize(
    ("at", "form", "value", "told"),
    [
        (8, "<H", 1, "is encrypted"), (28, "<H", 60000, "directory is damaged"), (0, "<I", 0, "directory is damaged"),
        (10, "<H", 8, "is packed (method 8)"), (20, "<I", 3, "is packed (method 0)"),
    ],
)  # fmt: skip
def test_a_directory_that_lies_is_refused(at: int, form: str, value: int, told: str) -> None:
    assert told in refusal(changed(CENTRAL, 3, at, form, value))


def test_the_form_of_old_torch_is_named() -> None:
    assert "the form of torch before 1.6" in refusal(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.")
    assert "no zip archive" in refusal(b"\x7fELF" + bytes(100))
    assert "no zip archive" in refusal(b"")
