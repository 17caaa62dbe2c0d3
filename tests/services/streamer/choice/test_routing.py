"""Routing as values: keys, workers and loads in, a worker out."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from services.streamer.choice.routing import LOOKED_AT, MOST_ABOVE_MEAN, Router, key_of, parted, room_of

PAGE = 32


def workers(number: int) -> list[str]:
    return [f"worker-{each}" for each in range(1, number + 1)]


def router(names: list[str], load: int = 0) -> Router:
    made = Router()
    made.set(dict.fromkeys(names, load))
    return made


def keys(number: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.getrandbits(64) for _ in range(number)]


# Keys -----------------------------------------------------------------------------------------------------------------


def test_prompts_with_the_same_first_pages_have_one_key_and_others_another() -> None:
    system = list(range(4 * PAGE))
    assert key_of([*system, 1, 2, 3], PAGE) == key_of([*system, *range(500)], PAGE)
    assert key_of([*system, 1], PAGE) != key_of([9, *system[1:], 1], PAGE)


def test_a_salt_is_part_of_the_key_because_it_parts_the_pages() -> None:
    prompt = list(range(PAGE))
    assert len({key_of(prompt, PAGE), key_of(prompt, PAGE, "a"), key_of(prompt, PAGE, "b")}) == 3
    assert key_of(prompt, PAGE, "lone \ud800") is not None


def test_a_prompt_without_a_whole_page_has_no_key_unless_it_is_of_a_session() -> None:
    assert key_of(list(range(PAGE - 1)), PAGE) is None
    session = key_of([1, 2], PAGE, session="s")
    assert session is not None and session == key_of(list(range(500)), PAGE, session="s")
    assert session != key_of([1, 2], PAGE, "salt", session="s")


# Choices --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 7, 100])
def test_all_streamers_choose_alike_in_whatever_order_workers_came(number: int) -> None:
    names = workers(number)
    shuffled = names[:]
    random.Random(1).shuffle(shuffled)
    grown = Router()
    for end in range(1, number + 1):
        grown.set(dict.fromkeys(shuffled[:end], 0))
    one = router(names)
    assert [one.choose(key) for key in keys(300)] == [grown.choose(key) for key in keys(300)]


@pytest.mark.parametrize("number", [2, 5, 50])
def test_when_a_worker_leaves_only_its_requests_move_and_they_come_back_with_it(number: int) -> None:
    names = workers(number)
    gone = names[number // 2]
    made = router(names)
    before = {key: made.choose(key) for key in keys(2000)}
    made.set(dict.fromkeys([name for name in names if name != gone], 0))
    after = {key: made.choose(key) for key in before}
    moved = {key for key in before if before[key] != after[key]}
    assert moved == {key for key, name in before.items() if name == gone}
    made.set(dict.fromkeys(names, 0))
    assert {key: made.choose(key) for key in before} == before


@pytest.mark.parametrize("number", [2, 3, 10, 200])
@pytest.mark.parametrize("hot", [0.0, 0.5, 1.0])
def test_no_worker_is_far_above_the_mean_however_hot_a_prefix_is(number: int, hot: float) -> None:
    made = router(workers(number))
    draw = random.Random(number)
    running: list[str] = []
    for step in range(number * 40):
        key = 42 if draw.random() < hot else draw.getrandbits(64)
        name = made.choose(key)
        assert name is not None
        made.add(name, 1)
        running.append(name)
        if step > number * 20:
            made.add(running.pop(draw.randrange(len(running))), -1)
        loads = Counter(running)
        mean = len(running) / number
        # A load is whole: at the mean of 0.3 one request is more than 1.25 times of it.
        assert loads[name] <= max(-(-len(running) // number), MOST_ABOVE_MEAN * mean) + (step > number * 20)
    assert max(loads.values()) / mean <= MOST_ABOVE_MEAN + 1 / mean


def test_one_prefix_stays_with_one_worker_while_the_others_have_as_much_to_do() -> None:
    made = router(workers(4))
    for name in workers(4):
        made.add(name, 40)
    chosen = set()
    for _ in range(2):
        name = made.choose(7)
        assert name is not None
        made.add(name, 1)
        chosen.add(name)
    assert len(chosen) == 1


@pytest.mark.parametrize("total", [0, 1, 5, 99, 100])
@pytest.mark.parametrize("number", [1, 2, 3, 10])
def test_there_is_always_a_worker_with_room(total: int, number: int) -> None:
    # Loads that are as equal as they can be: the smallest of them is as large as it can be.
    assert total // number < room_of(total, number)


@pytest.mark.parametrize("streamers", [2, 3, 8])
def test_streamers_that_do_not_hear_of_each_other_keep_the_bound_together(streamers: int) -> None:
    names = workers(5)
    each = [router(names) for _ in range(streamers)]
    loads: Counter[str] = Counter()
    # One prefix at all of them.
    for turn in range(200 * streamers):
        made = each[turn % streamers]
        name = made.choose(42)
        assert name is not None
        made.add(name, 1)
        loads[name] += 1
        assert loads[name] <= MOST_ABOVE_MEAN * loads.total() / len(names) + streamers


def test_what_other_streamers_run_decides_between_workers_that_are_alike_to_this_one() -> None:
    made = Router()
    made.set({"a": 9, "b": 2, "c": 9})
    assert {made.choose(None, turn) for turn in range(6)} == {"b"}
    made.add("b", 1)
    assert {made.choose(None, turn) for turn in range(6)} == {"a", "c"}


def test_without_a_key_the_least_loaded_is_taken_and_equals_in_turn() -> None:
    made = Router()
    made.set({"a": 3, "b": 1, "c": 1})
    assert {made.choose(None, turn) for turn in range(6)} == {"b", "c"}
    wide = router(workers(LOOKED_AT * 3))
    for name in workers(LOOKED_AT * 3)[1:]:
        wide.add(name, 1)
    assert any(wide.choose(None, turn) == "worker-1" for turn in range(LOOKED_AT * 3))
    assert len({wide.choose(None, turn) for turn in range(LOOKED_AT * 3)}) > LOOKED_AT


def test_whom_to_avoid_is_taken_only_where_there_is_no_other() -> None:
    made = router(["a", "b"])
    assert {made.choose(key, avoid=("a",)) for key in keys(50)} == {"b"}
    assert made.choose(None, avoid=("a",)) == "b"
    assert made.choose(1, avoid=("a", "b")) in ("a", "b")
    assert Router().choose(1) is None and Router().choose(None) is None


def test_what_runs_at_a_worker_that_is_not_ready_counts_again_when_it_is() -> None:
    made = router(["a", "b"])
    made.add("a", 2)
    made.set({"b": 0})
    made.add("a", -1)
    made.set({"a": 0, "b": 0})
    assert made.choose(None) == "b"
    made.add("a", -1)
    made.add("b", 1)
    assert made.choose(None) == "a"


# Phases ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phases", "generating", "prefill"),
    [
        ("", "", ""),
        ("p", "p", ""),
        ("d", "d", ""),
        ("a", "a", ""),
        ("pp", "pp", ""),
        ("pd", "d", "p"),
        ("pdd", "dd", "p"),
        ("pda", "da", "p"),
        ("da", "da", ""),
    ],
)
def test_requests_go_to_workers_that_generate_and_prompts_to_the_others(
    phases: str, generating: str, prefill: str
) -> None:
    known = {f"{phase}{number}": NAMES[phase] for number, phase in enumerate(phases)}
    found = parted(known)
    assert tuple("".join(sorted(name[0] for name in names)) for names in found) == (
        "".join(sorted(generating)), prefill
    )  # fmt: skip
    assert {*found[0]} | {*found[1]} <= {*known} and not {*found[0]} & {*found[1]}


NAMES = {"p": "prefill", "d": "decode", "a": "all"}


@pytest.mark.parametrize("number", [1, 2, 7])
def test_the_home_of_a_key_is_where_it_goes_while_there_is_room(number: int) -> None:
    idle = router(workers(number))
    for key in keys(50):
        assert idle.home(key) == idle.choose(key)
    home = idle.home(key)
    idle.add(home, 100)
    assert idle.home(key) == home and (number == 1 or idle.choose(key) != home)


def test_without_workers_there_is_no_home() -> None:
    assert Router().home(1) == ""
