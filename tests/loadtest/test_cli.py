"""The command as a user gives it, against the scripted server: what is sent, printed and returned."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from scripted_server import ScriptedServer, chunk, event

from loadtest.cli import BAD_USAGE, FAILED, NO_SERVER, OK, STOPPED, main
from loadtest.flags import parser, plan_of
from loadtest.run import leaves_after


async def load(*argv: str) -> int:
    """In a thread: main has an event loop of its own."""
    return await asyncio.to_thread(main, list(argv))


async def test_a_closed_loop_prints_a_table_and_writes_the_figures(
    server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    code = await load(server.url, "--requests=12", "--concurrency=4", "--max-tokens=5", "--warmup=3", f"--json={file}")
    assert code == OK
    figures = json.loads(file.read_text())
    assert figures["requests"]["ok"] == 12 and figures["tokens"]["output"] == 60
    assert figures["model"] == "scripted" and figures["options"]["concurrency"] == [4]
    assert len(server.asked) == 15 and server.most_at_once <= 4
    printed = capsys.readouterr().out
    assert "60 output" in printed and "With 4 at a time" in printed and "0 of 12 requests failed" in printed


async def test_the_body_says_what_the_flags_say(server: ScriptedServer) -> None:
    flags = ["--requests=1", "--max-tokens=3", "--temperature=0.5", "--seed=9", "--ignore-eos"]
    await load(server.url, *flags, '--speculation={"method":"naive"}', '--extra-body={"top_p":0.9}', "--quiet")
    asked = server.asked[0]
    assert asked["path"] == "/v1/chat/completions" and asked["messages"][-1]["role"] == "user"
    assert asked["stream"] is True and asked["stream_options"] == {"include_usage": True}
    assert (asked["model"], asked["max_tokens"], asked["temperature"], asked["seed"]) == (
        "scripted",
        3,
        0.5,
        9,
    )
    assert asked["ignore_eos"] is True and asked["speculation"] == {"method": "naive"} and asked["top_p"] == 0.9


async def test_fields_other_servers_do_not_know_are_sent_only_when_asked_for(server: ScriptedServer) -> None:
    await load(server.url, "--requests=1", "--max-tokens=1", "--quiet", "--endpoint=completions", "--prompt=Hi")
    asked = server.asked[0]
    assert asked["path"] == "/v1/completions" and asked["prompt"] == "Hi"
    assert not {"ignore_eos", "speculation", "messages"} & set(asked)


async def test_an_open_loop_sends_the_same_requests_by_the_clock(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await load(server.url, "--rate=200", "--requests=20", "--max-tokens=2") == OK
    assert len(server.asked) == 20
    assert "At 200 requests/s (poisson)" in capsys.readouterr().out


async def test_errors_above_the_rate_allowed_fail_the_command(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async def every_other(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        if len(server.asked) % 2:
            await out.write(event({"error": {"message": "no more", "code": "engine"}}))
        else:
            await server.whole_answer(request, body, out)

    server.script = every_other
    flags = [server.url, "--requests=10", "--max-tokens=2"]
    assert await load(*flags) == FAILED
    assert "sse_error: 5   e.g. engine: no more" in capsys.readouterr().out
    assert await load(*flags, "--max-error-rate=0.5") == OK


async def test_abandoned_requests_are_counted_and_are_no_errors(server: ScriptedServer, tmp_path: Path) -> None:
    async def slow_enough_to_leave(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        while True:
            await out.write(chunk("a"))
            await asyncio.sleep(0)

    server.script = slow_enough_to_leave
    file = tmp_path / "figures.json"
    code = await load(
        server.url, "--requests=8", "--disconnect=1", "--max-tokens=5", "--concurrency=8", f"--json={file}"
    )
    assert code == OK
    assert json.loads(file.read_text())["requests"]["abandoned"] == 8


async def test_the_servers_counters_are_read_before_and_after(server: ScriptedServer, tmp_path: Path) -> None:
    async def count(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        server.page = f"specmesh:generation_tokens_total {100 + len(server.asked)}\n"
        await server.whole_answer(request, body, out)

    server.page = "specmesh:generation_tokens_total 100\n"
    server.script = count
    file = tmp_path / "figures.json"
    flags = ["--requests=6", "--max-tokens=1", f"--metrics-url={server.url}/metrics", f"--json={file}"]
    assert await load(server.url, *flags) == OK
    assert json.loads(file.read_text())["server"]["generation_tokens_total"] == 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_run_with_a_report_of_what_was_measured(
    server: ScriptedServer, tmp_path: Path, number: signal.Signals
) -> None:
    answered = asyncio.Event()

    async def five_answers(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        if len(server.asked) <= 5:
            await server.whole_answer(request, body, out)
        else:
            await out.write(chunk("a"))
            answered.set()
            await asyncio.sleep(60)

    server.script = five_answers
    file = tmp_path / "figures.json"
    flags = [server.url, "--requests=100", "--max-tokens=2", f"--json={file}"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtest", *flags, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    await asyncio.wait_for(answered.wait(), 60)
    process.send_signal(number)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == STOPPED + number
    figures, said = json.loads(file.read_text()), out.decode()
    assert figures["requests"]["ok"] == figures["requests"]["sent"] == 5 and figures["tokens"]["output"] == 10
    assert "10 output" in said and f"Stopped by {number.name};" in said and "0 of 5 requests failed" in said


async def test_what_is_no_terminal_gets_a_line_now_and_then(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def until_it_is_said(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        if len(server.asked) == 4:
            async with asyncio.timeout(30):
                while not (told := capsys.readouterr().err):  # noqa: ASYNC110 nothing else tells of it
                    await asyncio.sleep(0.01)
            said.append(told)
        await server.whole_answer(request, body, out)

    said: list[str] = []
    server.script = until_it_is_said
    monkeypatch.setattr("loadtest.cli.LINES_EVERY", 0.01)
    assert await load(server.url, "--requests=4", "--max-tokens=2") == OK
    assert "1 at a time" in said[0] and "ended" in said[0] and "\x1b" not in said[0]


async def test_without_a_server_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert await load("http://127.0.0.1:9", "--requests=1") == NO_SERVER
    assert "nothing listens at http://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag",
    [
        "--workload=nothing",
        "--disconnect=2",
        "--timeout=0",
        "--arrivals=trace",
        "--slo=speed:1",
        "--rate=1,0",
        "--assert=p99(ttft)",
        "--ab=seed=1",
    ],
)
def test_flags_that_make_no_sense_are_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http://127.0.0.1:9", flag]) == BAD_USAGE
    assert "specmesh load:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag", ["--concurrency=0", "--rate=-1", "--rate=x", "--speculation=a b", "--extra-body=[]", "--wat"]
)
def test_flags_that_do_not_parse_are_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main([flag])
    assert refused.value.code == BAD_USAGE
    assert flag.split("=")[0] in capsys.readouterr().err


def test_the_key_is_not_written_into_the_figures() -> None:
    options = parser().parse_args(["--api-key=sk-secret"])
    assert plan_of(options).api_key == "sk-secret"


def test_every_flag_has_a_help_text() -> None:
    assert all(action.help for action in parser()._actions)


def test_who_leaves_and_when_depends_on_the_seed_alone() -> None:
    first = [leaves_after(0.3, index, 1, 20) for index in range(4000)]
    assert first == [leaves_after(0.3, index, 1, 20) for index in range(4000)]
    gone = [after for after in first if after is not None]
    assert 0.27 < len(gone) / 4000 < 0.33
    assert set(gone) == set(range(21))
    assert all(leaves_after(0.0, index, 1, 20) is None for index in range(100))
