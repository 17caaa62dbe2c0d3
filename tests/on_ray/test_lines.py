"""The lines of docs/operate/cluster.md that start, scale and end a mesh on a cluster, as they stand there; and the real
model on three machines."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("ray.cluster_utils", reason="make ray")

from ray_mesh import RayMesh, ray_mesh, three_machines
from test_deaths import ALONE, all_complete_and_equal, calm_texts, run_all
from test_on_ray import MOCK, while_streaming

from bench.running_mesh import ROOT


def lines_of(page: str) -> list[str]:
    """The commands of `specmesh` in the page's first console."""
    console = re.search(r"```console\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert console
    return [line.removeprefix("$ ") for line in console[1].splitlines() if line.startswith("$ specmesh")]


@pytest.mark.parametrize("page", ["docs/operate/cluster.md"])
def test_the_lines_of_the_page_start_scale_and_end_a_mesh(page: str, tmp_path: Path) -> None:
    up, scale, down = map(shlex.split, lines_of(page))
    assert up[:6] == ["specmesh", "up", "--on", "ray", "--ray-address", "auto"]
    with three_machines() as cluster, ray_mesh(cluster, tmp_path, **MOCK) as mesh:
        scaled = mesh.command(*scale[1:])
        assert scaled.returncode == 0, scaled.stderr
        assert len(mesh.watchers()) == int(scale[-1])
        ended = mesh.command(*down[1:])
        assert ended.returncode == 0, ended.stderr
        assert mesh.process.wait(30) == 0


@pytest.mark.shows("a Ray cluster of three nodes on one machine", "served")
@pytest.mark.slow
@pytest.mark.model
async def test_the_real_model_says_the_same_when_a_node_dies(tmp_path: Path) -> None:
    with three_machines() as cluster, ray_mesh(cluster, tmp_path, workers=2, worker_cpus=1, threads=1) as mesh:
        mesh.wait_for_workers(2)
        expected = await calm_texts(mesh, 64, streams=4)
        home = mesh.watchers("streamer")[0]["machine"]
        machine = next(each["machine"] for each in mesh.watchers() if each["machine"] != home)

        def strike() -> None:
            mesh.kill_machine(machine)

        answers = await while_streaming(mesh, strike, tokens=64, streams=4)
        all_complete_and_equal(answers, expected)
        await asyncio.to_thread(mesh.wait_for_workers, 2)
        assert_spread(mesh)
        all_complete_and_equal(await run_all(mesh, 64, streams=4, speculation=ALONE), expected)


def assert_spread(mesh: RayMesh) -> None:
    assert len({each["machine"] for each in mesh.watchers()}) == 2
