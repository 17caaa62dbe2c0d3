"""What is told of gaps between chunks, from gaps made up; and a stream's chunks are timed as they come."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from bench.step_overhead import CASES, missed, told
from bench.streams import Refused, arrivals


def drafts(added: float, share: float = 0.9) -> dict[str, float]:
    return {"naive_p50_ms": 5.0, "p50_ms": 5.0 + added, "added_p50_ms": added, "share": share, "steps": 100}


def figures(prepared: dict[str, float], waited: dict[str, float], added: float = 0.2) -> dict[str, Any]:
    return {"naive": {"added_p50_ms": added}, "drafts": {"prepared": prepared, "waited": waited}}


def test_drafts_are_held_to_plain_steps_of_the_same_round() -> None:
    quiet = {"naive": [0.005, 0.0051, 0.009], "drafts": [0.0052, 0.0053, 0.0054]}
    busy = {"naive": [0.007, 0.0071, 0.009], "drafts": [0.0074]}
    before, after = {"kept": 10.0, "none": 5.0}, {"kept": 40.0, "ahead": 40.0, "waited": 30.0, "none": 90.0}
    seen = told([quiet, busy, quiet], before, after, ("kept",))
    assert (seen["naive_p50_ms"], seen["p50_ms"], seen["added_p50_ms"]) == (5.1, 5.3, 0.2)
    # Of the 100 drafts that came since; steps without one don't count.
    assert seen["share"] == 0.3 and seen["steps"] == 7


def test_within_the_bars_nothing_is_missed() -> None:
    assert missed(figures(drafts(0.05), drafts(0.3))) == []


def test_each_case_has_its_own_bar() -> None:
    assert [line.partition(":")[0] for line in missed(figures(drafts(0.3), drafts(0.4), 2.0))] == [
        "the mesh adds 2.00 ms a step, the bar is 1.0", "prepared", "waited",
    ]  # fmt: skip


def test_a_median_of_other_drafts_than_meant_is_no_figure() -> None:
    [line] = missed(figures(drafts(0.0, share=0.4), drafts(0.3)))
    assert line.startswith("prepared: only 40% of drafts")


def test_no_way_is_in_two_cases() -> None:
    ways = [way for case in CASES.values() for way in case.ways]
    assert len(ways) == len(set(ways))


class Chunks(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200 if body["stream"] and body["prompt"] else 400)
        self.end_headers()
        for event in ({"choices": [{"text": "a"}]}, {"choices": [{"text": ""}]}, {"choices": [{"text": "b"}]}, {}):
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Chunks) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_chunks_with_text_are_timed_and_others_are_not(port: int) -> None:
    before = time.perf_counter()
    found = arrivals(port, {"prompt": "x"})
    assert len(found) == 2 and before < found[0] <= found[1] < time.perf_counter()


def test_a_refusal_is_no_empty_stream(port: int) -> None:
    with pytest.raises(Refused, match="400"):
        arrivals(port, {"prompt": ""})
