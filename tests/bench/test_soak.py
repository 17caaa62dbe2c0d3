"""The logic of a soak: who asks what, what became of a stream, which fault comes when, what is counted, what grows."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import resource
import socket
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.failures.soak import StreamEnd, counted, missed
from bench.failures.soak_faults import LOST_WITHIN_S, Faults, Struck, clients_of, deck, limited
from bench.failures.soak_growth import HOUR, LEAST_S, WARM_S, ProcessSample, common_slope, picture, row, slopes
from bench.failures.soak_traffic import KINDS, callers, fate, is_changed, longest_gap
from bench.running_mesh import ROLES
from loadtest.outcome import FIRST, Outcome


def outcome(text: str = "", error: str = "", **more: Any) -> Outcome:
    return Outcome(0.0, error=error, pieces={0: list(text)}, chunks=len(text), **more)


# Streams


def test_thirty_two_callers_are_of_all_kinds_and_ask_the_same_whenever_they_are_made() -> None:
    made = callers(32, 2, 64, 1, "m")
    assert Counter(each.kind for each in made) == {name: kind.share for name, kind in KINDS.items()}
    numbers = [request.number for each in made for request in each.requests]
    assert numbers == list(range(64))
    again = callers(32, 2, 64, 1, "m")
    assert [each.requests[1].twin() for each in made] == [each.requests[1].twin() for each in again]
    assert {each.kind for each in callers(8, 1, 64, 1, "m")} == set(KINDS)


def test_a_twin_is_the_same_request_without_drafts_and_every_second_round_has_a_salt() -> None:
    caller = callers(2, 2, 64, 1, "m")[1]
    assert caller.kind == "sampled"
    rounds = itertools.islice(caller.rounds(random.Random(1)), 8)
    asked = [orjson.loads(request.again(salt)[1]) for request, salt in rounds]
    salts = [each.pop("cache_salt", "") for each in asked]
    assert [bool(each) for each in salts] == [False, False, True, True, False, False, True, True]
    assert salts[2] == salts[3] != salts[6]
    twins = [orjson.loads(each.twin()[1]) for each in caller.requests]
    assert [each.pop("speculation") for each in twins] == [{"off": True}] * 2
    assert asked == twins * 4
    assert twins[0]["temperature"] == 0.8 and twins[0]["seed"] != twins[1]["seed"]


@pytest.mark.parametrize(
    ("heard", "with_streamer", "expected"),
    [
        (outcome("ab"), False, "finished"),
        (outcome("a", abandoned=True), False, "left"),
        (outcome(error="http_429", retry_after="1"), False, "refused"),
        (outcome(error="http_503", retry_after="1"), False, "refused"),
        (outcome(error="http_503"), False, "failed"),
        (outcome("a", error="reset"), True, "lost"),
        (outcome("a", error="truncated"), False, "failed"),
        # An error that was told, or none in time, isn't a streamer's death.
        (outcome("a", error="sse_error"), True, "failed"),
        (outcome("a", error="timeout"), True, "failed"),
    ],
)
def test_what_became_of_a_stream(heard: Outcome, with_streamer: bool, expected: str) -> None:
    assert fate(heard, with_streamer) == expected


def test_a_text_is_changed_where_it_differs_from_its_twin_as_far_as_it_came() -> None:
    assert not is_changed(outcome("abc"), "abc") and is_changed(outcome("ab"), "abc")
    assert not is_changed(outcome("ab", error="reset"), "abc") and is_changed(outcome("ac", error="reset"), "abc")
    assert not is_changed(outcome("", abandoned=True), "abc") and is_changed(outcome("b", abandoned=True), "abc")


def test_the_longest_gap_begins_with_the_request() -> None:
    heard = outcome("abc", started=1.0, first=1.5)
    heard.gaps = array("f", [FIRST, 2.0, 0.1])
    assert longest_gap(heard) == 2.0
    heard.first = 4.0
    assert longest_gap(heard) == 3.0


# Faults


def test_every_fault_comes_once_in_a_round_and_the_seed_decides_the_order() -> None:
    names = [f"fault {number}" for number in range(10)]
    drawn = list(itertools.islice(deck(1, names), 30))
    rounds = [drawn[:10], drawn[10:20], drawn[20:]]
    assert all(sorted(each) == names for each in rounds) and rounds[0] != rounds[1]
    assert drawn == list(itertools.islice(deck(1, names), 30)) != list(itertools.islice(deck(2, names), 30))


def test_clients_of_a_process_are_those_whose_connections_it_has_accepted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(server.getsockname()) as first, socket.create_connection(server.getsockname()):
            accepted, _ = server.accept()
            with accepted:
                assert clients_of(os.getpid(), port) == {first.getsockname()[1]}


def test_a_limit_of_another_process_is_given_back_and_one_that_has_ended_is_no_matter() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with limited(os.getpid(), resource.RLIMIT_FSIZE, 4096):
        assert resource.getrlimit(resource.RLIMIT_FSIZE) == (4096, before[1])
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before


async def test_connections_break_with_a_streamer_that_was_struck_and_with_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("bench.failures.soak_faults.time.monotonic", lambda: now)
    monkeypatch.setattr("bench.failures.soak_faults.instances", lambda mesh, role: {f"{role}-1": 1 << 30})
    monkeypatch.setattr("bench.failures.soak_faults.clients_of", lambda pid, port: {5000})
    mesh: Any = type("Mesh", (), {"port": 1, "process": None})
    faults = Faults(mesh, tmp_path, 1, lambda seconds: asyncio.sleep(0))
    assert {f"{how} {role}" for how in ("kill", "stop") for role in ROLES} < set(faults.kinds)
    # No process has that number, so it has ended.
    assert "not struck" in await faults.strike("kill worker")
    assert not faults.broke_with_streamer(5000, unheard=True)
    await faults.strike("kill streamer")
    assert faults.broke_with_streamer(5000, unheard=False)
    # Another's port: only where it may have waited to be accepted.
    assert not faults.broke_with_streamer(5001, unheard=False) and faults.broke_with_streamer(5001, unheard=True)
    with monkeypatch.context() as lives:
        lives.setattr("bench.failures.soak_faults.has_ended", lambda pid: False)
        assert not faults.broke_with_streamer(5000, unheard=True)
    now += LOST_WITHIN_S
    assert not faults.broke_with_streamer(5000, unheard=False) and not faults.broke_with_streamer(5001, unheard=True)


# Figures


def test_what_happens_is_put_down_to_the_fault_before_it() -> None:
    struck = [Struck(20.0, "kill worker"), Struck(40.0, "roll"), Struck(60.0, "kill worker")]
    ends = [
        StreamEnd(10.0, "chat", "finished", False, 0.5),
        StreamEnd(25.0, "chat", "finished", True, 2.25),
        StreamEnd(45.0, "edit", "failed", False, 0.0),
        StreamEnd(65.0, "chat", "lost", False, 0.0),
    ]

    def before(at: float) -> str:
        return next((each.fault for each in reversed(struck) if each.at <= at), "nothing")

    told = counted(ends, [41.0, 42.0], struck, before)
    assert told["streams"] == {"begun": 4, "finished": 2, "left": 0, "refused": 0, "lost": 1, "failed": 1}
    assert (told["faults"], told["changed"], told["not ready, s"], told["worst gap, s"]) == (3, 1, 2, 2.25)
    kill, roll = told["by fault"]["kill worker"], told["by fault"]["roll"]
    assert (kill["struck"], kill["changed"], kill["lost"], kill["worst gap, s"]) == (2, 1, 1, 2.25)
    assert (roll["struck"], roll["failed"], roll["not ready, s"]) == (1, 1, 2)
    assert missed(told) == ["1 streams failed that could be saved", "1 texts changed", "2 seconds not ready"]
    assert missed(counted(ends[:1], [], [], lambda at: "nothing")) == []


# Growth


def life(
    seconds: float, begin: float = 0.0, pid: int = 1, role: str = "worker", mb_an_hour: float = 0.0
) -> list[ProcessSample]:
    """Of a process with 100 MB that is read with noise, every 5 s."""
    noise = random.Random(pid)
    found = []
    for step in range(int(seconds / 5)):
        mb = 100.0 * pid + mb_an_hour * 5 * step / HOUR + noise.uniform(-1, 1)
        found.append(ProcessSample(begin + 5 * step, role, f"{role}-1", pid, (mb, 20.0, 4.0)))
    return found


def test_growth_is_seen_in_single_processes_whatever_their_levels_are() -> None:
    # One after the other, each on a higher level: that alone is no growth.
    flat = [each for pid in (1, 2, 3) for each in life(600, 600 * pid, pid)]
    slope = slopes(flat)["memory, MB"]["worker"]
    assert slope.low < 0 < slope.high and not slope.grows and slope.processes == 3
    growing = [each for pid in (1, 2, 3) for each in life(600, 600 * pid, pid, mb_an_hour=60.0)]
    slope = slopes(growing)["memory, MB"]["worker"]
    assert slope.low < 60 < slope.high and slope.high - slope.low < 30 and slope.grows
    threads = slopes(growing)["threads"]["worker"]
    assert (threads.slope, threads.level, threads.grows) == (0.0, 4.0, False)


def test_the_beginning_of_a_process_and_short_lives_are_left_out() -> None:
    grown = life(WARM_S + LEAST_S + 10, mb_an_hour=0.0)
    young = [each._replace(values=(500.0 + each.at, 20.0, 4.0)) for each in life(WARM_S, begin=1000.0, pid=2)]
    assert slopes(young)["memory, MB"] == {}
    assert slopes([*grown, *young])["memory, MB"]["worker"].processes == 1
    began = [each._replace(values=(each.at, 20.0, 4.0)) if each.at < WARM_S else each for each in grown]
    assert not slopes(began)["memory, MB"]["worker"].grows


def test_samples_that_depend_on_each_other_make_no_narrow_interval() -> None:
    # A walk: it has a slope in any stretch of time, and means nothing by it.
    chance = random.Random(3)
    walks = [list(itertools.accumulate(chance.gauss(0, 1) for _ in range(120))) for _ in range(40)]
    found = [common_slope([[(5.0 * step, 1000 + at) for step, at in enumerate(walk)]]) for walk in walks]
    alike = [each is not None and each.low < 0 < each.high for each in found]
    assert sum(alike) > 12
    assert common_slope([]) is None


def test_a_row_has_no_infinite_numbers_and_the_picture_is_one_file_without_much_in_it() -> None:
    short = slopes(life(WARM_S + LEAST_S + 10))
    assert row(short)["memory, MB"]["worker"]["level"] == pytest.approx(100.0, abs=1.0)
    assert "Infinity" not in orjson.dumps(row({"threads": {"up": common_slope([[(0, 1), (5, 1)]])}})).decode()  # type: ignore[dict-item]
    taken = [each for role in ROLES for each in life(3600, role=role)]
    drawn = picture(taken, [float(second) for second in range(0, 3600, 2)], 60.0)
    assert drawn.startswith("<svg xmlns=") and drawn.count("<svg") == 5 and drawn.count("worker-1") == 3
    assert len(drawn) < 100_000


