"""What of a model is in the memory that rank 0 plans, and what a rank takes for options."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tiny_folder import write_tiny_model

from models.choose import choose
from models.config import read_network
from models.executor import Options
from models.shards import shard
from services.worker.parallel.rank import NOT_TOLD, options_of
from services.worker.parallel.shares import shares_in_memory, shares_of


def test_the_memory_of_a_cpu_holds_the_ranks_of_its_machine(tmp_path: Path) -> None:
    """Six query heads over four ranks are two, one, one and two."""
    shape = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}
    network = read_network(write_tiny_model(tmp_path, **shape))
    choice = choose("plain", network, "float32")
    shares = shares_of(network, 4, 2, choice, "float32")
    assert shares == [shard(network, rank, 4) for rank in range(4)]
    assert shares_in_memory(shares, 4, choice) == shares
    heads = [[share.layers[0].attention.heads for share in some] for some in (shares[:2], shares[2:])]  # type: ignore[union-attr]
    largest = max(heads, key=sum)
    found = [share.layers[0].attention.heads for share in shares_in_memory(shares, 2, choice)]  # type: ignore[union-attr]
    assert found == largest and len(found) == 2


TOLD: dict[str, Any] = {
    "dtype": "float32", "pages": 4, "page_tokens": 16, "max_context": 64, "threads": 1, "strict": True,
    "branch_pages": 0, "kv_dtype": "", "graph_rows": 1, "states": 4, "longest_draft": 8,
    "amx": True, "same_bits": False,
}  # fmt: skip


def test_options_arrive_as_they_were_told() -> None:
    assert {*TOLD} == {each.name for each in fields(Options)} - {*NOT_TOLD}
    assert options_of(TOLD) == Options(**TOLD)


@pytest.mark.parametrize(
    "wrong", [{"pages": "4"}, {"pages": 4.0}, {"strict": 1}, {"pages": True}, {"group": "x"}, {"taps": ()}]
)
def test_options_of_other_names_or_types_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="aren't the options of an executor"):
        options_of({**TOLD, **wrong})
    with pytest.raises(ValueError, match="aren't the options of an executor"):
        options_of({name: value for name, value in TOLD.items() if name != "pages"})
