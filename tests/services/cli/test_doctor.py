"""The doctor finds each fault, made for real where that can be, and names its fix."""

from __future__ import annotations

import argparse
import asyncio
import http.server
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernels import amx
from mesh.codec import Codec
from mesh.node import Node
from mesh.security import load_security, make_keys
from mesh.transport.zmq import ZmqTransport
from services.api.settings import ROLES, Settings, mesh_metrics_port
from services.cli.doctor import machine, mesh
from services.cli.doctor.finding import Finding
from services.cli.doctor.run import CHECKS, examine
from services.cli.main import main


def only(findings: list[Finding], level: str) -> list[Finding]:
    return [finding for finding in findings if finding.level == level]


def one(findings: list[Finding], level: str) -> Finding:
    [finding] = only(findings, level)
    assert level == "ok" or finding.fix, "every fault has a fix"
    return finding


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Nothing of this machine's own mesh: folders and ports that nobody else uses."""
    return Settings.for_tests(
        cache_dir=str(tmp_path / "cache"), run_dir=str(tmp_path / "run"), port=free_port(), engine="mock"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def side_door(answer: Any, status: int = 200) -> Iterator[int]:
    """An HTTP server that says `answer` to everything."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def at_ports(monkeypatch: pytest.MonkeyPatch, ports: dict[str, int]) -> None:
    """Give the roles' side doors ports of this test; those not named get one where nobody listens."""
    table = {role: ports.get(role) or free_port() for role in ROLES}
    monkeypatch.setattr(mesh, "mesh_metrics_port", lambda settings, role: table[role])


# Model


def test_no_model_in_the_cache_is_a_warning_that_says_how_to_fetch_it(settings: Settings) -> None:
    finding = one(machine.model(settings), "warn")
    assert finding.fix == "specmesh model fetch smollm2-135m-instruct"


def test_a_path_without_a_model_is_bad(settings: Settings, tmp_path: Path) -> None:
    finding = one(machine.model(settings.replaced(model=str(tmp_path / "nothing"))), "bad")
    assert "there is no model at" in finding.what


def test_a_whole_model_passes(settings: Settings, tiny_model: Path) -> None:
    assert one(machine.model(settings.replaced(model=str(tiny_model))), "ok")


def _cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-2])


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (_cut_weights, "cut short"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "config.json").write_text('{"architectures": ["X"]}'), "X is not supported"),
    ],
)
def test_a_broken_model_is_named_file_by_file(
    settings: Settings, tiny_model: Path, damage: Callable[[Path], None], named: str
) -> None:
    damage(tiny_model)
    assert named in one(machine.model(settings.replaced(model=str(tiny_model))), "bad").what


