"""The cores and the niceness of a role's process.

All requests wait for the worker's step; streamer and tokenizer have work of microseconds. On a machine with as
many cores as compute threads they would each time take a core from a step and make all other threads wait.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from services.api.cores import cores_of
from services.api.foreign_environment import GPUS as GPUS

# No step waits for these.
STAND_BACK = ("streamer", "tokenizer")


def take_place(role: str, cores: str, niceness: int) -> None:
    """Called once in a role's process. Raises ValueError when none of its cores is to be had."""
    wanted = cores_of(role, cores)
    if wanted:
        try:
            os.sched_setaffinity(0, wanted)
        except OSError as error:
            there = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
            raise ValueError(
                f"cores: {role} can't run on {sorted(wanted)} ({error.strerror}); there are cores {there}"
            ) from error
    if role in STAND_BACK and niceness:
        # Whoever started us may have set us back already, and no one needs more than 19.
        with contextlib.suppress(OSError):
            os.nice(niceness)
        _set_session_back(niceness)


def _set_session_back(niceness: int, group: Path = Path("/proc/self/autogroup")) -> None:
    """Where the system shares cores out by session, a niceness counts within its session only. A role that `up`
    started has one of its own; of anyone else's we don't dispose."""
    if os.getsid(0) == os.getpid() and group.exists():
        with contextlib.suppress(OSError):
            group.write_text(str(niceness), "utf-8")


def threads_of(role: str, cores: str, threads: int) -> int:
    """Compute threads of a worker: the setting, or one for each core that it may use."""
    there = os.sched_getaffinity(0)
    return threads or len(cores_of(role, cores) & there or there)


def shared_cores(setting: str, number: int, workers: int, there: Collection[int] | None = None) -> str:
    """The setting `cores` for worker `number` (from 0) of several on this machine: an equal part of the workers' cores,
    neighbours first, as they share a cache. With more workers than cores, some share one."""
    there = os.sched_getaffinity(0) if there is None else there
    cores = sorted(cores_of("worker", setting) & set(there) or there)
    first, last = number * len(cores) // workers, (number + 1) * len(cores) // workers
    own = cores[first:last] or [cores[first]]
    others = [part for part in setting.split(";") if part.strip() and part.partition("=")[0].strip() != "worker"]
    return ";".join([*others, "worker=" + ",".join(map(str, own))])


def shared_devices(
    environment: Mapping[str, str], number: int, workers: int, devices: Path = Path("/dev")
) -> dict[str, str]:
    """The variable that gives worker `number` its GPUs; none where the machine has none. With more workers than GPUs
    they take turns."""
    named = environment.get(GPUS)
    there = sorted(file.name[6:] for file in devices.glob("nvidia[0-9]*") if file.name[6:].isdigit())
    gpus = sorted(there, key=int) if named is None else [gpu.strip() for gpu in named.split(",") if gpu.strip()]
    return {GPUS: ",".join(gpus[number % len(gpus) :: workers])} if gpus else {}
