"""A rank of a worker that isn't the first: a process that loads its share of the model and computes what rank 0 says.

Started by processes.py with a line of JSON on stdin (`Start`), on the worker's machine or on another node's. Knows no
requests, no mesh and no settings; it lives as long as the process that started it and takes no signal of a terminal.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.executor import Options

log = logging.getLogger("specmesh.worker")

_SET_PDEATHSIG = 1  # of prctl
# Of Options, what each rank has for itself.
NOT_TOLD = ("group", "taps")


@dataclass(frozen=True, slots=True)
class Start:
    parent: int
    rank: int
    ranks: int
    # Among the ranks of this machine.
    device: int
    # Where the ranks meet: a file, or with a port an address.
    store: str
    port: int
    generation: str
    # This machine's address, as the other ranks reach it.
    host: str
    folder: str
    executor: str
    quantization: str
    gpu: bool
    # models/executor.py's, but for the group and the taps: features are rank 0's.
    options: dict[str, Any]


def main() -> int:
    start = Start(**json.loads(sys.stdin.buffer.readline()))
    _live_with(start.parent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    logging.basicConfig(format=f"rank {start.rank}: %(message)s", stream=sys.stderr)
    from models.errors import ModelError
    from models.group import RankLost

    try:
        _run(start)
    except RankLost as error:
        # Rank 0 says why, if it is still there.
        log.info("%s", error)
    except ModelError as error:
        log.error("the model can't be loaded: %s", error)
    return 1


def _live_with(parent: int) -> None:
    """A rank that is stopped could not see that its worker is gone: the system ends it."""
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _run(start: Start) -> None:
    import torch

    from models.choose import executor_class
    from models.config import read_network
    from models.group import distant_meeting_place, join, meeting_place
    from models.quantized.at_load import weights_of
    from models.shards import shard
    from services.worker.parallel.executor import serve

    options = options_of(start.options)
    torch.set_num_threads(options.threads)
    device = "cuda" if start.gpu else "cpu"
    if start.port:
        store = distant_meeting_place(start.store, start.port, start.generation)
    else:
        store = meeting_place(start.store, start.ranks)
    group = join(store, start.rank, start.ranks, options.strict, device, start.host)
    folder = Path(start.folder)
    network = read_network(folder)
    weights = weights_of(folder, network, start.quantization)
    share = shard(network, start.rank, start.ranks)
    serve(executor_class(start.executor)(share, weights, replace(options, group=group)), group)


def options_of(told: dict[str, Any]) -> Options:
    """They may come from another machine. Raises ValueError."""
    from models.executor import Options

    wanted = {each.name: str(each.type) for each in fields(Options) if each.name not in NOT_TOLD}
    if {name: type(value).__name__ for name, value in told.items()} != wanted:
        raise ValueError(f"these aren't the options of an executor: {told}")
    return Options(**told)


if __name__ == "__main__":
    sys.exit(main())