def test_a_file_that_is_no_gguf_is_bad(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model at all" * 10)
    assert one(machine.model(settings.replaced(model=str(tmp_path / "x.gguf"))), "bad")


# Disk and memory


def test_room_on_the_disk_passes(settings: Settings) -> None:
    assert len(only(machine.disk(settings), "ok")) == 2


def test_a_full_disk_is_bad(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MODEL_ROOM", 1 << 60)
    finding = one(machine.disk(settings), "bad")
    assert "MB free" in finding.what and "cache_dir" in finding.fix


def test_a_folder_that_cannot_be_written_is_bad(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write everywhere, so the kernel's answer is ours here.
    monkeypatch.setattr(os, "access", lambda path, mode: "cache" not in str(path))
    Path(settings.cache_dir).mkdir()
    assert "cannot be written" in one(machine.disk(settings), "bad").what


def test_more_kv_pages_than_memory_is_a_warning_with_a_size_that_fits(settings: Settings) -> None:
    finding = one(machine.memory(settings.replaced(kv_cache_mb=1048576)), "warn")
    assert finding.fix.startswith("--kv-cache-mb ")
    assert one(machine.memory(settings.replaced(kv_cache_mb=1)), "ok")


def test_memory_is_what_the_target_would_find_not_what_the_machine_has(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 100 << 20)
    finding = one(machine.memory(settings.replaced(kv_cache_mb=200)), "warn")
    assert finding.what == "kv_cache_mb asks for 200 MB, 100 MB are available"
    assert finding.fix == "--kv-cache-mb 50"


def test_fewer_descriptors_than_connections_are_a_warning_with_a_number_that_fits(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "hard_limit", lambda: 1024)
    finding = one(machine.open_files(settings), "warn")
    assert finding.what == "max_connections is 2048, the hard limit of 1024 open files has room for 832"
    assert "--max-connections 832" in finding.fix
    assert one(machine.open_files(settings.replaced(max_connections=832)), "ok")


def test_what_the_loops_use_of_the_processor_is_told(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx, "FOUND", True)
    monkeypatch.setattr(amx, "AVAILABLE", True)
    assert [each.what for each in machine.processor(settings)] == ["AMX is used"]
    (without,) = machine.processor(settings.replaced(amx=False))
    assert without.level == "ok" and "bfloat16" in without.what
    (portable,) = machine.processor(settings.replaced(determinism="portable"))
    assert portable.level == "ok" and "portable" in portable.what
    monkeypatch.setattr(amx, "AVAILABLE", False)
    (forbidden,) = machine.processor(settings)
    assert forbidden.level == "warn" and "arch_prctl" in forbidden.fix


def test_low_shared_memory_is_a_warning(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "shm" in one(machine.shared_memory(settings, tmp_path / "none"), "warn").fix
    assert one(machine.shared_memory(settings, tmp_path), "ok")
    monkeypatch.setattr(machine, "LEAST_SHARED_MEMORY", 1 << 60)
    assert "shm" in one(machine.shared_memory(settings, tmp_path), "warn").fix


# Packages


@contextmanager
def installed(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> Iterator[None]:
    """A package's metadata, as pip leaves it, ahead of the real one."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [f"Requires-Dist: {one}" for one in requires]
    (info / "METADATA").write_text("\n".join([f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *lines]))
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@pytest.fixture
def torch_wanted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(machine, "_import_problem", lambda package: "")
    return settings.replaced(engine="torch")


def test_the_mock_engine_needs_no_torch(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_version", lambda package: None)
    assert one(machine.torch(settings), "ok")


def test_a_torch_that_is_missing_or_old_is_bad(torch_wanted: Settings, tmp_path: Path) -> None:
    with installed(tmp_path, "torch", "2.4.1+cpu"):
        finding = one(machine.torch(torch_wanted), "bad")
    assert "2.4.1+cpu is older than 2.11" in finding.what
    assert "pip install 'torch>=2.11'" in finding.fix


def test_no_torch_at_all_is_bad(torch_wanted: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_version", lambda package: None)
    assert "not installed" in one(machine.torch(torch_wanted), "bad").what


def test_a_triton_torch_was_not_built_for_is_bad(torch_wanted: Settings, tmp_path: Path) -> None:
    pinned = ('triton==3.7.0; platform_system == "Linux"',)
    with installed(tmp_path, "torch", "2.13.0", pinned), installed(tmp_path, "triton", "3.6.1"):
        assert one(machine.torch(torch_wanted), "bad").fix == "pip install triton==3.7.0"


def test_an_old_triton_is_bad(torch_wanted: Settings, tmp_path: Path) -> None:
    with installed(tmp_path, "torch", "2.13.0"), installed(tmp_path, "triton", "2.1.0"):
        assert "older than 3.6" in one(machine.torch(torch_wanted), "bad").what


def test_a_package_that_does_not_load_is_found_without_loading_it_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "breaks.py").write_text("raise ImportError('libx.so.1: cannot open shared object file')")
    (tmp_path / "dies.py").write_text("import os; os.kill(os.getpid(), 4)")
    (tmp_path / "loads.py").write_text("")
    assert "libx.so.1" in machine._import_problem("breaks")
    assert "illegal instruction" in machine._import_problem("dies")
    assert machine._import_problem("loads") == ""


def test_packages_the_project_asks_for_are_compared(settings: Settings, tmp_path: Path) -> None:
    wants = ("aiohttp>=99.1", "no-such-package>=1", "pyzmq>=1", 'pytest>=99; extra == "dev"')
    with installed(tmp_path, "specmesh", "0.1.0", wants):
        told = [finding.what for finding in only(machine.packages(settings), "bad")]
    assert len(told) == 2
    assert "99.1 or newer" in told[0] and "no-such-package is missing" in told[1]


# Ports


def test_free_ports_pass(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    at_ports(monkeypatch, {})
    assert one(mesh.ports(settings), "ok").what == "5 ports are free"


def test_a_taken_port_is_bad_and_a_free_one_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    at_ports(monkeypatch, {})
    with socket.create_server(("127.0.0.1", settings.port)) as listener:
        # Whoever connects is sent away: a listener that says nothing would only cost the test its time.
        sender = threading.Thread(target=_hang_up, args=(listener,))
        sender.start()
        finding = one(mesh.ports(settings), "bad")
        listener.shutdown(socket.SHUT_RDWR)
        sender.join()
    assert f"127.0.0.1:{settings.port} is taken by another program" in finding.what
    suggested = int(finding.fix.rsplit(" ", 1)[1])
    assert mesh.bind_problem("127.0.0.1", suggested) == ""


def _hang_up(listener: socket.socket) -> None:
    try:
        while True:
            listener.accept()[0].close()
    except OSError:
        pass


def test_a_port_our_own_mesh_serves_is_fine(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with side_door({"ready": True}) as port:
        at_ports(monkeypatch, {"worker": port})
        assert not only(mesh.ports(settings), "bad")


def test_the_streamers_own_door_is_known_as_ours(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    at_ports(monkeypatch, {})
    with side_door({"status": "ready", "reasons": [], "roles": {}}) as port:
        assert not only(mesh.ports(settings.replaced(port=port)), "bad")


def test_a_port_held_by_someone_who_says_nothing_is_told_apart(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "ASK_TIMEOUT", 0.2)
    at_ports(monkeypatch, {})
    with socket.create_server(("127.0.0.1", settings.port)):
        assert "says nothing" in one(mesh.ports(settings), "bad").what


def test_an_address_of_another_machine_is_bad(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    at_ports(monkeypatch, {})
    assert "cannot be listened on" in one(mesh.ports(settings.replaced(host="192.0.2.1")), "bad").what


# Peers


def test_when_nothing_runs_nobody_is_missed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    at_ports(monkeypatch, {})
    assert one(mesh.peers(settings), "ok").what == "no mesh is running here"


def test_a_dead_peer_among_living_ones_is_bad(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with side_door({"ready": True, "reasons": []}) as port:
        at_ports(monkeypatch, {role: port for role in ROLES if role != "worker"})
        finding = one(mesh.peers(settings), "bad")
    assert "worker" in finding.what and "does not answer, while others do" in finding.what


def test_a_peer_that_is_not_ready_says_why(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with side_door({"ready": True}) as ready, side_door({"ready": False, "reasons": ["no proposer"]}, 503) as not_ready:
        at_ports(monkeypatch, dict.fromkeys(ROLES, ready) | {"streamer": not_ready})
        assert "streamer" in (finding := one(mesh.peers(settings), "warn")).what
        assert "no proposer" in finding.what


def test_a_peer_that_takes_the_connection_and_says_nothing_is_bad(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "ASK_TIMEOUT", 0.2)
    with side_door({"ready": True}) as ready, socket.create_server(("127.0.0.1", 0)) as silent:
        at_ports(monkeypatch, dict.fromkeys(ROLES, ready) | {"proposer": silent.getsockname()[1]})
        finding = one(mesh.peers(settings), "bad")
    assert "says nothing" in finding.what and "kill -CONT" in finding.fix


@pytest.mark.parametrize("answer", [b"not json", [], {"live": True}, b"[" * 100000])
def test_a_side_door_that_is_not_ours_answers_nonsense(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    with side_door(answer) as port:
        at_ports(monkeypatch, {"worker": port})
        assert "answers nonsense" in str([finding.what for finding in mesh.peers(settings)])


def test_the_ports_looked_at_are_those_the_roles_use(settings: Settings) -> None:
    assert mesh.mesh_metrics_port is mesh_metrics_port


# The run folder


def test_sockets_and_pid_files_of_dead_processes_are_found(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(folder / "worker-1.sock"))
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(folder / "streamer-1.sock"))
        living.listen()
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        (folder / "up.pid").write_text(f"{gone.pid}\n")
        (folder / "own.pid").write_text(str(os.getpid()))
        (folder / "odd.pid").write_text("?")
        finding = one(mesh.run_folder(settings), "warn")
    assert finding.fix == f"rm {folder}/worker-1.sock {folder}/up.pid"


def test_a_run_folder_others_may_write_is_bad(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o777)
    assert one(mesh.run_folder(settings), "bad").fix == f"chmod 700 {folder}"
    folder.chmod(0o700)
    assert one(mesh.run_folder(settings), "ok")


def test_a_run_folder_that_is_not_there_is_no_fault(settings: Settings) -> None:
    assert one(mesh.run_folder(settings), "ok")


def test_a_mesh_in_another_run_dir_is_told_with_the_folder_to_look_at(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "other run"
    folder.mkdir(mode=0o700)
    with side_door({"ready": True}) as port, socket.socket(socket.AF_UNIX) as directory:
        directory.bind(str(folder / "directory.sock"))
        directory.listen()
        assert folder in mesh.folders_at_work()
        monkeypatch.setattr(mesh, "folders_at_work", lambda: [folder])
        at_ports(monkeypatch, dict.fromkeys(ROLES, port))
        finding = one(mesh.run_folder(settings), "warn")
        [command, *_, given] = shlex.split(finding.fix)
        assert (command, given) == ("specmesh", str(folder))
        assert one(mesh.run_folder(settings.replaced(run_dir=given)), "ok")
        # Nothing answers at these ports: whatever runs there isn't meant.
        at_ports(monkeypatch, {})
        assert one(mesh.run_folder(settings), "ok")


def test_without_a_table_of_sockets_no_folder_is_known(tmp_path: Path) -> None:
    assert mesh.folders_at_work(tmp_path / "none") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_run_folder_of_another_user_is_bad(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    assert "user 12345" in one(mesh.run_folder(settings), "bad").what


# Keys


def test_an_address_that_leaves_the_machine_needs_keys(settings: Settings) -> None:
    assert one(mesh.keys(settings), "ok")
    finding = one(mesh.keys(settings.replaced(directory="tcp://10.0.0.1:7000")), "bad")
    assert finding.fix == "specmesh keys make"


def test_keys_that_fit_pass(settings: Settings, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ["worker"])
    assert one(mesh.keys(settings.replaced(keys_dir=str(tmp_path / "keys"))), "ok")


def test_a_secret_and_a_public_key_that_are_no_pair_are_bad(settings: Settings, tmp_path: Path) -> None:
    make_keys(tmp_path / "a", ["worker"])
    make_keys(tmp_path / "b", ["worker"])
    (tmp_path / "a" / "worker.public").write_text((tmp_path / "b" / "worker.public").read_text())
    assert "not a pair" in one(mesh.keys(settings.replaced(keys_dir=str(tmp_path / "a"))), "bad").what


def test_a_secret_that_others_can_read_is_bad(settings: Settings, tmp_path: Path) -> None:
    make_keys(tmp_path / "a", ["worker"])
    (tmp_path / "a" / "worker.secret").chmod(0o644)
    assert "can be read by others" in one(mesh.keys(settings.replaced(keys_dir=str(tmp_path / "a"))), "bad").what


def test_a_folder_without_keys_is_bad(settings: Settings, tmp_path: Path) -> None:
    assert "specmesh keys make" in one(mesh.keys(settings.replaced(keys_dir=str(tmp_path))), "bad").fix


@asynccontextmanager
async def node_at(folder: Path, name: str) -> AsyncIterator[str]:
    """A node as a directory is bound on, with the keys of a folder."""
    node = Node(ZmqTransport(security=load_security(folder, name)), Codec({}), name="directory-1")
    await node.start("tcp://127.0.0.1:0")
    try:
        yield node.endpoint
    finally:
        await node.stop(timeout=1.0)


async def test_a_directory_whose_keys_fit_answers(settings: Settings, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, ["worker"])
    async with node_at(keys, "worker") as address:
        here = settings.replaced(directory=address, keys_dir=str(keys))
        assert "the keys fit" in one(await asyncio.to_thread(mesh.directory, here), "ok").what


async def test_a_directory_with_other_keys_is_told_from_one_that_is_not_there(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "HANDSHAKE_TIMEOUT", 0.5)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    make_keys(ours, ["worker"])
    make_keys(theirs, ["worker"])
    here = settings.replaced(keys_dir=str(ours))
    async with node_at(theirs, "worker") as address:
        here = here.replaced(directory=address)
        assert "refuses the keys" in one(await asyncio.to_thread(mesh.directory, here), "bad").what
        # The right mesh key, but a member that isn't on the list.
        shutil.copy(theirs / "mesh.public", ours)
        assert "refuses the keys" in one(await asyncio.to_thread(mesh.directory, here), "bad").what
    nobody = here.replaced(directory=f"tcp://127.0.0.1:{free_port()}")
    assert "nothing listens" in one(mesh.directory(nobody), "bad").what


# The whole


def options(**flags: Any) -> argparse.Namespace:
    return argparse.Namespace(json=False, **{f"setting_{name}": value for name, value in flags.items()})


def test_bad_settings_are_a_finding_and_end_the_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECMESH_CONFIG", "")
    findings = list(examine(options(port="x")))
    assert [(finding.name, finding.level) for finding in findings] == [("settings", "bad")]


def test_a_check_that_trips_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def trips(settings: Settings) -> list[Finding]:
        raise RuntimeError("oh")

    monkeypatch.setenv("SPECMESH_CONFIG", "")
    for name in CHECKS:
        monkeypatch.setitem(CHECKS, name, lambda settings: [])
    monkeypatch.setitem(CHECKS, "model", trips)
    monkeypatch.setitem(CHECKS, "peers", lambda settings: [Finding("peers", "ok", "fine")])
    findings = list(examine(options()))
    assert [finding.level for finding in findings] == ["ok", "warn", "ok"]
    assert "RuntimeError: oh" in findings[1].what


def test_the_exit_code_says_whether_something_is_bad(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECMESH_CONFIG", "")
    at_ports(monkeypatch, {})
    common = ["--engine=mock", f"--run-dir={tmp_path}/run", f"--cache-dir={tmp_path}", f"--port={free_port()}"]
    assert main(["doctor", f"--model={tiny_model}", *common]) == 0
    capsys.readouterr()
    assert main(["doctor", f"--model={tmp_path}/none", "--json", *common]) == 1
    findings = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in findings if finding["level"] == "bad"] == ["model"]


# Store


@pytest.mark.parametrize("made", [False, True])
def test_a_store_of_this_user_is_fine_also_before_it_is_made(settings: Settings, tmp_path: Path, made: bool) -> None:
    if made:
        (tmp_path / "cache" / "store").mkdir(parents=True, mode=0o700)
    assert one(machine.store(settings), "ok")


def test_a_store_that_others_may_write_is_bad(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "learned"
    folder.mkdir()
    folder.chmod(0o775)
    finding = one(machine.store(settings.replaced(store_dir=str(folder))), "bad")
    assert str(folder) in finding.what and finding.fix == f"chmod 700 {folder}"


def test_a_store_in_memory_is_fine(settings: Settings) -> None:
    assert one(machine.store(settings.replaced(store_dir="none")), "ok")
