"""A rank of a worker that isn't the first: a process that loads its share of the model and computes what rank 0 says.

Started by ranks.py with a line of JSON on stdin (`Start`). Knows no requests, no mesh and no settings; it lives as long
as the worker and takes no signal of a terminal.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

log = logging.getLogger("specmesh.worker")

_SET_PDEATHSIG = 1  # of prctl


@dataclass(frozen=True, slots=True)
class Start:
    parent: int
    rank: int
    ranks: int
    # File by which the ranks meet.
    store: str
    folder: str
    executor: str
    quantization: str
    gpu: bool
    # models/executor.py's, but for the group and the taps: features are rank 0's.
    options: dict[str, Any]


def main() -> int:
    start = Start(**json.loads(sys.stdin.buffer.readline()))
    _live_with(start.parent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
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
    from models.executor import Options
    from models.group import join, meeting_place
    from models.shards import shard
    from services.worker.parallel.executor import serve
    from services.worker.running.weights import weights_of

    options = Options(**start.options)
    torch.set_num_threads(options.threads)
    device = "cuda" if start.gpu else "cpu"
    group = join(meeting_place(start.store, start.ranks), start.rank, start.ranks, options.strict, device)
    folder = Path(start.folder)
    network = read_network(folder)
    weights = weights_of(folder, network, start.quantization)
    share = shard(network, start.rank, start.ranks)
    serve(executor_class(start.executor)(share, weights, replace(options, group=group)), group)


if __name__ == "__main__":
    sys.exit(main())
