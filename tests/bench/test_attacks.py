"""What is counted of attacks, from samples made by hand; and the small things that attack scripts are made of."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import attack_watch, attacks
from bench.__main__ import NAMES
from bench.attack_causes import PipedMesh
from bench.attack_scripts import ATTACKS, Seen, _at_once, _head
from bench.attack_watch import Ended, GoodStreams, Sample, Watch, restarts
from bench.attacks import Result, Window
from bench.stepped_clock import SteppedClock


def sample(at: float, ready: int = 200, probe: int = 200, probe_s: float = 0.1, after: int = -1, **pids: int) -> Sample:
    return Sample(at, ready, probe, probe_s, ready if after < 0 else after, pids)


@pytest.mark.parametrize(
    ("ready", "probe", "probe_s", "agree"),
    [
        (200, 200, 9.0, True),  # late is served
        (200, 429, 0.1, True),  # a full server works
        (200, 503, 0.1, False),
        (200, 0, 10.0, False),
        (503, 503, 0.1, True),
        (503, 200, 5.0, True),  # it waited for what was missing
        (503, 200, 0.1, False),
        (0, 0, 10.0, True),
        (0, 200, 0.1, False),
    ],
)
def test_ready_is_held_to_a_request(ready: int, probe: int, probe_s: float, agree: bool) -> None:
    assert sample(0.0, ready, probe, probe_s).agree is agree


def test_what_changes_while_the_probe_is_under_way_is_no_contradiction() -> None:
    assert sample(0.0, ready=503, probe=200, probe_s=0.8, after=200).agree
    assert sample(0.0, ready=200, probe=503, probe_s=0.8, after=503).agree


def test_restarts_are_other_processes_within_the_time() -> None:
    seen = [sample(1, worker=10), sample(2, worker=11), sample(3), sample(4, worker=12), sample(5, worker=13)]
    assert restarts(seen, 1.5, 4.5) == {"worker": 2}
    assert restarts(list(reversed(seen)), 4.5, 9.0) == {"worker": 1}


def windowed(tmp_path: Path, seen: Seen, samples: list[Sample], ended: list[Ended]) -> Result:
    streams = GoodStreams(0, [], [])
    streams.ended = ended
    watch: Any = Watch.__new__(Watch)
    watch.samples = samples
    return attacks._result(Window("one", seen, 10.0, 12.0, 1.0, 20.0, {}, {"up": (30.0, 9)}), streams, watch)


def test_an_attack_is_charged_with_what_ended_in_its_time_and_not_with_its_own_kills(tmp_path: Path) -> None:
    samples = [sample(9, worker=1, proposer=5), sample(13, probe=503, worker=2, proposer=6), sample(21, probe=503)]
    ended = [Ended(9.9, "failed"), Ended(11.0, "fine"), Ended(12.0, "failed", "why"), Ended(19.0, "changed")]
    result = windowed(tmp_path, Seen("said", killed=("worker",)), samples, ended)
    assert (result.fine, result.failed, result.changed, result.disagreed_s) == (1, 1, 1, 1)
    assert (result.restarted, result.seconds, result.reasons) == ({"proposer": 1}, 2.0, ["why"])
    missed = list(attacks._missed([("one", result)]))
    assert missed == [
        "one: 1 good streams failed, 1 changed",
        "one: ready was wrong in 1 s",
        'one: restarted without being killed: {"proposer": 1}',
    ]
    line = attacks._line("one", result)
    assert line.startswith("one ") and "1xproposer" in line and "- > 30, - > 9" in line and line.endswith("said")


def test_a_mesh_that_serves_late_or_never_again_misses_the_bar(tmp_path: Path) -> None:
    result = windowed(tmp_path, Seen(), [], [])
    assert list(attacks._missed([("one", result)])) == []
    for back in (5.1, None):
        late = Window("one", Seen(), 10.0, 12.0, back, 20.0, {}, {})
        watch: Any = Watch.__new__(Watch)
        watch.samples = []
        late_result = attacks._result(late, GoodStreams(0, [], []), watch)
        assert list(attacks._missed([("one", late_result)])) == [f"one: back after {back} s, at most 5.0"]


def test_an_attack_that_breaks_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(mesh: Any) -> Seen:
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(attacks, "sizes", lambda mesh: {})
    monkeypatch.setattr(attacks, "is_serving", lambda port: True)
    monkeypatch.setattr(attacks, "CALM_S", 0.0)
    mesh: Any = type("Mesh", (), {"port": 0})()
    window = attacks._one(mesh, "one", refuses)
    assert window.seen.said == "broke off: ConnectionRefusedError: nobody listens"


def test_nobody_who_listens_is_no_answer() -> None:
    assert attack_watch.answer(1, "GET", "/", timeout=1.0) == (0, b"")


def test_results_of_many_calls_are_counted() -> None:
    assert _at_once(2, lambda each: each, [200, 200, 503]) == "2 x 200, 1 x 503"
    assert _head("/x", 7).endswith(b"Content-Length: 7\r\n\r\n")


def test_every_attack_can_be_chosen_and_the_benchmark_is_listed() -> None:
    assert "attacks" in NAMES
    options = attacks._parser().parse_args([])
    assert [name for name, _ in attacks._schedule(options, mounted=False, clock=False)] == list(ATTACKS)
    assert list(attacks._schedule(attacks._parser().parse_args(["--only", ""]), mounted=False, clock=True)) == []


def test_the_clock_of_a_process_is_stepped_and_nobody_elses(tmp_path: Path) -> None:
    clock = SteppedClock.make(tmp_path)
    if clock is None:
        pytest.skip("there is no C compiler")
    show = [sys.executable, "-c", "import time; print(time.time(), time.monotonic())"]
    for hours in (-1, 1):
        clock.step(3600 * hours)
        said = subprocess.run(show, env={**os.environ, **clock.environment}, capture_output=True, text=True, check=True)
        wall, steady = map(float, said.stdout.split())
        # A second process takes a while to start; hours tell.
        assert round((wall - time.time()) / 3600) == hours and round((steady - time.monotonic()) / 3600) == 0


def test_output_breaks_when_its_reader_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Started:
        def __init__(self, command: Any, **streams: Any) -> None:
            made.append(os.dup(streams["stdout"]))

    monkeypatch.setattr("bench.attack_causes.SteppedClock.make", lambda folder: None)
    monkeypatch.setattr("subprocess.Popen", Started)
    mesh = PipedMesh(tmp_path, {})
    os.set_blocking(made[0], False)
    mesh.stall()
    with pytest.raises(BlockingIOError):
        os.write(made[0], b"one\n")
    mesh.resume()
    mesh.close_reader()
    with pytest.raises(BrokenPipeError):
        os.write(made[0], b"two\n")
    os.close(made[0])
