"""The ranks of a worker, as one of them sees them: sums over all ranks, logits put side by side, words to all, and
bytes to one.

Every rank makes the same calls in the same order. Only tensors of known shape and type travel; nothing is pickled.

A sum is the same bits on all ranks, and a row's bits must depend on the row alone. Libraries sum a large tensor in
pieces, each in an order of its own, which only two ranks can't tell: a + b is b + a. So with more ranks, and `strict`,
everybody gets all parts and adds them up by rank.
"""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import AllgatherOptions

# While models are loaded and loops are compiled.
PATIENT = 3600.0
# Of what goes from one rank to one other.
_TAG = 0


class RankLost(RuntimeError):
    """A rank didn't answer in time, or has ended."""


class Group:
    def __init__(self, words: Any, values: Any, rank: int, ranks: int, strict: bool = True) -> None:
        """`words` and `values` are process groups of torch.distributed: for what is on the host, and for what is on
        the device."""
        self.rank, self.ranks, self._strict = rank, ranks, strict
        self._words, self._values = words, values
        # How long a sum may take, in seconds. Words are waited for as long as there is nothing to do.
        self.timeout = PATIENT
        # Spent on sums and logits, until now.
        self.seconds = 0.0

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Over all ranks, in place."""
        assert x.is_contiguous()
        if self.ranks == 2 or not self._strict:
            options = dist.AllreduceOptions()
            options.timeout = timedelta(seconds=self.timeout)
            self._exchange(lambda: self._values.allreduce([x], options))
            return x
        parts = self._gathered(x)
        x.copy_(parts[0])
        for part in parts[1:]:
            x += part
        return x

    def side_by_side(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """[R, share] of every rank -> [R, width], in the order of the ranks; only the last may be wider than needed."""
        whole = torch.cat(self._gathered(x), dim=1) if len(x) else x.new_empty(0, width)
        return whole[:, :width].contiguous()

    def tell(self, words: torch.Tensor) -> None:
        """Rank 0's words to all, in place; of one length on every rank. Rank 0 waits until they are taken."""
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        if self.rank == 0:
            options.timeout = timedelta(seconds=self.timeout)
        self._wait(lambda: self._words.broadcast([words], options))

    def send(self, x: torch.Tensor, rank: int) -> None:
        """To one rank, which receives it; on the host."""
        self._wait(lambda: self._words.send([x], rank, _TAG), timedelta(seconds=self.timeout))

    def receive(self, x: torch.Tensor, rank: int) -> None:
        """In place, what that rank sends: as many bytes."""
        self._wait(lambda: self._words.recv([x], rank, _TAG), timedelta(seconds=self.timeout))

    def _gathered(self, x: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(x) for _ in range(self.ranks)]
        options = AllgatherOptions()
        options.timeout = timedelta(seconds=self.timeout)
        self._exchange(lambda: self._values.allgather([parts], [x], options))
        return parts

    def _exchange(self, begin: Any) -> None:
        began = time.perf_counter()
        self._wait(begin)
        self.seconds += time.perf_counter() - began

    def _wait(self, begin: Any, *timeout: timedelta) -> None:
        try:
            begin().wait(*timeout)
        except RuntimeError as error:
            raise RankLost(f"rank {self.rank} of {self.ranks}: {str(error).splitlines()[0][:200]}") from error


def meeting_place(file: str, ranks: int) -> Any:
    """The store by which processes of one machine meet: a file."""
    return FileStore(file, ranks)


def open_meeting_place(host: str, generation: str) -> tuple[Any, int]:
    """A store for processes of several machines, and its port: in this process, on this address alone."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
        port = listener.getsockname()[1]
    except OSError:
        listener.close()
        raise
    patience = timedelta(seconds=PATIENT)
    # The store owns the socket from now on; without one of ours it would listen on every address.
    store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=patience, master_listen_fd=listener.detach()
    )
    return dist.PrefixStore(generation, store), port


def distant_meeting_place(host: str, port: int, generation: str) -> Any:
    """What another process has opened. Ranks of different generations never meet."""
    store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=PATIENT))
    return dist.PrefixStore(generation, store)


def join(store: Any, rank: int, ranks: int, strict: bool, device: str = "cpu", host: str = "127.0.0.1") -> Group:
    """Meet the other ranks at the store: over gloo, and for a GPU's values over nccl. Blocks until all are there, and
    need the store no more."""
    words = _gloo(dist.PrefixStore("words", store), rank, ranks, host)
    if device == "cpu":
        values = _gloo(dist.PrefixStore("values", store), rank, ranks, host)
    else:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=PATIENT)
        values = dist.ProcessGroupNCCL(dist.PrefixStore("values", store), rank, ranks, options)
    group = Group(words, values, rank, ranks, strict)
    group.sum(torch.zeros(1, device=device))
    return group


def _gloo(store: Any, rank: int, ranks: int, host: str) -> Any:
    options = dist.ProcessGroupGloo._Options()
    # Words may be waited for without end: a worker without requests says nothing.
    options._timeout = timedelta(days=3650)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    return dist.ProcessGroupGloo(store, rank, ranks, options)
