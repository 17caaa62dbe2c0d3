"""What a mesh under attack looks like from outside: good streams of known texts, /health/ready beside a real request
every second, and the processes of each role.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TextIO

from bench.running_mesh import RunningMesh, open_files, resident_mb
from bench.streams import Refused, listen

NAME = "measured"
# What the probe may take: while ready says 200, and until it contradicts another answer of ready.
PROBE_S, SERVED_WITHIN_S = 10.0, 2.0
READY_S = 2.0
EVERY_S = 1.0

Body = dict[str, Any]


def good_bodies(streams: int, tokens: int) -> list[Body]:
    return [
        {
            "model": NAME,
            "prompt": f"Story number {k}: once upon a time there was a {k} and then another {k}",
            "temperature": 0,
            "ignore_eos": True,
            "max_tokens": tokens,
        }
        for k in range(streams)
    ]


def known_texts(port: int, bodies: list[Body]) -> list[str]:
    """Each text as the calm mesh tells it without drafts."""
    with ThreadPoolExecutor(len(bodies)) as callers:
        return list(callers.map(lambda body: listen(port, {**body, "speculation": {"off": True}}).text, bodies))


class Ended(NamedTuple):
    at: float
    how: Literal["fine", "failed", "changed"]
    why: str = ""


class GoodStreams:
    """So many at once, each the same request over and over."""

    def __init__(self, port: int, bodies: list[Body], texts: list[str]) -> None:
        self._port = port
        self._asked = list(zip(bodies, texts, strict=True))
        self._done = threading.Event()
        self.ended: list[Ended] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._repeat, args=asked, daemon=True) for asked in self._asked]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._done.set()
            for thread in threads:
                thread.join(30)

    def _repeat(self, body: Body, expected: str) -> None:
        while not self._done.is_set():
            ended = self._one(body, expected)
            if self._done.is_set():
                return
            self.ended.append(ended)
            if ended.how == "failed":
                # A refused client waits before it tries again.
                self._done.wait(0.5)

    def _one(self, body: Body, expected: str) -> Ended:
        try:
            text = listen(self._port, body, timeout=120.0).text
        except (OSError, http.client.HTTPException, Refused, ValueError) as error:
            return Ended(time.monotonic(), "failed", f"{type(error).__name__}: {error}"[:300])
        return Ended(time.monotonic(), "fine" if text == expected else "changed")

    def count(self, how: str, begin: float, end: float) -> int:
        return sum(each.how == how and begin <= each.at < end for each in self.ended)


@dataclass(frozen=True, slots=True)
class Sample:
    """One second. `ready` was asked when the probe was sent, `ready_after` when it was answered. A status of 0: no
    answer in time."""

    at: float
    ready: int
    probe: int
    probe_s: float
    ready_after: int
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def served(self) -> bool:
        # 429 is the answer of a server that works and is full.
        return self.probe in (200, 429)

    @property
    def agree(self) -> bool:
        """Whether one of ready's answers was true: 200, and the request was answered; or not 200, and it wasn't soon.
        What changes while the probe is under way is no contradiction."""
        served_soon = self.served and self.probe_s <= SERVED_WITHIN_S
        return any(self.served if ready == 200 else not served_soon for ready in (self.ready, self.ready_after))


def restarts(samples: list[Sample], begin: float, end: float) -> dict[str, int]:
    """Other processes that each role had within the time, compared with the sample before."""
    found: dict[str, int] = {}
    last: dict[str, int] = {}
    for sample in sorted(samples, key=lambda each: each.at):
        for role, pid in sample.pids.items():
            if last.get(role, pid) != pid and begin <= sample.at < end:
                found[role] = found.get(role, 0) + 1
            last[role] = pid
    return found


class Watch:
    """Takes a sample every second and writes it to the log."""

    def __init__(self, mesh: RunningMesh, log: TextIO) -> None:
        self._mesh = mesh
        self._log = log
        self._done = threading.Event()
        self.samples: list[Sample] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(32) as workers:
            ticker = threading.Thread(target=self._tick, args=(workers,), daemon=True)
            ticker.start()
            try:
                yield
            finally:
                self._done.set()
                ticker.join()

    def _tick(self, workers: ThreadPoolExecutor) -> None:
        while not self._done.wait(EVERY_S):
            workers.submit(self._sample, workers)

    def _sample(self, workers: ThreadPoolExecutor) -> None:
        # First of all: a probe may take until the next attack.
        at, pids = time.monotonic(), self._mesh.processes()
        ready = workers.submit(status, self._mesh.port, "GET", "/health/ready", None, READY_S)
        probe = probed(self._mesh.port)
        took = time.monotonic() - at
        after = status(self._mesh.port, "GET", "/health/ready", None, READY_S)
        sample = Sample(at, ready.result(), probe, took, after, pids)
        self.samples.append(sample)
        said = "" if sample.agree else " DISAGREE"
        line = f"{at:.1f} ready {sample.ready}, then {after}; probe {probe} in {took:.2f} s{said}"
        print(line, file=self._log, flush=True)

    def disagreed(self, begin: float, end: float) -> int:
        return sum(not each.agree and begin <= each.at < end for each in self.samples)


def probed(port: int, timeout: float = PROBE_S) -> int:
    """The status of a small request that goes through the whole mesh."""
    body = {"model": NAME, "prompt": "One two three", "max_tokens": 1, "speculation": {"off": True}}
    return status(port, "POST", "/v1/completions", body, timeout)


def is_serving(port: int) -> bool:
    return status(port, "GET", "/health/ready", None, READY_S) == 200 and probed(port) in (200, 429)


def status(port: int, method: str, path: str, body: Any, timeout: float) -> int:
    return answer(port, method, path, body, timeout=timeout)[0]


def answer(
    port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 30.0
) -> tuple[int, bytes]:
    """(0, b"") where there is no answer in time. `body`: bytes, or what becomes JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        got = connection.getresponse()
        return got.status, got.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def seconds_until(true: Callable[[], bool], most: float) -> float | None:
    """Until the beginning of the first look that finds it true. None: not within `most` seconds."""
    began = time.monotonic()
    while (looked := time.monotonic() - began) <= most:
        if true():
            return looked
        time.sleep(0.1)
    return None


def sizes(mesh: RunningMesh) -> dict[str, tuple[float, int]]:
    """Resident MB and open descriptors by role."""
    found: dict[str, tuple[float, int]] = {}
    for role, pid in mesh.processes().items():
        try:
            found[role] = resident_mb(pid), open_files(pid)
        except OSError:
            # It ended meanwhile.
            continue
    return found
