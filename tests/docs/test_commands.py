"""Every command of README.md and docs/ is run, against a real mesh with the mock engine, or is marked with a reason.

A block is what somebody pastes: its commands run one after the other in an empty folder. What starts a mesh is read
as far as its settings, as the mesh of these tests is one that was started so.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from fences import MARK, PAGES, ROOT, SHELLS, Block, blocks, blocks_of, commands_of, programs_of, said_in_passing

from bench.names import MODULES
from bench.running_mesh import RunningMesh
from bench.suite import FORMS
from loadtest.flags import parser as load_parser
from services.cli.flags import read_settings, spelled_out
from services.cli.main import parser

from .conftest import MOCK

# Pages whose commands have a test of their own.
ELSEWHERE = {"docs/use/load.md": "tests/loadtest/test_docs.py"}
RUN = {"specmesh", "curl", "git", "cd", "echo", "grep"}
STARTS_A_MESH = re.compile(r"specmesh (up|serve|run \w+)\b")
PATIENCE = 300  # s, for a command: where tests run, other work runs beside them
# Pages ask for what a measurement needs; here it is enough that it works.
SHORTER_LOAD = " --requests=4 --max-tokens=6 --warmup=0 --timeout=60"
BLOCKS = blocks()
HERE = [each for each in BLOCKS if each.page not in ELSEWHERE and not each.mark]
SHELL = [each for each in HERE if each.commands]
PYTHON = [each for each in HERE if each.language == "python"]


def unaccounted(block: Block) -> list[str]:
    """What of it nobody runs, and no mark says why."""
    if block.mark:
        found = MARK.fullmatch(block.mark)
        if not found:
            return [f"{block}: <!-- {block.mark} --> is no reason"]
        return [f"{block}: there is no {found['by']}"] if found["by"] and not (ROOT / found["by"]).exists() else []
    if block.language not in SHELLS:
        lost = re.findall(r"^\$ .*", block.text, re.MULTILINE)
        return [f"{block}: {each}: in a fence that isn't `console`" for each in lost]
    problems = [] if block.commands else [f"{block}: has no command behind a $"]
    for command in block.commands:
        unknown = set(programs_of(command)) - RUN - {"make"}
        problems += [f"{block}: {each}: is neither run nor marked" for each in sorted(unknown)]
    return problems


def test_every_command_is_run_or_marked_with_a_reason() -> None:
    assert [problem for block in BLOCKS for problem in unaccounted(block)] == []
    assert len(SHELL) >= 12 and PYTHON


def test_pages_with_a_test_of_their_own_have_it() -> None:
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text()


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_a_block_of_commands_runs(block: Block, mesh: RunningMesh, tmp_path: Path) -> None:
    for command in block.commands:
        if STARTS_A_MESH.match(command):
            # shlex keeps the newline behind a backslash, which a shell drops.
            check_settings(shlex.split(command.replace("\\\n", ""))[1:])
        elif command.startswith("make"):
            check_make(command)
        else:
            run(command, mesh, tmp_path)


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_a_python_snippet_runs(block: Block, mesh: RunningMesh, tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(at(block.text, mesh))
    assert run("python snippet.py", mesh, tmp_path).strip()


def run(command: str, mesh: RunningMesh, folder: Path) -> str:
    """What it printed; it has ended well, and printed something if it is a question."""
    if command.startswith("specmesh load"):
        words = shlex.split(command)
        url = "" if len(words) > 2 and words[2].startswith("http") else f" {mesh.url}"
        command = command.replace("specmesh load", f"specmesh load{url}", 1) + SHORTER_LOAD
    finished = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", at(command, mesh)], cwd=folder, env=environment(mesh, folder),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert finished.returncode == 0, (command, finished.stdout[-2000:], finished.stderr[-2000:])
    if programs_of(command)[0] == "curl":
        # A stream that fails on its way has had its 200 already.
        assert finished.stdout.strip() and '"error":' not in finished.stdout, (command, finished.stdout[-2000:])
    if command.startswith("specmesh"):
        assert finished.stdout.strip(), command
    return finished.stdout


def at(text: str, mesh: RunningMesh) -> str:
    """This mesh, in the place of one at its usual ports; this project, in the place of its address."""
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{mesh.port}").replace("<this repository>", str(ROOT))
    return re.sub(r"127\.0\.0\.1:910([0-3])", lambda found: f"127.0.0.1:{mesh.metrics_base + int(found[1])}", text)


def environment(mesh: RunningMesh, folder: Path) -> dict[str, str]:
    """The command is on the path, and its settings are those of the mesh."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name, how in (("specmesh", "-m services.cli "), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {how}"$@"\n')
        (programs / name).chmod(0o755)
    # curl ends well whatever the server says, unless it is told to look.
    (programs / ".curlrc").write_text("silent\nshow-error\nfail-with-body\nmax-time = 100\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
    return kept | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CURL_HOME": str(programs),
        "SPECMESH_PORT": str(mesh.port),
        "SPECMESH_METRICS_PORT": str(mesh.metrics_base),
        "SPECMESH_RUN_DIR": str(mesh.output.parent / "run"),
        "SPECMESH_STORE_DIR": str(mesh.output.parent / "store"),
        # Of commands with a mesh of their own.
        "SPECMESH_ENGINE": "mock",
        "SPECMESH_MOCK_PROFILE": MOCK,
    }


