"""What of a run of the load harness stands in a row, a server a line; real servers are measured, not tested here."""

from __future__ import annotations

import pytest

from bench import served
from bench.__main__ import parser as bench_parser
from bench.running_mesh import running_mesh

SIDES = ["label=ours;url=http://127.0.0.1:1", "label=a peer;url=http://127.0.0.1:2;model=x"]


def test_of_sessions_there_are_fewer_than_of_requests_but_several_blocks() -> None:
    options = bench_parser("peers").parse_args(["--requests=24", "--waves=12"])
    assert [served.sessions("chat", streams, options) for streams in (1, 4, 16)] == [24, 48, 192]
    assert [served.sessions("agent", streams, options) for streams in (1, 4, 16)] == [4, 24, 96]


@pytest.mark.parametrize(("flags", "cold"), [([], ["edit"]), (["--cold"], ["chat", "edit"])])
def test_a_run_that_is_to_be_cold_is_so_in_every_workload_and_the_row_says_it(
    flags: list[str], cold: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(served, "loaded", lambda *about: commands.append(served.command(*about)))
    monkeypatch.setattr(served, "lines", lambda seen: [])
    options = bench_parser("peers").parse_args(["--served", *SIDES, "--workloads=chat,edit", *flags])
    assert served.measure(options)["cold"] == cold
    assert ["--cold" in command for command in commands] == [bool(flags)] * 4


def test_a_server_at_a_concurrency_is_a_line_of_the_row() -> None:
    with running_mesh(engine="mock", mock_profile='{"step_ms": 1, "vocab_size": 49152}') as mesh:
        sides = [f"label=one;url={mesh.url}", f"label=the same;url={mesh.url}/;speculation=off"]
        few = ["--tokens=6", "--requests=2", "--waves=4", "--concurrency=1,2", "--workloads=chat", "--pause=0"]
        options = bench_parser("peers").parse_args(["--served", *sides, *few])
        figures = served.measure(options)
    lines = [(each["server"], each["concurrency"], each["ok"], each["failed"]) for each in figures["chat"]]
    assert lines == [("one", 1, 2, 0), ("the same", 1, 2, 0), ("one", 2, 8, 0), ("the same", 2, 8, 0)]
    assert all(each["output_tokens"] == 6 * each["ok"] and each["without_usage"] == 0 for each in figures["chat"])
    # Two blocks each: an interval.
    assert [set(each["of_first"]) for each in figures["chat"] if "of_first" in each] == [{"ratio", "low", "high"}] * 2
    assert all(each["of_first"]["low"] <= each["of_first"]["ratio"] for each in figures["chat"] if "of_first" in each)
    assert figures["servers"] == ["one", "the same"] and figures["cold"] == []
