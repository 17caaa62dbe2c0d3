"""compose.yaml as a stranger runs it, on a real engine (deploy/docker_e2e.sh says what it needs): the image is built;
the mesh comes up, answers under load while Prometheus has data for every panel; its proposer stands still, the alert
for that fires and ends, and no request fails.

In two pieces, minutes each; the second finds what the first one made. E2E_DIR names a folder that stays.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# s: each takes about four minutes on two idle cores, and other work may run beside it.
PATIENCE = 2400

pytestmark = [
    pytest.mark.shows("docker compose on CPUs", "served"),
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="starting an engine and debootstrap need root"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if given := os.environ.get("E2E_DIR"):
        yield Path(given)
        return
    made = tmp_path_factory.mktemp("e2e")
    yield made
    shutil.rmtree(made, ignore_errors=True)


def e2e(folder: Path, *words: str) -> str:
    """What the script said. Too late, it is asked to stop, and takes its engine with it."""
    script = subprocess.Popen(
        [ROOT / "deploy" / "docker_e2e.sh", *words], env=os.environ | {"E2E_DIR": str(folder)}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = script.communicate(timeout=PATIENCE)
    except BaseException:
        # All of its own group: bash hears of it only when what it waits for has ended.
        os.killpg(script.pid, signal.SIGTERM)
        print(script.communicate()[0][-6000:])
        raise
    assert script.returncode == 0, said[-10000:]
    return said


def test_the_image_is_built_from_what_lies_here(folder: Path) -> None:
    assert "the image is built" in e2e(folder, "image")


def test_the_image_for_a_gpu_has_what_triton_needs_where_compose_lets_it_be(folder: Path) -> None:
    said = e2e(folder, "gpu")
    assert "the image for a GPU works" in said and "bits it has in a chunk" in said
    assert "with the cache on compose's /tmp: /tmp/triton is mounted noexec" in said


def test_compose_up_answers_every_panel_has_data_and_a_stopped_proposer_fires_its_alert(folder: Path) -> None:
    said = e2e(folder)
    assert "docker compose up: works" in said
    assert "ProposerDown fires" in said and "ProposerDown is over" in said