def check_settings(words: list[str]) -> None:
    """Every flag is one, with a value that is taken."""
    read_settings(parser().parse_args(spelled_out(words)))


def check_make(command: str) -> None:
    """The target is there; what it would start is read as that is."""
    words = shlex.split(command)[1:]
    # Of the make that runs these tests, ARGS are for pytest.
    env = {name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS", "MAKEOVERRIDES")}
    told = subprocess.run(["make", "-n", *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert told.returncode == 0, told.stderr
    for line in told.stdout.splitlines():
        if STARTS_A_MESH.search(line):
            check_settings(shlex.split(line[line.index("specmesh ") :])[1:])


# Said in passing -----------------------------------------------------------------------------------------------


@functools.cache
def flags_of() -> dict[str, set[str]]:
    """By command of specmesh."""
    (commands,) = [each for each in parser()._actions if isinstance(each, argparse._SubParsersAction)]
    known = {name: set(each._option_string_actions) for name, each in commands.choices.items()}
    return known | {"load": set(load_parser()._option_string_actions)}


def wrong_in(mention: str) -> str:
    """Of a command that is named within a line: what there isn't."""
    words = mention.split()
    flags = [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]
    if words[0].endswith("specmesh") and len(words) > 1 and re.fullmatch("[a-z]+", words[1]):
        known = flags_of()
        if words[1] not in known:
            return f"{mention}: no such command"
        return "".join(f"{mention}: no flag {flag}" for flag in flags if flag not in known[words[1]])
    if words[0] == "make" and len(words) > 1 and re.fullmatch("[a-z-]+", words[1]):
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return "" if words[1] in targets else f"{mention}: no such target"
    if words[:3] == ["python", "-m", "bench"] and len(words) > 3 and re.fullmatch("[a-z_]+", words[3]):
        return "" if words[3] in {"list", *FORMS, *MODULES} else f"{mention}: no such benchmark"
    if words[:2] == ["python", "-m"] and (ROOT / words[2].partition(".")[0]).is_dir():
        return "" if importlib.util.find_spec(words[2]) else f"{mention}: no such module"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_named_in_passing_exist(page: Path) -> None:
    assert [wrong for mention in said_in_passing(page.read_text()) if (wrong := wrong_in(mention))] == []


# The search itself ---------------------------------------------------------------------------------------------


def only(text: str) -> Block:
    (block,) = blocks_of("page.md", text)
    return block


def test_a_command_goes_on_behind_a_backslash_and_within_quotes() -> None:
    text = "$ curl http://x \\\n    -d '{\"a\": 1,\n  \"b\": 2}'\nprinted\n$ echo two\n"
    assert list(commands_of(text)) == ["curl http://x \\\n    -d '{\"a\": 1,\n  \"b\": 2}'", "echo two"]


def test_programs_are_found_behind_pipes_and_variables() -> None:
    assert programs_of("A=1 specmesh x | grep 'a | b' && cd y > z") == ["specmesh", "grep", "cd"]


@pytest.mark.parametrize(
    "planted",
    ["```console\n$ rm -rf x\n```", "```console\nmake up\n```", "```\n$ specmesh top\n```",
     "<!-- later -->\n```console\n$ docker ps\n```", "<!-- takes minutes: run by tests/none.py -->\n```sh\n$ ls\n```",
     "<!-- needs docker -->\nWords between.\n\n```console\n$ docker ps\n```"],
)  # fmt: skip
def test_what_nobody_runs_is_found(planted: str) -> None:
    assert unaccounted(only(planted))


@pytest.mark.parametrize(
    "mark", ["needs a GPU", "needs docker", f"takes minutes: run by {Path(__file__).relative_to(ROOT)}"]
)
def test_a_mark_is_a_reason(mark: str) -> None:
    assert unaccounted(only(f"<!-- {mark} -->\n```console\n$ docker ps\n```")) == []


@pytest.mark.parametrize(
    "planted",
    ["specmesh upp", "specmesh up --modle x", "make upp", "python -m bench none", "python -m bench.none"],
)
def test_what_is_not_there_is_found(planted: str) -> None:
    assert wrong_in(planted)
