"""`specmesh up` and `specmesh run worker` with `--node-rank` 1 and up: the ranks of another machine's worker."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from mesh.errors import Insecure
from models.errors import ModelError
from services.api.settings import Settings
from services.cli.refusal import refuse
from services.cli.up import compiling, fetch_model
from services.runtime.cpu_placement import take_place, threads_of
from services.runtime.log import configure_log
from services.runtime.process import compute_environment
from services.worker.parallel.meeting import meeting_of
from services.worker.parallel.other_node import NotWanted, OtherNode, Place


class _Asked(BaseException):
    """To stop. No `except Exception` on the way may hold it up."""


def main(settings: Settings) -> int:
    """Runs until Ctrl-C or SIGTERM. The exit code."""
    configure_log(settings.log_level, f"node/{settings.node_rank}", settings.log_format)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        os.environ.update(compute_environment("worker", settings))
        # Ranks inherit the cores.
        take_place("worker", settings.cores, 0)
        meeting = meeting_of(settings)
        assert meeting is not None
        with compiling(settings):
            folder = fetch_model(settings, with_head=False)
        threads = threads_of("worker", settings.cores, settings.threads)
        node = OtherNode(Place(meeting, settings.node_rank, settings.tensor_parallel_size, folder, threads))
        print(banner(settings), file=sys.stderr, flush=True)
        node.run()
    except NotWanted as error:
        return refuse(f"node 0 at {settings.master_addr} refuses this node: {error}")
    except (ModelError, Insecure, OSError, ValueError) as error:
        return refuse(error)
    except _Asked:
        print("specmesh: stopped", file=sys.stderr, flush=True)
        return 0


def banner(settings: Settings) -> str:
    here = settings.tensor_parallel_size // settings.nnodes
    first = settings.node_rank * here
    which = f"rank {first}" if here == 1 else f"ranks {first} to {first + here - 1}"
    return (
        f"specmesh: node {settings.node_rank} of {settings.nnodes}: {which} of the worker at {settings.master_addr};"
        " no API here"
    )


def _stop(number: int, frame: FrameType | None) -> None:
    # What comes next may come while this one is obeyed.
    signal.signal(number, signal.SIG_IGN)
    raise _Asked
