"""The suite: its table names what exists, and what ends badly ends alone. Parts are stood in for by processes that end
as they are told, since only how long they take and how they end matters here."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import forms, results_page, rows, suite
from bench.forms import FORMS, FULL, ON_GPU, SHORT, Part
from bench.oracles import peers
from bench.suite import OVERRAN

ROOT = Path(__file__).resolve().parents[2]
PARTS = [(form, part) for form, parts in FORMS.items() for part in parts]
# Where the tests run in the background of a shell, SIGINT is ignored and this is inherited.
FOREVER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print(flush=True)
    input()
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def ending(code: str) -> Callable[[Sequence[str]], subprocess.Popen[bytes]]:
    def begin(_: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)

    return begin


@pytest.mark.parametrize(("form", "part"), PARTS, ids=lambda each: each if isinstance(each, str) else each.name)
def test_a_part_is_a_benchmark_and_its_flags_are_understood(form: str, part: Part) -> None:
    assert part.name in command.NAMES
    flags = part.command[1:]
    if part.name == "peers":
        assert peers.parse(flags)
    else:
        assert command.parser(part.name, command.load(part.name)).parse_args(flags)


@pytest.mark.parametrize("name", [*command.MODULES])
def test_every_benchmark_and_command_says_what_it_does(name: str) -> None:
    assert command.load(name).HELP


@pytest.mark.parametrize("name", command.COMMANDS)
def test_every_command_explains_its_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([name, "--help"])
    assert ended.value.code == 0 and f"python -m bench {name}" in capsys.readouterr().out


def test_the_suite_takes_a_quarter_of_an_hour_and_a_gpu_nine_minutes() -> None:
    assert sum(part.seconds for part in FORMS[SHORT]) <= 15 * 60
    assert sum(part.seconds for part in FORMS[ON_GPU]) <= 9 * 60
    assert {part.name for part in FORMS[SHORT]} <= {part.name for part in FORMS[FULL]}


def test_the_short_form_and_the_long_one_cover_the_machine() -> None:
    kinds = {"engine", "verify", "proposer", "mesh", "harness", "bus", "step_overhead", "speculation", "peers"}
    assert kinds <= {part.name for part in FORMS[SHORT]}
    [long] = [part for part in FORMS[FULL] if part.name == "speculation"]
    assert "--concurrency 1,2,4,8,16,32" in long.flags


@pytest.mark.parametrize(
    ("code", "how"),
    [(0, "every bar is met"), (1, "missed a bar"), (2, "failed"), (7, "ended with 7")],
)
def test_how_a_part_ended_is_known(code: int, how: str) -> None:
    ended = suite.one(Part("bus", "", 60), ending(f"raise SystemExit({code})"))
    assert (ended.code, ended.how) == (code, how)


def test_a_part_that_takes_too_long_is_stopped() -> None:
    def begin(_: Sequence[str]) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", FOREVER]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        return process

    ended = suite.one(Part("bus", "", 0), begin)
    assert ended.code == OVERRAN and "longer than its 0 s" in ended.how


def test_what_a_part_started_is_stopped_with_it() -> None:
    """A grandchild that does not mind being asked; its end of a pipe closes when it is gone."""
    stubborn = "import signal; signal.signal(2, signal.SIG_IGN); print('here', flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {stubborn!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    suite.stop(process, seconds=0.1)
    try:
        assert select.select([process.stdout], [], [], 10)[0] and process.stdout.read() == b""
    finally:
        process.stdin.close()
        process.stdout.close()


def test_a_part_that_fails_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = iter([2, 1, 0])
    monkeypatch.setitem(FORMS, SHORT, (Part("bus", "", 60), Part("mesh", "", 60), Part("engine", "--turns 2", 60)))
    monkeypatch.setattr(suite, "start", lambda command: ending(f"raise SystemExit({next(codes)})")(command))
    assert suite.main(SHORT, ["--no-row"]) == 1
    said = capsys.readouterr().out
    assert "3 parts, at most 3 minutes" in said
    assert "==== python -m bench engine --turns 2 --no-row: at most 60 s" in said
    assert [line.split(None, 5)[4:] for line in said.splitlines() if " s of 60" in line] == [
        ["bus", "failed"], ["mesh", "missed a bar"], ["engine", "every bar is met"],
    ]  # fmt: skip


def test_parts_can_be_chosen_and_all_is_well_when_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Sequence[str]] = []

    def begin(command: Sequence[str]) -> subprocess.Popen[bytes]:
        begun.append(command)
        return ending("")(command)

    monkeypatch.setattr(suite, "start", begin)
    assert suite.main(SHORT, ["--no-row", "--only", "bus,proposer", "--arctic", "/some where/python"]) == 0
    assert [command[0] for command in begun] == ["proposer", "bus"]
    assert list(begun[0][-3:]) == ["--no-row", "--arctic", "/some where/python"]


def test_a_part_that_is_not_there_is_not_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        suite.main(SHORT, ["--no-row", "--only", "bus,buss"])
    assert "no part named buss" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "runs"),
    [
        ("bench", "-m bench "),
        ("bench-gpu", "python3 -m bench on_gpu"),
        ("docs", "deploy/dashboards.py"),
        ("docs", "-m bench results"),
        ("docs-fresh", "-m bench results --check"),
    ],
)
def test_make_knows_how(target: str, runs: str) -> None:
    said = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert runs in said


def test_make_lists_the_benchmarks() -> None:
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"make bench      the benchmarks of this machine, {forms.minutes(FORMS[SHORT])} minutes" in said
    assert f"make bench-gpu  the benchmarks of a GPU, {forms.minutes(FORMS[ON_GPU])} minutes" in said


def test_at_the_end_what_got_worse_is_told_and_the_page_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made: list[Sequence[str]] = []

    def begin(command: Sequence[str]) -> subprocess.Popen[bytes]:
        rate = 66_400 if not rows.read("mesh", tmp_path) else 30_000
        rows.append("mesh", list(command), {"throughput_naive": {"tokens_per_s": rate}}, tmp_path)
        return ending("")(command)

    read_all = rows.read_all
    monkeypatch.setattr(rows, "read_all", lambda: read_all(tmp_path))
    monkeypatch.setattr(results_page, "main", lambda flags: made.append(flags))
    monkeypatch.setattr(suite, "start", begin)
    assert [suite.main(SHORT, ["--only", "mesh"]) for _ in range(2)] == [0, 0]
    assert "mesh: worse than" in (said := capsys.readouterr().out) and "66 400 -> 30 000 (-55 %)" in said
    assert len(made) == 2


# A machine with a GPU may have torch, triton and numba, and nothing of what carries messages.
BARE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"zmq", "msgspec", "msgpack", "orjson", "aiohttp", "uvloop", "prometheus_client"}:
            raise ModuleNotFoundError(f"no module named {name}", name=name)

sys.meta_path.insert(0, Missing())
from bench import __main__ as command
"""


