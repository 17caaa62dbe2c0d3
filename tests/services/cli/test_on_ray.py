"""`up --on ray`, `scale` and `down` without Ray: what they say, and what is decided from a keeper's status.
tests/on_ray runs them on a cluster."""

from __future__ import annotations

import argparse
import fcntl
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from mesh.security import make_keys
from services.api.settings import ROLES, Settings
from services.cli import main as command_line
from services.cli import on_ray, ray_commands, which_mesh
from services.placement import ray_cluster


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it isn't installed."""
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.mark.parametrize(
    "words",
    [["up", "--on", "ray"], ["scale", "worker", "2"], ["roll", "--ray-address=auto"], ["down"]],
    ids=lambda words: " ".join(words),
)
def test_without_ray_a_command_says_in_one_sentence_what_to_install(
    words: list[str], no_ray: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECMESH_CONFIG", "")
    assert command_line.main([*words, f"--run-dir={tmp_path}"]) == 1
    said = capsys.readouterr().err
    assert said == f"specmesh: {ray_cluster.INSTALL}\n" and "pip install '.[ray]'" in said
    assert not list(tmp_path.iterdir())


def test_an_address_at_which_nothing_listens_is_refused_at_once() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ray_cluster.NoRay, match=f"no Ray answers at {address}"):
            ray_cluster.check_listens(address)
        listening.listen(1)
        ray_cluster.check_listens(address)
    for named in ("auto", "ray://127.0.0.1:1"):
        ray_cluster.check_listens(named)


def test_a_mesh_on_this_machine_imports_no_ray() -> None:
    import services.cli.up

    assert services.cli.up and "services.placement.ray_cluster" not in vars(services.cli.up)


@pytest.mark.parametrize("count", ["0", "-1", "1025", "two", "1.5", "٣"])
def test_a_number_that_is_none_is_refused(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        command_line.main(["scale", "worker", "--", count])
    assert raised.value.code == 2 and count in capsys.readouterr().err


def test_keys_are_made_for_every_role_and_the_directory_and_the_api_keys_are_a_file_of_their_own() -> None:
    made = on_ray.secrets_of(Settings.for_tests(api_keys="one, two"))
    assert {name.partition(".")[0] for name in made} == {"mesh", "directory", "api_keys", *ROLES}
    assert made["api_keys"] == "one\ntwo\n"
    assert made["worker.secret"] != on_ray.secrets_of(Settings.for_tests())["worker.secret"]


def test_keys_of_a_folder_stay_where_they_are(tmp_path: Path) -> None:
    make_keys(tmp_path, ROLES)
    assert on_ray.secrets_of(Settings.for_tests(keys_dir=str(tmp_path))) == {}


def status(keeper: int, events: list[tuple[int, str]], **more: Any) -> dict[str, Any]:
    return {"keeper": keeper, "events": events, "desired": {"worker": 2, "proposer": 1}, "watchers": [], **more}


def test_events_are_told_once_also_those_of_a_keeper_that_counts_anew() -> None:
    heard = ray_commands.RayHeard()
    assert heard.new(status(7, [(1, "a"), (2, "b")])) == ["a", "b"]
    assert heard.number == 2 and heard.new(status(7, [])) == []
    # What is new was asked for by the number of the other one.
    assert heard.new(status(8, [])) == [] and heard.number == 0
    assert heard.new(status(8, [(1, "c")])) == ["c"]


def watcher(role: str, state: str) -> dict[str, str]:
    return {"role": role, "state": state}


def test_the_mesh_is_ready_with_all_but_proposers() -> None:
    two = [watcher("worker", "ready")] * 2
    assert on_ray.all_ready(status(1, [], watchers=[*two, watcher("proposer", "there")]))
    assert not on_ray.all_ready(status(1, [], watchers=[two[0], watcher("worker", "there")]))


def test_a_scale_is_done_when_so_many_are_ready_and_no_other_is_left() -> None:
    two = [watcher("worker", "ready")] * 2
    assert ray_commands.has(status(1, [], watchers=two), "worker", 2)
    assert not ray_commands.has(status(1, [], watchers=[*two, watcher("worker", "draining")]), "worker", 2)
    assert not ray_commands.has(status(1, [], watchers=two, desired={"worker": 3}), "worker", 2)


def test_the_cluster_is_that_of_the_up_of_this_run_dir(tmp_path: Path) -> None:
    settings = Settings.for_tests(run_dir=str(tmp_path))
    assert which_mesh.cluster_of(settings) == "" and not which_mesh.is_on_ray(settings)
    (tmp_path / which_mesh.ADDRESS).write_text("10.0.0.1:6379\n")
    assert which_mesh.cluster_of(settings) == "10.0.0.1:6379" and which_mesh.is_on_ray(settings)
    with (tmp_path / "up.lock").open("w") as held:
        # An `up` of this machine has come since, and runs.
        fcntl.flock(held, fcntl.LOCK_EX)
        print(4242, file=held, flush=True)
        assert not which_mesh.is_on_ray(settings)
        assert which_mesh.is_on_ray(settings.replaced(ray_address="auto"))


def test_a_roll_is_done_when_none_of_the_old_is_left_and_refused_when_the_keeper_gives_up() -> None:
    old = ["worker-1", "worker-2"]
    two = [{"role": "worker", "instance": name, "state": "ready"} for name in old]
    new = [{**each, "instance": f"worker-{n}"} for n, each in zip((3, 4), two, strict=True)]
    assert not ray_commands.is_rolled(status(1, [], watchers=[*two, new[0]], old=old), old)
    assert not ray_commands.is_rolled(status(1, [], watchers=[new[0], {**new[1], "state": "there"}], old=[]), old)
    assert ray_commands.is_rolled(status(1, [], watchers=new, old=[]), old)
    # A keeper that was started anew and hasn't asked the watchers yet.
    assert not ray_commands.is_rolled(status(1, [], watchers=[], desired={}, old=[]), old)
    with pytest.raises(ray_cluster.NoRay, match="not replaced: worker-2"):
        ray_commands.is_rolled(status(1, [], watchers=[two[1], new[0]], old=[]), old)


def test_up_on_a_machine_is_what_it_was() -> None:
    options = command_line.parser().parse_args(["up"])
    assert isinstance(options, argparse.Namespace) and options.on == "machine"


def test_a_worker_over_several_nodes_is_refused_before_ray_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    two_nodes = ["--tp=2", "--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "--keys-dir=keys"]
    assert command_line.main(["up", "--on", "ray", *two_nodes]) == 1
    told = capsys.readouterr().err
    assert "flag --nnodes: with --on ray a worker's ranks are on one machine" in told
    assert "fix: leave nnodes out" in told
