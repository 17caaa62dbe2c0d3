"""Shapes of draft trees, as settings and other servers' configs write them."""

from __future__ import annotations

import pytest

from services.api.settings import SettingsError, load_settings
from services.api.tree_shape import WIDTH, read_shape


def test_without_a_list_a_shape_is_dynamic() -> None:
    assert read_shape(" ").paths == frozenset() and read_shape("").width == WIDTH


@pytest.mark.parametrize("text", ["[[0], [1], [0, 0], [0, 2]]", "[(0,), (1,), (0, 0), (0, 2)]"])
def test_a_shape_is_written_with_either_kind_of_brackets(text: str) -> None:
    shape = read_shape(text)
    assert shape.paths == {(0,), (1,), (0, 0), (0, 2)}
    assert shape.inner == {(), (0,)}
    assert shape.width == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[0], [1, 0]]", r"has \[1, 0\], but not \[1\]"),
        ("[0, 1]", "no list of paths"),
        ("[[0], []]", "no list of paths"),
        ("[[true]]", "no list of paths"),
        ("[[-1]]", "no list of paths"),
        ("[[64]]", "no list of paths"),
        ("__import__('os')", "no list of paths"),
        (str([[rank] for rank in range(60)] + [[0, rank] for rank in range(9)]), "69 tokens, at most 64"),
    ],
)
def test_a_wrong_shape_is_refused_with_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_shape(text)


def test_a_wrong_shape_stops_the_start_with_the_name_of_its_flag() -> None:
    with pytest.raises(SettingsError, match=r"flag --draft-tree-shape: .* no list of paths"):
        load_settings({"draft_tree_shape": "[[0"})


@pytest.mark.parametrize(
    "config",
    ['{"speculative_token_tree": "[(0,), (0, 0)]"}', '{"medusa_choices": [[0], [0, 0]]}'],
)
def test_the_trees_of_vllm_and_medusa_are_shapes(config: str) -> None:
    settings = load_settings({"speculative_config": config})
    assert read_shape(settings.draft_tree_shape).paths == {(0,), (0, 0)}