def bare(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BARE + code], cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_gpus_part_needs_nothing_that_carries_messages() -> None:
    names = sorted({part.name for part in FORMS[ON_GPU]})
    ran = bare(f"for name in {names}: command.load(name)\nassert command.main(['list']) == 0")
    assert ran.returncode == 0, ran.stderr
    said = {line.split()[0]: line for line in ran.stdout.splitlines() if line.startswith("  ")}
    assert all("not here" not in said[name] for name in names)
    assert "not here" in said["bus"]


def test_the_suite_itself_and_the_page_need_not_even_torch() -> None:
    ran = bare("assert not {'torch', 'triton', 'numba'} & set(sys.modules), 'too much is imported'")
    assert ran.returncode == 0, ran.stderr


def test_a_benchmark_that_breaks_is_told_from_one_that_misses_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Module:
        HELP = "made up"
        flags = staticmethod(lambda parser: parser.add_argument("--how", choices=("break", "miss", "refuse", "work")))

        @staticmethod
        def measure(options: object) -> dict[str, object]:
            how = options.how  # type: ignore[attr-defined]
            if how == "break":
                raise ValueError("broken")
            if how == "refuse":
                raise SystemExit("it can't run here")
            return {"missed": ["a bar"] if how == "miss" else []}

    monkeypatch.setattr(command, "load", lambda name: Module)
    codes = {how: command.main(["bus", "--no-row", "--how", how]) for how in ("break", "refuse", "miss", "work")}
    assert codes == {"break": 2, "refuse": 2, "miss": 1, "work": 0}
    said = capsys.readouterr()
    assert "MISSED bus: a bar" in said.out and "broken" in said.err and "it can't run here" in said.err
