"""The environment variables of a role's process."""

from __future__ import annotations

from services.api.settings import Settings
from services.runtime.environment import compute_environment


def test_waiting_threads_dont_spin_and_only_the_target_computes() -> None:
    target = compute_environment("worker", Settings.for_tests(threads=3))
    assert target["OMP_NUM_THREADS"] == "3"
    assert (target["OMP_WAIT_POLICY"], target["GOMP_SPINCOUNT"], target["KMP_BLOCKTIME"]) == ("PASSIVE", "0", "0")
    assert compute_environment("proposer", Settings.for_tests(threads=3))["OMP_NUM_THREADS"] == "1"
