"""The view while it runs."""

from __future__ import annotations

import io

from heard import heard

from loadtest.arrivals import Arrivals
from loadtest.ask import LoadRequest, Side
from loadtest.live import Lines, Live, sparks
from loadtest.run import Load, Progress


def load(label: str = "") -> Load:
    return Load(Side(label), LoadRequest(), client=None, watch=None)  # type: ignore[arg-type]


def at(now: float, *loads: Load, point: int = 0, **arrivals: float) -> Progress:
    return Progress(Arrivals(**arrivals), point, 2, loads, 100.0, 100.0 + now)  # type: ignore[arg-type]


def test_it_shows_how_far_how_fast_and_how_late() -> None:
    view, one = Live(io.StringIO()), load("auto")
    one.running = 3
    one.outcomes += [heard([4], usage=50) for _ in range(4)]
    view(at(2.0, one, requests=16, concurrency=4))
    text = "\n".join(view.lines(at(2.0, one, requests=16, concurrency=4)))
    assert " 25%" in text and "4 at a time" in text and "point 1 of 2" in text
    assert "4 ended, 3 running, 0 failed" in text and "100 tokens/s" in text
    assert "auto: first token p50 1,000 ms" in text


def test_a_rate_is_that_of_the_time_since_the_last_look() -> None:
    view, one = Live(io.StringIO()), load()
    one.outcomes.append(heard([4], usage=10))
    view(at(1.0, one, duration=4.0))
    one.outcomes.append(heard([4], usage=30))
    view(at(2.0, one, duration=4.0))
    lines = view.lines(at(2.0, one, duration=4.0))
    assert "30 tokens/s" in lines[2] and " 50%" in lines[0]


def test_it_draws_over_itself_and_begins_anew_at_the_next_point() -> None:
    out = io.StringIO()
    view = Live(out)
    view(at(1.0, load(), requests=2))
    view(at(1.0, load(), requests=2, point=1))
    assert out.getvalue().count("\x1b[4F\x1b[J") == 1
    view.done()
    assert out.getvalue().endswith("\x1b[4F\x1b[J")
    view.done()
    assert out.getvalue().count("\x1b[J") == 2


def test_without_a_terminal_every_look_is_a_line() -> None:
    out, one = io.StringIO(), load()
    view = Lines(out)
    one.outcomes.append(heard([4], usage=20))
    one.running = 2
    view(at(10.0, one, requests=4, concurrency=2))
    view(at(20.0, one, requests=4, concurrency=2, point=1))
    view.done()
    assert out.getvalue().splitlines() == [
        "10 s, 25%, 2 at a time  point 1 of 2: 1 ended, 2 running, 0 failed, 2 tokens/s",
        "20 s, 25%, 2 at a time  point 2 of 2: 1 ended, 2 running, 0 failed, 1 tokens/s",
    ]


def test_sparks_show_the_greatest_full() -> None:
    assert sparks([0.0, 4.0, 8.0]) == " ▄█" and sparks([]) == "" and sparks([0.0]) == ""
