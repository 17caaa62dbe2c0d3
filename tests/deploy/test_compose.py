"""compose.yaml as a stranger runs it, on a real engine (deploy/docker_e2e.sh says what it needs)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="starting an engine and debootstrap need root")
def test_compose_up_streams_an_answer_and_prometheus_sees_accepted_drafts() -> None:
    finished = subprocess.run(
        [ROOT / "deploy" / "docker_e2e.sh"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1500
    )
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-4000:]
    assert "docker compose up: works" in finished.stdout
