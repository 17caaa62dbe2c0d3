"""What of a run of the load harness stands in a row, a server a line; real servers are measured, not tested here."""

from __future__ import annotations

from bench import peers_served
from bench.peers import parse
from bench.running_mesh import running_mesh
from loadtest.flags import parser, plan_of

SIDES = ["label=ours;url=http://127.0.0.1:1", "label=a peer;url=http://127.0.0.1:2;model=x"]


def test_every_server_gets_the_same_requests_in_one_run() -> None:
    options = parse(["--served", *SIDES, "--tokens=9", "--requests=5", "--concurrency=1,4"])
    words = peers_served.command("edit", options)
    plan = plan_of(parser().parse_args(words[2:]))
    assert [(each.label, each.url) for each in plan.sides] == [
        ("ours", "http://127.0.0.1:1"), ("a peer", "http://127.0.0.1:2"),
    ]  # fmt: skip
    assert [each.concurrency for each in plan.at()] == [1, 4]
    assert not plan.cold
    options.cold = True
    assert plan_of(parser().parse_args(peers_served.command("edit", options)[2:])).cold
    assert (plan.ask.max_tokens, plan.ask.path, plan.arrivals.requests) == (9, "/v1/chat/completions", 5)


def test_a_server_at_a_concurrency_is_a_line_of_the_row() -> None:
    with running_mesh(engine="mock", mock_profile='{"step_ms": 1, "vocab_size": 49152}') as mesh:
        sides = [f"label=one;url={mesh.url}", f"label=the same;url={mesh.url}/;speculation=off"]
        options = parse(["--served", *sides, "--tokens=6", "--requests=2", "--concurrency=1,2", "--workloads=chat"])
        figures = peers_served.measure(options)
    lines = [(each["server"], each["concurrency"], each["ok"], each["failed"]) for each in figures["chat"]]
    assert lines == [("one", 1, 2, 0), ("the same", 1, 2, 0), ("one", 2, 2, 0), ("the same", 2, 2, 0)]
    assert all(each["output_tokens"] == 12 and each["without_usage"] == 0 for each in figures["chat"])
    assert figures["servers"] == ["one", "the same"] and figures["cold"] == []
