"""A mesh on three machines of Ray: one dies under streams, workers come and go, the directory moves, all of it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.cluster_utils", reason="make ray")

import ray
from ray_mesh import RayMesh, ray_mesh, role_processes, three_machines, wait_until_gone
from running_mesh import until
from sse_client import Answer
from test_deaths import ALONE, PROFILE, all_complete_and_equal, calm_texts, run_all, struck_under_way

from services.placement.folder import prefix
from services.placement.ray_cluster import KEEPER

STREAMS, TOKENS = 8, 400
MOCK = {"engine": "mock", "mock_profile": PROFILE, "worker_cpus": 1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with three_machines() as machines:
        yield machines


@pytest.fixture(scope="module")
def mesh(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayMesh]:
    with ray_mesh(cluster, tmp_path_factory.mktemp("mesh"), workers=3, **MOCK) as mesh:
        mesh.wait_for_workers(3)
        yield mesh


async def while_streaming(
    mesh: RayMesh, act: Callable[[], object], tokens: int = TOKENS, streams: int = STREAMS
) -> list[Answer]:
    async def strike() -> None:
        await asyncio.to_thread(act)

    return await struck_under_way(mesh, tokens, streams, strike)


def test_each_node_has_a_worker_and_streamer_and_keeper_are_where_up_was_typed(mesh: RayMesh) -> None:
    assert len({each["machine"] for each in mesh.watchers()}) == 3
    home = ray.get_runtime_context().get_node_id()
    assert mesh.watchers("streamer")[0]["machine"] == home
    keepers = [each for each in ray._private.state.actors().values() if each["Name"] == KEEPER]
    assert [each["Address"]["NodeID"] for each in keepers if each["State"] == "ALIVE"] == [home]


def folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(prefix() + "*"))


def test_keys_are_files_of_ours_and_in_no_command_environment_or_log(mesh: RayMesh) -> None:
    assert len(folders()) >= 7
    secrets = [file for folder in folders() for file in folder.glob("keys/*.secret")]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in secrets)
    words = {file.read_text().strip().encode() for file in secrets}
    assert len(words) >= 5
    for pid in role_processes():
        for seen in (Path(f"/proc/{pid}/cmdline"), Path(f"/proc/{pid}/environ")):
            assert not [word for word in words if word in seen.read_bytes()]
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    logs = [*(session / "logs").rglob("*.log"), *(session / "logs").rglob("*.out"), *(session / "logs").rglob("*.err")]
    assert logs
    for log in [*logs, mesh.output]:
        assert not [word for word in words if word in log.read_bytes()], log


async def test_workers_come_and_go_under_streams_and_no_request_fails(mesh: RayMesh) -> None:
    expected = await calm_texts(mesh, TOKENS, streams=STREAMS)
    for count in (1, 3):
        done = asyncio.create_task(asyncio.to_thread(mesh.command, "scale", "worker", str(count)))
        while not done.done():
            all_complete_and_equal(await run_all(mesh, TOKENS, streams=STREAMS, speculation=ALONE), expected)
        scaled = await done
        assert scaled.returncode == 0, scaled.stderr
        assert len(mesh.watchers()) == count


async def test_every_worker_is_replaced_under_streams_and_no_request_fails(mesh: RayMesh) -> None:
    expected = await calm_texts(mesh, TOKENS, streams=STREAMS)
    before = mesh.watchers()
    done = asyncio.create_task(asyncio.to_thread(mesh.command, "roll"))
    while not done.done():
        all_complete_and_equal(await run_all(mesh, TOKENS, streams=STREAMS, speculation=ALONE), expected)
    rolled = await done
    assert rolled.returncode == 0, rolled.stderr
    after = mesh.watchers()
    assert len(after) == len(before) == 3
    for each in ("instance", "pid"):
        assert not {one[each] for one in before} & {one[each] for one in after}
    # Each began when the one before was there, and none drained before another had come for it.
    assert rolled.stderr.count("after it was wanted") == 3 and rolled.stderr.count("has ended") == 3
    wait_until_gone([each["pid"] for each in before])


def test_status_says_on_which_machine_each_process_is(mesh: RayMesh) -> None:
    told = mesh.command("status", f"--port={mesh.port}", "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    # Those that were replaced just now are gone, and are shown for a while.
    machines = {each["instance"]: each["machine"] for each in found["members"] if each["state"] != "gone"}
    workers = {each["instance"]: each["machine"] for each in mesh.watchers()}
    assert all(machines[name].endswith("/" + workers[name][:6]) for name in workers)
    assert found["ray"]["waiting"] == [] and found["ray"]["lines"] == []


async def test_a_directory_that_moves_is_found_again_and_remembers_what_was_wanted(mesh: RayMesh) -> None:
    expected = await calm_texts(mesh, TOKENS, streams=STREAMS)
    before = mesh.keeper().status()
    assert before is not None

    def moved() -> bool:
        now = mesh.keeper().status()
        return now is not None and now["directory"] != before["directory"]

    def kill() -> None:
        ray.kill(ray.get_actor(KEEPER), no_restart=False)
        until(moved, 60.0, lambda: mesh.text()[-4000:])

    all_complete_and_equal(await while_streaming(mesh, kill), expected)
    await asyncio.to_thread(mesh.wait_for_workers, 3, 60.0)
    after = mesh.keeper().status()
    assert after is not None and after["desired"] == before["desired"]
    assert {each["instance"]: each["pid"] for each in after["watchers"]} == {
        each["instance"]: each["pid"] for each in before["watchers"]
    }


async def test_a_node_that_dies_under_streams_fails_none_and_its_worker_is_placed_anew(mesh: RayMesh) -> None:
    expected = await calm_texts(mesh, TOKENS, streams=STREAMS)
    home = mesh.watchers("streamer")[0]["machine"]
    before = mesh.watchers()
    victim = next(each for each in before if each["machine"] != home)
    lost = [each["pid"] for each in before if each["machine"] == victim["machine"]]
    answers = await while_streaming(mesh, lambda: mesh.kill_machine(victim["machine"]))
    all_complete_and_equal(answers, expected)
    await asyncio.to_thread(mesh.wait_for_workers, 3)
    assert victim["machine"] not in {each["machine"] for each in mesh.watchers()}
    wait_until_gone(lost)
    all_complete_and_equal(await run_all(mesh, TOKENS, streams=STREAMS, speculation=ALONE), expected)


async def test_a_role_process_that_is_killed_is_started_again_by_its_host(mesh: RayMesh) -> None:
    victim = mesh.watchers()[0]
    os.kill(victim["pid"], signal.SIGKILL)

    def again() -> bool:
        found = [each for each in mesh.watchers() if each["instance"] == victim["instance"]]
        return bool(found) and found[0]["state"] == "ready" and found[0]["pid"] != victim["pid"]

    await asyncio.to_thread(until, again, 60.0, lambda: mesh.text()[-4000:])


def test_a_second_mesh_in_the_same_cluster_is_refused(mesh: RayMesh, tmp_path: Path) -> None:
    other = RayMesh(mesh.cluster, tmp_path, **MOCK)
    assert other.process.wait(60) == 1
    assert "specmesh down" in other.text()


async def test_the_mesh_goes_on_without_up_and_down_ends_all_of_it(mesh: RayMesh) -> None:
    """Last: nothing runs afterwards. That `up` ends with the mesh is in test_lines.py."""
    expected = await calm_texts(mesh, 100, streams=4)
    mesh.process.kill()
    mesh.process.wait()
    all_complete_and_equal(await run_all(mesh, 100, streams=4, speculation=ALONE), expected)
    left = list(role_processes())
    assert left
    down = await asyncio.to_thread(mesh.command, "down")
    assert down.returncode == 0, down.stderr
    wait_until_gone(left)
    assert folders() == []
    assert [row for row in ray.util.placement_group_table().values() if row["state"] != "REMOVED"] == []
    again = await asyncio.to_thread(mesh.command, "scale", "worker", "2")
    assert again.returncode == 1 and "no mesh runs" in again.stderr
