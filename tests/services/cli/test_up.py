"""`specmesh up`: what it would start, what it refuses, what it prints; then with real processes and tiny roles."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from watching import gone, wait_until

from bench.running_mesh import free_ports
from mesh.directory.membership import Member
from services.api.messages import ModelCard
from services.api.sampling_defaults import SamplingDefaults
from services.api.settings import Settings, load_settings, store_dir
from services.cli.banner import box, curl
from services.cli.flags import read_settings
from services.cli.launch_plan import PortsTaken, check_ports, keys_file, processes_of, with_free_port
from services.cli.main import parser
from services.cli.up import (
    _ROUTINE,
    AnotherMesh,
    _locked,
    _remove_stale_sockets,
    compiling,
    is_replaceable,
    main,
    waiting_for,
)
from services.runtime import compile_ahead

ROOT = Path(__file__).parents[3]
TINY_UP = Path(__file__).with_name("tiny_up.py")
LONG = 30.0  # s: more than anything here takes
DIRECTORY = "ipc:///x/directory.sock"


# What would be started ----------------------------------------------------------------------------------------------


def test_all_start_at_once_but_the_door_which_waits_for_a_tokenizer() -> None:
    processes = processes_of(Settings.for_tests(tokenizers=2), DIRECTORY)
    assert {each.instance: each.child.after for each in processes} == {
        "tokenizer-1": (),
        "tokenizer-2": (),
        "proposer-1": (),
        "worker-1": (),
        "streamer-1": ("tokenizer",),
    }


def test_several_of_every_role_have_names_ports_and_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    settings = Settings.for_tests(workers=2, streamers=2, proposers=2, tokenizers=1, metrics_port=7000)
    processes = processes_of(settings, DIRECTORY)
    assert sorted(each.instance for each in processes) == [
        "proposer-1", "proposer-2", "streamer-1", "streamer-2", "tokenizer-1", "worker-1", "worker-2",
    ]  # fmt: skip
    ports = [each.metrics_port for each in processes]
    assert len(set(ports)) == len(ports)
    environments = {each.instance: each.child.env for each in processes}
    assert environments["worker-1"]["SPECMESH_CORES"] == "worker=0,1"
    assert environments["worker-2"]["SPECMESH_CORES"] == "worker=2,3"
    assert environments["worker-2"]["OMP_NUM_THREADS"] == "2"
    assert environments["streamer-1"]["SPECMESH_STREAMERS"] == "2"
    assert "SPECMESH_CORES" not in environments["streamer-1"]


def test_workers_with_phases_take_the_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    settings = Settings.for_tests(prefill_workers=1, decode_workers=2, workers=4, metrics_port=7000)
    workers = [each for each in processes_of(settings, DIRECTORY) if each.role == "worker"]
    assert [(each.instance, each.metrics_port, each.child.env["SPECMESH_PHASE"]) for each in workers] == [
        ("prefill-1", 7003, "prefill"), ("decode-1", 7013, "decode"), ("decode-2", 7023, "decode"),
    ]  # fmt: skip
    assert [each.child.env["SPECMESH_CORES"] for each in workers] == [f"worker={core}" for core in range(3)]


def test_one_worker_has_all_cores() -> None:
    worker = next(each for each in processes_of(Settings.for_tests(), DIRECTORY) if each.role == "worker")
    assert "SPECMESH_CORES" not in worker.child.env


def test_the_door_is_drained_first_and_those_it_needs_last() -> None:
    processes = processes_of(Settings.for_tests(), DIRECTORY)
    order = sorted(processes, key=lambda each: -each.child.stage)
    assert [each.role for each in order][:2] == ["streamer", "worker"]


def test_every_process_has_a_metrics_port_of_its_own() -> None:
    def ports(settings: Settings) -> dict[str, int]:
        return {each.instance: each.metrics_port for each in processes_of(settings, DIRECTORY)}

    assert ports(Settings.for_tests(tokenizers=2)) == {
        "streamer-1": 9100,
        "tokenizer-1": 9101,
        "tokenizer-2": 9111,
        "proposer-1": 9102,
        "worker-1": 9103,
    }
    assert ports(Settings.for_tests(metrics_port=7000))["worker-1"] == 7003


def test_a_child_finds_our_settings_and_nothing_of_our_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECMESH_PORT", "1")
    monkeypatch.setenv("SPECMESH_MAX_WAITING", "7")
    monkeypatch.setenv("LANG", "C.UTF-8")
    settings = Settings.for_tests(port=8123, run_dir="/x", bind="tcp://1.2.3.4:5", threads=2)
    target = next(each for each in processes_of(settings, DIRECTORY) if each.role == "worker")
    env = target.child.env
    assert env["SPECMESH_PORT"] == "8123" and "SPECMESH_MAX_WAITING" not in env
    assert env["SPECMESH_INSTANCE"] == "worker-1" and env["SPECMESH_DIRECTORY"] == DIRECTORY
    assert "SPECMESH_BIND" not in env and "SPECMESH_HOST_DIRECTORY" not in env
    assert env["LANG"] == "C.UTF-8" and env["OMP_NUM_THREADS"] == "2" and env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert env["MALLOC_ARENA_MAX"] == "2"


def test_keys_travel_to_the_streamer_in_a_file_and_in_no_environment(tmp_path: Path) -> None:
    settings = Settings.for_tests(api_keys="one, two", run_dir=str(tmp_path))
    with keys_file(settings) as file:
        environments = {each.role: each.child.env for each in processes_of(settings, DIRECTORY)}
        assert not [role for role, env in environments.items() if "two" in str(env)]
        assert not [role for role, env in environments.items() if role != "streamer" and "API_KEYS" in str(env)]
        assert load_settings({}, environments["streamer"], None).api_keys == "one,two"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not file.exists()


def test_a_file_of_keys_is_read_by_the_streamer_itself_which_sees_it_change(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("three\n")
    given = {"api_keys_file": str(tmp_path / "keys"), "run_dir": str(tmp_path)}
    for settings, files in (
        (Settings.for_tests(**given), f"{tmp_path}/keys"),
        (Settings.for_tests(api_keys="one", **given), f"{tmp_path}/api_keys,{tmp_path}/keys"),
    ):
        with keys_file(settings):
            roles = {each.role: each.child.env for each in processes_of(settings, DIRECTORY)}
            assert roles["streamer"]["SPECMESH_API_KEYS_FILE"] == files
            assert "SPECMESH_API_KEYS_FILE" not in roles["worker"]


def test_keys_of_a_mesh_that_was_killed_are_overwritten_and_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "api_keys").symlink_to(tmp_path / "mine")
    with keys_file(Settings.for_tests(api_keys="one", run_dir=str(tmp_path))) as file:
        assert file.read_text() == "one\n"
    assert (tmp_path / "mine").read_text() == "mine"


def test_without_keys_there_is_no_file(tmp_path: Path) -> None:
    settings = Settings.for_tests(run_dir=str(tmp_path))
    with keys_file(settings) as file:
        assert not file.exists()
        assert not [each for each in processes_of(settings, DIRECTORY) if "API_KEYS" in str(each.child.env)]


# What is refused -----------------------------------------------------------------------------------------------------


def listening() -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen(1)
    return taken


def test_every_taken_port_is_said_at_once_with_the_setting_to_change() -> None:
    with listening() as door, listening() as metrics:
        port = metrics.getsockname()[1] - 3
        settings = Settings.for_tests(port=door.getsockname()[1], metrics_port=port)
        with pytest.raises(PortsTaken) as raised:
            check_ports(settings, processes_of(settings, DIRECTORY))
    text = str(raised.value)
    assert re.search(rf":{settings.port} for the HTTP server .*--port \(or SPECMESH_PORT\)", text)
    assert re.search(rf":{port + 3} for worker-1's metrics .*--metrics-port", text)


def test_port_0_becomes_a_free_one() -> None:
    settings = with_free_port(Settings.for_tests(port=0))
    assert settings.port > 0
    assert with_free_port(Settings.for_tests(port=8123)).port == 8123


def test_a_second_mesh_in_the_same_run_dir_is_refused_with_the_fix(tmp_path: Path) -> None:
    with (
        _locked(tmp_path),
        pytest.raises(AnotherMesh, match=f"process {os.getpid()}(.|\n)*--run-dir"),
        _locked(tmp_path),
    ):
        pass
    with _locked(tmp_path):
        pass


def test_sockets_of_a_mesh_that_was_killed_are_removed(tmp_path: Path) -> None:
    (tmp_path / "worker-1.sock").touch()
    (tmp_path / "up.lock").touch()
    _remove_stale_sockets(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["up.lock"]


def test_a_model_that_cannot_be_had_is_said_with_its_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cli.up.configure_log", lambda *_: None)
    settings = Settings.for_tests(run_dir=str(tmp_path / "run"), model="./nowhere", port=0, metrics_port=free_ports(4))
    assert main(settings) == 1
    said = capsys.readouterr().err
    assert "nowhere" in said and "fix:" in said


# What is printed -----------------------------------------------------------------------------------------------------


def test_the_box_says_where_everything_is_and_the_command_can_be_pasted() -> None:
    settings = Settings.for_tests(host="0.0.0.0", port=8123, api_keys="secret-key")
    card = ModelCard(
        model="m",
        max_context=8192,
        vocab_size=1,
        eos_token_ids=[],
        methods=["naive", "ngram"],
        verify_strategies=[],
        max_speculative_tokens=8,
        engine="torch",
    )
    text = box(settings, processes_of(settings, DIRECTORY), card, 3.2, Path("/run/x"))
    for said in (
        "http://127.0.0.1:8123/v1",
        "http://127.0.0.1:8123/docs",
        "smollm2-135m-instruct",
        "naive, ngram",
        "http://127.0.0.1:9103/metrics  worker-1",
        "/run/x/logs",
    ):
        assert said in text
    assert "secret-key" not in text
    words = shlex.split(next(line for line in text.splitlines() if line.startswith("curl")))
    assert words[2] == "http://127.0.0.1:8123/v1/chat/completions"
    assert json.loads(words[-1])["model"] == "smollm2-135m-instruct"
    assert json.loads(words[-1])["temperature"] == 0
    first = text.splitlines()[2]
    assert first.split() == ["│", "page", "http://127.0.0.1:8123/"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"store_dir": "/s"}, "Answers are learned to /s, to draft from. --store-dir none keeps them off the disk."),
        ({"store_dir": "none"}, "Answers are learned in memory only, and forgotten at the end."),
        ({"suffix_decoding_max_cached_requests": 0}, "Answers aren't learned."),
    ],
)
def test_the_box_says_whether_answers_are_learned_and_how_to_keep_them_off_the_disk(
    settings: dict[str, object], said: str
) -> None:
    text = box(Settings.for_tests(**settings), [], None, 1.0, Path("/run/x"))
    assert said in " ".join(text.replace("│", " ").split())
    if "none keeps" in said:
        flags = said[said.index("--store-dir") :].split()[:2]
        options = parser().parse_args(["up", "--config=/dev/null", *flags])
        assert store_dir(read_settings(options)) is None


def test_a_long_path_is_whole_so_that_it_can_be_copied() -> None:
    long = "/" + "very-long-name/" * 20 + "logs"
    assert long in box(Settings.for_tests(), [], None, 1.0, Path(long).parent)


@pytest.mark.parametrize(
    ("setting", "sampling", "said"),
    [
        ("auto", {}, "get temperature 1 and top_p 1; the model's files say no other."),
        ("auto", {"temperature": 0.6, "top_k": 20}, "get temperature 0.6, top_k 20, as the model's authors suggest."),
        ("auto", {"top_p": 0.9}, "get temperature 1, top_p 0.9, as the model's authors suggest."),
        ("vllm", {}, "get temperature 1 and top_p 1."),
    ],
)
def test_the_box_says_what_sampling_requests_get_that_set_none(
    setting: str, sampling: dict[str, Any], said: str
) -> None:
    settings = Settings.for_tests(generation_config=setting)
    text = " ".join(box(settings, [], None, 1.0, Path("/run/x"), SamplingDefaults(**sampling)).split())
    assert f"Requests that set none {said}" in text.replace(" │ ", " ")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("INFO streamer/s-1 specmesh.requests: request id=x status=200", True),
        ("INFO streamer/s-1 specmesh.throughput: throughput tokens_per_s=5.0", True),
        ("WARNING worker/w-1 specmesh.worker: late", True),
        ("INFO worker/w-1 services.runtime.process: ready", False),
        ("DEBUG worker/w-1 x: specmesh.requests: y", False),
    ],
)
def test_a_terminal_shows_requests_throughput_and_what_is_wrong(line: str, shown: bool) -> None:
    assert (_ROUTINE.match(f"2026-01-01T00:00:00.000 {line}") is None) == shown


def test_a_first_start_says_that_it_compiles_and_how_long_that_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compile_ahead, "wanted", lambda: True)
    monkeypatch.setattr(compile_ahead, "MODULES", ("services.no_such_module",))
    settings = Settings.for_tests(executor="compiled")
    with compiling(settings):
        before = capsys.readouterr().err
    after = capsys.readouterr().err
    assert "first start: compiling" in before and "one or two minutes" in before
    assert re.search(r"compiled after \d+ s; starting\n$", after)


@pytest.mark.parametrize("given", [{"engine": "mock"}, {"executor": "plain"}, {"executor": "triton"}])
def test_a_start_that_compiles_nothing_says_nothing_of_it(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compile_ahead, "wanted", lambda: True)
    with compiling(Settings.for_tests(**given)):
        pass
    assert capsys.readouterr().err == ""


def test_a_long_start_says_what_it_waits_for() -> None:
    assert waiting_for({"streamer-1"}, 15.4) == "after 15 s still waiting for streamer-1"
    assert "compiles" in waiting_for({"worker-1", "streamer-1"}, 30)


def test_a_model_name_with_a_quote_cannot_leave_the_command() -> None:
    words = shlex.split(curl(Settings.for_tests(served_model_name="it's; rm -rf"), "http://x"))
    assert json.loads(words[-1])["model"] == "it's; rm -rf"


def test_a_lost_streamer_is_replaced_only_where_another_is_ready() -> None:
    def member(role: str, number: int, state: str) -> Member:
        return Member(role, f"{role}-{number}", "ipc:///x", 1, state)  # type: ignore[arg-type]

    hung, other = member("streamer", 1, "lost"), member("streamer", 2, "ready")
    assert is_replaceable("streamer-1", [hung, other])
    assert not is_replaceable("streamer-1", [hung])
    assert not is_replaceable("streamer-1", [hung, member("streamer", 2, "unready"), member("worker", 1, "ready")])
    # It is heard of again, or has left.
    assert not is_replaceable("streamer-1", [member("streamer", 1, "ready"), other])
    assert not is_replaceable("streamer-1", [other])


# Real processes -------------------------------------------------------------------------------------------------------


class Mesh:
    """An `up` with tiny roles, and what it printed."""

    def __init__(self, folder: Path, **more: str) -> None:
        self.run_dir = folder / "run"
        self.ports = free_ports(4)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SPECMESH_", "TINY"))}
        env |= {
            "PYTHONPATH": str(ROOT),
            "SPECMESH_RUN_DIR": str(self.run_dir),
            "SPECMESH_METRICS_PORT": str(self.ports),
            # The streamer's side door: it says ready as the real door does.
            "SPECMESH_PORT": str(self.ports),
            **more,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(TINY_UP)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def says(self, what: str, times: int = 1, seconds: float = LONG) -> bool:
        return wait_until(lambda: sum(what in line for line in list(self.lines)) >= times, seconds)

    def pids(self) -> dict[str, int]:
        """Instance to process id, of the children alive."""
        found: dict[str, int] = {}
        for entry in Path("/proc").iterdir():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(stat[1]) != self.process.pid or stat[0] == "Z":
                    continue
                environ = (entry / "environ").read_bytes().split(b"\0")
            except (OSError, ValueError, IndexError):
                continue
            for item in environ:
                if item.startswith(b"SPECMESH_INSTANCE="):
                    found[item.partition(b"=")[2].decode()] = int(entry.name)
        return found

    def code(self) -> int:
        code = self.process.wait(LONG)
        self._reader.join(LONG)
        return code

    def text(self) -> str:
        return "\n".join(self.lines)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Mesh]]:
    meshes: list[Mesh] = []

    def start(**more: str) -> Mesh:
        meshes.append(Mesh(tmp_path, **more))
        return meshes[-1]

    yield start
    for mesh in meshes:
        mesh.end()


@pytest.fixture(scope="module")
def one_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """For three tests, the last of which ends it."""
    mesh = Mesh(tmp_path_factory.mktemp("one"))
    try:
        assert mesh.says("is ready (")
        yield mesh
    finally:
        mesh.end()


def test_the_box_appears_when_all_are_ready_and_ctrl_c_leaves_no_process_and_no_socket(
    start: Callable[..., Mesh],
) -> None:
    mesh = start()
    assert mesh.says("is ready (")
    pids = mesh.pids()
    assert set(pids) == {"tokenizer-1", "proposer-1", "worker-1", "streamer-1"}
    with urllib.request.urlopen(f"http://127.0.0.1:{mesh.ports + 3}/health/ready", timeout=5) as answer:
        assert answer.status == 200
    mesh.process.send_signal(signal.SIGINT)
    assert mesh.code() == 0
    assert all(map(gone, pids.values()))
    assert sorted(path.name for path in mesh.run_dir.iterdir()) == ["epoch", "logs", "up.lock"]
    assert (mesh.run_dir / "logs" / "worker-1.log").read_text()
    order = [line.split()[0] for line in mesh.lines if line.endswith("| stopped")]
    assert order[0] == "streamer-1" and order[1] == "worker-1"
    assert [line for line in mesh.lines if re.search("WARNING|ERROR|lost", line)] == [], "nothing was wrong"


def test_a_second_up_in_the_same_run_dir_says_who_is_there(one_mesh: Mesh) -> None:
    flags = [f"--run-dir={one_mesh.run_dir}", "--port=0"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("SPECMESH_")} | {"SPECMESH_CONFIG": ""}
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "up", *flags],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 1
    assert f"process {one_mesh.process.pid}" in done.stderr and "--run-dir" in done.stderr


def test_a_killed_role_is_back_and_the_others_never_notice(one_mesh: Mesh) -> None:
    before = one_mesh.pids()
    os.kill(before["worker-1"], signal.SIGKILL)
    assert wait_until(lambda: one_mesh.pids().get("worker-1", before["worker-1"]) != before["worker-1"], LONG)
    assert one_mesh.says("worker-1 services.runtime.process: ready", times=2)
    after = one_mesh.pids()
    assert {name for name in before if before[name] != after[name]} == {"worker-1"}
    assert one_mesh.says("worker-1    | killed by SIGKILL")


def test_when_up_itself_is_killed_its_children_die_within_two_seconds(one_mesh: Mesh) -> None:
    pids = one_mesh.pids()
    assert len(pids) == 4
    one_mesh.process.kill()
    assert wait_until(lambda: all(map(gone, pids.values())), 2.0)

    again = Mesh(one_mesh.run_dir.parent)
    try:
        assert again.says("is ready (")
    finally:
        again.end()


def test_an_essential_role_that_cannot_start_ends_up_with_its_reason(start: Callable[..., Mesh]) -> None:
    mesh = start(TINY_WORKER="start_fails")
    assert mesh.code() == 1
    assert "worker-1 cannot run: ended with code 1" in mesh.text()
    assert "no weights in this folder" in mesh.text() and "logs/worker-1.log" in mesh.text()
    assert not mesh.pids()


def test_without_a_proposer_the_mesh_serves_all_the_same(start: Callable[..., Mesh]) -> None:
    mesh = start(TINY_PROPOSER="start_fails")
    assert mesh.says("is ready (")
    assert mesh.says("goes on without its drafts")
    mesh.process.send_signal(signal.SIGTERM)
    assert mesh.code() == 0


def test_a_stopped_streamer_is_killed_and_replaced_after_its_time(start: Callable[..., Mesh]) -> None:
    # Long enough that none of the others is without progress for it on a busy machine.
    mesh = start(SPECMESH_KILL_STUCK_AFTER="3")
    assert mesh.says("is ready (")
    pid = mesh.pids()["streamer-1"]
    os.kill(pid, signal.SIGSTOP)
    assert mesh.says("streamer-1  | no progress for")
    assert mesh.says("streamer-1 services.runtime.process: ready", times=2)
    assert gone(pid)


def test_a_stopped_role_is_killed_once_it_is_fenced_but_a_streamer_which_goes_on_is_not(
    start: Callable[..., Mesh],
) -> None:
    mesh = start(SPECMESH_KILL_STUCK_AFTER="0")
    assert mesh.says("is ready (")
    before = mesh.pids()
    os.kill(before["streamer-1"], signal.SIGSTOP)
    assert mesh.says("streamer-1 is lost")
    os.kill(before["worker-1"], signal.SIGSTOP)
    assert mesh.says("worker-1    | fenced")
    assert mesh.says("worker-1 services.runtime.process: ready", times=2)
    assert gone(before["worker-1"])
    os.kill(before["streamer-1"], signal.SIGCONT)
    assert mesh.says("going on with a new epoch")
    assert mesh.pids()["streamer-1"] == before["streamer-1"]


@pytest.mark.slow
def test_a_stopped_streamer_of_two_is_replaced_long_before_its_time(start: Callable[..., Mesh]) -> None:
    """New connections go to it as long as it is there."""
    mesh = start(SPECMESH_KILL_STUCK_AFTER="0", SPECMESH_STREAMERS="2")
    assert mesh.says("is ready (")
    pid = mesh.pids()["streamer-2"]
    os.kill(pid, signal.SIGSTOP)
    assert mesh.says("streamer-2  | fenced")
    assert mesh.says("streamer-2 services.runtime.process: ready", times=2)
    assert gone(pid)


def test_a_second_ctrl_c_ends_at_once(start: Callable[..., Mesh]) -> None:
    mesh = start(TINY_STREAMER="drain_hangs")
    assert mesh.says("is ready (")
    mesh.process.send_signal(signal.SIGINT)
    assert mesh.says("streamer-1  | draining")
    mesh.process.send_signal(signal.SIGINT)
    assert mesh.code() == 0
    assert not mesh.pids()
