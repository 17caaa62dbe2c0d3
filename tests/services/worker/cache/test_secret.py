"""All workers of a mesh name pages with the same secret, and nobody else knows it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mesh.errors import Insecure
from mesh.security import make_keys
from services.worker.cache import secret
from services.worker.cache.secret import FILE, name_of, page_secret


def test_workers_on_one_machine_have_one_secret_in_a_file_of_their_own(tmp_path: Path) -> None:
    found = {page_secret("", tmp_path) for _ in range(3)}
    # One that saw no file and then comes second takes the first one's.
    found.add(secret._make(tmp_path / FILE))
    assert len(found) == 1 and len(found.pop()) == 32
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_broken_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"short")
    found = page_secret("", tmp_path)
    assert found == page_secret("", tmp_path) == (tmp_path / FILE).read_bytes() and len(found) == 32


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(bytes(32))
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=FILE):
        page_secret("", tmp_path)


def test_with_keys_it_follows_from_those_of_the_mesh(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        make_keys(folder, ["worker"])
    assert page_secret(str(one), tmp_path) == page_secret(str(one), tmp_path / "elsewhere")
    assert page_secret(str(one), tmp_path) != page_secret(str(other), tmp_path)
    assert page_secret(str(one), tmp_path).hex() not in (one / "mesh.secret").read_text()
    assert not (tmp_path / FILE).exists()


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    make_keys(tmp_path, ["worker"])
    (tmp_path / "mesh.secret").chmod(0o644)
    with pytest.raises(Insecure, match="can be read by others"):
        page_secret(str(tmp_path), tmp_path)


def test_a_secret_is_told_by_a_name_that_does_not_tell_it() -> None:
    assert name_of(bytes(32)) == name_of(bytes(32)) != name_of(bytes([1] * 32))
    assert len(name_of(bytes(32))) == 16
