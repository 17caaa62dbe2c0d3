"""Two meshes take turns, and their blocks become ratios and a verdict. The meshes are made up; a real comparison is
`python -m bench compare COMMIT`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bench import compare, turns
from bench.compare import ComparedBlock, ComparedCell, block_of, judged, pairs, summary
from bench.streams import Heard


def block(speed: float, *texts: str, failed: int = 0) -> ComparedBlock:
    return ComparedBlock(speed, 0.25, list(texts), failed)


def heard(text: str, tokens: int, sent: float, first: float, ended: float) -> Heard:
    return Heard(text, tokens, 1, tokens, 0, 0, sent, first, ended)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[str, int]], Callable[..., ComparedBlock]]:
    monkeypatch.setattr(compare, "SETTLE_SECONDS", 0.0)
    order: list[tuple[str, int]] = []

    def measure(mesh: Any, turn: int) -> ComparedBlock:
        order.append((mesh, turn))
        return block({"old": 10.0, "new": 9.0}[mesh], f"text {turn}")

    return order, measure


def test_sides_alternate_and_both_get_the_same_requests(asked: Any) -> None:
    order, measure = asked
    seen = pairs(ComparedCell("x", 1.0, measure), ["old", "new"], 0.0, 40)  # type: ignore[list-item]
    warm_up = [("old", 0), ("new", 0)]
    assert order == [*warm_up, ("old", 1), ("new", 1), ("new", 2), ("old", 2), ("old", 3), ("new", 3)]
    assert [(old.speed, new.speed) for old, new in seen] == [(10.0, 9.0)] * 3


def test_a_cell_says_its_ratio_its_rates_and_which_texts_differ() -> None:
    figures = judged([(block(10, "a", "b"), block(9, "a", "c")), (block(20, "d"), block(18, "d"))])
    assert (figures["mean"], figures["pairs"], figures["texts"], figures["differ"]) == (0.9, 2, 3, 1)
    assert (figures["old"], figures["new"], figures["old_first_token_ms"]) == (15.0, 13.5, 250.0)


def test_a_pair_in_which_a_request_failed_has_no_ratio() -> None:
    figures = judged([(block(10), block(0, failed=2)), (block(10), block(10)), (block(10), block(10))])
    assert (figures["pairs"], figures["failed_new"], figures["mean"]) == (2, 2, 1.0)
    assert "mean" not in judged([(block(10), block(10))])


def test_the_verdict_names_the_worst_cell_and_what_differs() -> None:
    good = [(block(10, "a"), block(10, "a")), (block(10, "b"), block(10, "b"))]
    bad = [(block(10, "a"), block(8.9, "z")), (block(10, "b"), block(9.1, "b"))]
    found = summary({"good": judged(good), "bad": judged(bad)})
    assert found["worst"]["cell"] == "bad" and found["worst"]["mean"] < found["mean"]["mean"] < 1
    assert [line.partition(":")[0] for line in found["missed"]] == ["bad", "worst cell, bad", "mean"]


def test_pairs_give_their_geometric_mean_and_students_interval() -> None:
    ratio = turns.of_pairs([0.5, 1.0, 2.0])
    # Logarithms -ln 2, 0, ln 2: deviation ln 2, of three ln 2 / sqrt 3; t of 2 degrees is 4.30.
    reach = 4.30 * math.log(2) / math.sqrt(3)
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((1.0, math.exp(-reach), math.exp(reach)))
    few, many = turns.of_pairs([0.9, 1.1] * 2), turns.of_pairs([0.9, 1.1] * 20)
    assert few.mean == pytest.approx(many.mean) and few.low < many.low < many.high < few.high


@pytest.mark.parametrize(("pairs", "t"), [(2, 12.71), (11, 2.23), (31, 2.04), (32, 1.96), (200, 1.96)])
def test_the_interval_has_students_95_percent_of_its_degrees_of_freedom(pairs: int, t: float) -> None:
    ratios = [math.exp((-1) ** pair) for pair in range(pairs)]
    error = statistics.stdev(map(math.log, ratios)) / math.sqrt(pairs)
    found = turns.of_pairs(ratios)
    assert math.log(found.high / found.low) == pytest.approx(2 * t * error)


def blocks_sent(monkeypatch: pytest.MonkeyPatch, workload: str) -> list[list[str]]:
    """The salts of the blocks of two turns, to each side of a comparison."""
    salts: list[str] = []

    def listen(port: int, body: dict[str, Any]) -> Heard:
        salts.append(body["cache_salt"])
        return heard("a", 1, 0.0, 1.0, 2.0)

    monkeypatch.setattr(compare, "listen", listen)
    measure, found = compare.blocks(workload, 2, "auto", 8, "a cell"), []
    for turn in (1, 2):
        for _ in ("old", "new"):
            salts.clear()
            measure(SimpleNamespace(port=1), turn)  # type: ignore[arg-type]
            found.append(sorted(salts))
    return found


def test_requests_of_a_cold_workload_share_no_text_and_both_sides_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    cold, warm = blocks_sent(monkeypatch, "edit"), blocks_sent(monkeypatch, "chat")
    assert cold[0] == cold[1] and cold[2] == cold[3] and len({*cold[0], *cold[2]}) == 4
    assert warm == [["a cell", "a cell"]] * 4


def test_a_blocks_speed_is_all_tokens_in_all_of_the_time() -> None:
    found = block_of([heard("a", 30, 0.0, 0.5, 2.0), heard("b", 10, 1.0, 2.0, 4.0)])
    assert found == ComparedBlock(10.0, 0.75, ["a", "b"], 0)
    assert block_of([heard("a", 30, 0.0, 0.5, 2.0), None]) == ComparedBlock(0.0, 0.0, [], 1)
