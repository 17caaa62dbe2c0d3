"""The environment variables of the processes that are started here."""

from __future__ import annotations

import os
from collections.abc import Mapping

from services.api.settings import PREFIX, Settings, to_environment
from services.runtime.cpu_placement import threads_of


def environment_of(ours: Mapping[str, str], role: str, settings: Settings) -> dict[str, str]:
    """Our environment without SPECMESH_*: their values are in `settings`."""
    kept = {name: value for name, value in ours.items() if not name.startswith(PREFIX)}
    return {**compute_environment(role, settings), **kept, **to_environment(settings), "PYTHONUNBUFFERED": "1"}


def compute_environment(role: str, settings: Settings) -> Mapping[str, str]:
    """Threads that spin while they wait take the cores from the other roles: a step was 40 to 285 times slower."""
    threads = str(threads_of(role, settings.cores, settings.threads) if role == "worker" else 1)
    return {
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "KMP_BLOCKTIME": "0",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }


def harmless_environment() -> dict[str, str]:
    """Enough to start Python and to know the time zone: keys and passwords stay here, for a child that reads foreign
    bytes."""
    harmless = ("PATH", "TZ", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")
    return {name: os.environ[name] for name in harmless if name in os.environ}
