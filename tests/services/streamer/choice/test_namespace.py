"""Ids of namespaces: what must be apart never meets, what was agreed to be shared does."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.api.names import is_name
from services.streamer.choice.namespace import NamespaceIds

PARTS = st.tuples(st.binary(max_size=80), st.text(max_size=6), st.from_regex(r"[A-Za-z0-9._-]{0,4}", fullmatch=True))


@given(st.lists(PARTS, min_size=2, max_size=20, unique=True))
@settings(max_examples=200, deadline=None)
def test_other_keys_salts_or_names_never_give_the_same_id(callers: list[tuple[bytes, str, str]]) -> None:
    namespaces = NamespaceIds()
    assert len({namespaces.id_of(*each) for each in callers}) == len(callers)


def test_what_is_moved_from_one_part_to_another_makes_another_id() -> None:
    namespaces = NamespaceIds("x")
    pieces = ("", "a", "ab", "b", "a\x00", "\x00", "x")
    callers = [(key.encode(), salt, name) for key, salt, name in product(pieces, pieces, pieces) if name != "x"]
    ids = {namespaces.id_of(*each) for each in callers}
    assert len(ids) == len(callers)
    assert namespaces.id_of(b"", "", "x") not in ids


def test_an_id_is_the_same_everywhere_and_after_every_restart() -> None:
    assert NamespaceIds().id_of(b"key", "salt", "name") == NamespaceIds("other").id_of(b"key", "salt", "name")
    # What was learned under these is found again by them.
    assert NamespaceIds().id_of(b"") == "3d3e9956ca00e2eca2595d00af6ea625/4672bd2fdad3a9e72da7f9d44c7052f3"
    shared = NamespaceIds("team").id_of(b"", "", "team")
    assert shared == "bb29120a1601e68bef19f6025aad2201/748a83723017fa22b8daedf01c283010"


def test_a_listed_name_is_one_namespace_for_all_who_ask_for_it() -> None:
    namespaces = NamespaceIds(" team, docs-1 ,,")
    for name in ("team", "docs-1"):
        assert len({namespaces.id_of(key, salt, name) for key in (b"", b"a", b"b") for salt in ("", "s")}) == 1
    assert namespaces.id_of(b"a", "", "team") != namespaces.id_of(b"a", "", "docs-1")
    # It takes both sides: who asks for no name, or for one that isn't listed, is alone.
    for name in ("", "Team", "teams"):
        assert namespaces.id_of(b"a", "", name) != namespaces.id_of(b"b", "", name)


def test_computed_prompts_are_shared_within_a_key_and_salt_and_by_those_who_agreed() -> None:
    namespaces = NamespaceIds("team")
    own = namespaces.salt_of(b"a", "", "")
    assert own == namespaces.salt_of(b"a", "", "drafts-elsewhere")
    assert len({own, namespaces.salt_of(b"a", "s"), namespaces.salt_of(b"b"), namespaces.salt_of(b"b", "s")}) == 4
    assert namespaces.salt_of(b"a", "s", "team") == namespaces.salt_of(b"b", "", "team") != own
    # Without keys there is one caller, and its salts are its own.
    assert [namespaces.salt_of(b"", salt) for salt in ("", "s")] == ["", "s"]


def test_the_empty_name_is_never_shared() -> None:
    for setting in ("", ",", " , "):
        namespaces = NamespaceIds(setting)
        assert namespaces.id_of(b"a") != namespaces.id_of(b"b")


def test_an_id_is_its_owner_and_128_bits_in_hex_and_holds_nothing_of_the_key() -> None:
    key = b"abcdef0123456789"
    made = NamespaceIds().id_of(key, "salt", "name")
    assert re.fullmatch("[0-9a-f]{32}/[0-9a-f]{32}", made)
    assert key.decode() not in made and key.hex() not in made


def test_all_namespaces_of_a_key_have_one_owner() -> None:
    """Quotas of the store are by owner."""
    namespaces = NamespaceIds("team")

    def owner(key: bytes, salt: str = "", name: str = "") -> str:
        return namespaces.id_of(key, salt, name).partition("/")[0]

    assert owner(b"a") == owner(b"a", "salt") == owner(b"a", "", "name") == owner(b"a", "salt", "name")
    assert len({owner(b""), owner(b"a"), owner(b"b"), owner(b"a", "", "team")}) == 4
    assert owner(b"a", "", "team") == owner(b"b", "", "team")


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64, "..", "-"])
def test_names_are_of_harmless_characters(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a/b", "a,b", "é", "a\n", "\x00", "a:b"])
def test_everything_else_is_no_name(name: str) -> None:
    assert not is_name(name)
