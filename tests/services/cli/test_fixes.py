"""What a message tells to do helps: each test makes the fault, follows the fix that is printed, and sees it work.

Settings files have theirs in tests/services/api/test_settings_file.py, flags in test_foreign_flags.py.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from services.api.settings import Settings, run_dir
from services.cli.launch_plan import PortsTaken, check_ports, processes_of, with_free_port
from services.cli.main import main, parser
from services.cli.up import main as up
from services.runtime.process import make_run_dir

# In no network of anybody: it is kept for examples.
FOREIGN = "192.0.2.7"


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("SPECMESH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def flags_of(fix: str) -> Settings:
    from services.cli.flags import read_settings

    return read_settings(parser().parse_args(["up", *shlex.split(fix)]))


# Addresses


@pytest.mark.parametrize("host", [FOREIGN, "no-such-host.invalid"])
@pytest.mark.parametrize("port", [0, 8123])
def test_an_address_of_another_machine_is_told_with_those_of_this_one(host: str, port: int) -> None:
    settings = Settings.for_tests(host=host, port=port)
    with pytest.raises(PortsTaken, match="is no address of this machine") as caught:
        check_ports(with_free_port(settings), [])
    fixes = re.findall(r"(--host \S+)", str(caught.value).partition("fix:")[2])
    assert len(fixes) == 2
    for fix in fixes:
        assert with_free_port(settings.replaced(port=0, host=flags_of(fix).host)).port > 0


def test_the_address_of_metrics_is_told_by_its_own_flag() -> None:
    settings = Settings.for_tests(metrics_host=FOREIGN)
    with pytest.raises(PortsTaken) as caught:
        check_ports(with_free_port(settings.replaced(port=0)), processes_of(settings, "ipc:///x/directory.sock")[:1])
    (fix, *_) = re.findall(r"--metrics-host \S+", str(caught.value))
    assert flags_of(fix).metrics_host == "127.0.0.1"


def test_a_taken_port_is_told_with_the_flag_for_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings.for_tests(port=taken.getsockname()[1])
        with pytest.raises(PortsTaken, match="choose another with --port"):
            check_ports(settings, [])
        check_ports(with_free_port(settings.replaced(port=0)), [])


def test_a_taken_meeting_place_of_nodes_is_told_with_the_flags_for_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = Settings.for_tests(nnodes=2, tensor_parallel_size=2, master_addr=at, keys_dir="keys")
        with pytest.raises(PortsTaken, match=f"{at}, where the nodes are to meet, cannot be had .*in use") as caught:
            check_ports(with_free_port(settings.replaced(port=0)), [])
    assert "--master-addr" in str(caught.value) and "--master-port" in str(caught.value)


# The run_dir


def _told_by_up(settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("services.cli.up.configure_log", lambda *_: None)
    monkeypatch.setattr("services.cli.up.output.install", lambda: None)
    assert up(settings) == 1
    return capsys.readouterr().err


def test_a_run_dir_that_cannot_be_made_is_told_with_one_that_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    told = _told_by_up(Settings.for_tests(run_dir=str(tmp_path / "file/run")), capsys, monkeypatch)
    assert f"run_dir {tmp_path}/file/run cannot be made (Not a directory)" in told
    folder = run_dir(flags_of(told.partition("fix: ")[2]))
    assert folder != tmp_path / "file/run"
    make_run_dir(folder)


def test_a_run_dir_that_cannot_be_written_is_told_with_the_command_that_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o500)
    # Root may write everywhere, so the kernel's answer is ours here.
    monkeypatch.setattr(os, "access", lambda path, mode: bool(Path(path).stat().st_mode & 0o200))
    told = _told_by_up(Settings.for_tests(run_dir=str(folder)), capsys, monkeypatch)
    command = told.partition("fix: ")[2].partition(", or")[0]
    assert command == f"chmod 700 {folder}"
    folder.chmod(0o700)
    make_run_dir(folder)


# Commands


def test_a_model_nobody_knows_is_told_with_the_list_of_those_that_are_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_model: Path
) -> None:
    assert main(["model", "show", "nosuch"]) == 1
    fix = capsys.readouterr().err.partition("fix: ")[2]
    assert "fetch" not in fix
    command = re.match(r"specmesh (model list)", fix)
    assert command and main(command[1].split()) == 0
    place = tmp_path / "cache/specmesh/models/own"
    place.parent.mkdir(parents=True)
    tiny_model.rename(place)
    assert main(["model", "list"]) == 0
    assert re.search(r"^own +in the cache$", capsys.readouterr().out, re.MULTILINE)
    assert main(["model", "show", "own"]) == 0


def test_a_model_of_the_hub_is_shown_once_it_was_fetched(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_model: Path
) -> None:
    assert main(["model", "show", "owner/name"]) == 1
    assert "fix: specmesh model fetch owner/name" in capsys.readouterr().err
    # Where a fetch puts it.
    place = tmp_path / "cache/specmesh/hub/models--owner--name/snapshots/0123"
    place.parent.mkdir(parents=True)
    tiny_model.rename(place)
    assert main(["model", "show", "owner/name"]) == 0
    assert "LlamaForCausalLM" in capsys.readouterr().out


def test_a_gguf_file_is_told_with_the_command_for_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert main(["model", "show", str(tmp_path / "x.gguf")]) == 1
    fix = capsys.readouterr().err.partition("fix: specmesh ")[2]
    assert main(shlex.split(fix)) == 1
    assert "x.gguf" in capsys.readouterr().err


def test_a_load_without_a_server_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert main(["load", f"http://127.0.0.1:{port}", "--requests", "1"]) == 3
    told = capsys.readouterr().err
    assert f"nothing listens at http://127.0.0.1:{port}" in told
    assert "fix: start a server (`specmesh up`), or give another's address: specmesh load URL" in told
    _with_something_at(port, lambda: main(["load", f"http://127.0.0.1:{port}", "--requests", "1"]))
    assert "nothing listens" not in capsys.readouterr().err


def _with_something_at(port: int, act: Callable[[], object]) -> None:
    """A server that hangs up: it listens, which is what the fix was for."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        answering = threading.Thread(target=lambda: listener.accept()[0].close())
        answering.start()
        act()
        answering.join()
