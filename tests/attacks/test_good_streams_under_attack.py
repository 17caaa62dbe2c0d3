"""All attacks on one mesh of the real model, one after another, under good greedy streams of known texts.

Nobody's stream fails or changes, no role restarts that was not killed, the mesh serves again within seconds, and
/health/ready agrees with a real request asked beside it every second.

    calm run: the known texts ─▶ good streams, a sample every second ─┬─ attack ─▶ wait until it serves ─▶ next ─┐
                                                                      └────────────────────────────────────────┘

Each attack is a client's or an operator's doing, takes seconds and needs no key. What breaks one part alone is tested
beside this file.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pprint import pformat
from typing import Any, Literal, NamedTuple

import pytest

from bench.running_mesh import RunningMesh, running_mesh
from bench.streams import Refused, listen

NAME = "measured"
STREAMS, TOKENS = 16, 100
# A probe must be answered within PROBE_S while ready says 200, or, if that is longer, in the time that this machine
# takes for the largest attack, which is queued before it: ATTACK_TOKENS times the tokens of the good streams. One that
# is answered within SERVED_WITHIN_S contradicts a ready that isn't 200.
PROBE_S, ATTACK_TOKENS, SERVED_WITHIN_S = 10.0, 4.5, 2.0
READY_S = 2.0
# After an attack it serves again within BACK_S or, if that is longer, the time that the mesh took to start. Other
# effects have CALM_S to show.
BACK_S, CALM_S = 5.0, 4.0
BODY_BYTES = 4_000_000  # a little less than max_body_bytes
COMPLETION = {"model": NAME, "prompt": "Tell me everything", "temperature": 0, "ignore_eos": True}

Body = dict[str, Any]


# Attacks --------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    said: str = ""
    killed: tuple[str, ...] = ()


Attack = Callable[[RunningMesh], Seen]


def many_corpora(mesh: RunningMesh) -> Seen:
    """One caller fills the store with namespaces; another's corpus must stay."""

    def add(salt: str) -> int:
        body = {"name": "corpus", "text": "some words to draft from", "cache_salt": salt}
        return status(mesh.port, "POST", "/v1/corpora", body, 30.0)

    add("victim")
    counts = _at_once(16, add, [f"salt {k}" for k in range(1100)])
    _, text = answer(mesh.port, "GET", "/v1/corpora?cache_salt=victim")
    return Seen(f"{counts}; the first corpus is {'still there' if b'corpus' in text else 'gone'}")


def unfinished_bodies(mesh: RunningMesh) -> Seen:
    held = [_connect(mesh.port) for _ in range(60)]
    head = _head("/v1/completions", BODY_BYTES)

    def send(each: socket.socket) -> str:
        try:
            each.sendall(head + b" " * (BODY_BYTES - 1000))
        except OSError as error:
            return type(error).__name__
        return "taken"

    counts = _at_once(60, send, held)
    time.sleep(3.0)
    _close(held)
    return Seen(counts)


def long_texts(mesh: RunningMesh) -> Seen:
    text = "word " * (BODY_BYTES // 5)
    bodies = [("/v1/completions", {**COMPLETION, "prompt": text}), ("/tokenize", {"model": NAME, "prompt": text})]
    return Seen(_posts(mesh, 4, bodies * 4))


def huge_lists(mesh: RunningMesh) -> Seen:
    parts = [{"type": "text", "text": "a"}] * 120_000
    ids = [1] * 1_300_000
    chat = {"model": NAME, "messages": [{"role": "user", "content": parts}]}
    bodies = [("/v1/completions", {**COMPLETION, "prompt": ids}), ("/v1/chat/completions", chat)]
    return Seen(_posts(mesh, 4, bodies * 4))


def evil_hosts(mesh: RunningMesh) -> Seen:
    """What a page of another site sends after it has rebound its name to this address."""
    evil = {"Host": "evil.example"}
    got = [answer(mesh.port, "GET", path, None, evil)[0] for path in ("/v1/models", "/v1/mesh", "/")]
    got.append(answer(mesh.port, "POST", "/v1/completions", {**COMPLETION, "max_tokens": 1}, evil)[0])
    got.append(answer(mesh.metrics_base, "GET", "/metrics", None, evil)[0])
    return Seen(f"{got.count(200)} of {len(got)} served")


def stalled_readers(mesh: RunningMesh) -> Seen:
    held = [_connect(mesh.port, buffer=4096) for _ in range(20)]
    body = json.dumps({**COMPLETION, "max_tokens": 400, "n": 2, "stream": True, "logprobs": 5}).encode()
    for each in held:
        each.sendall(_head("/v1/completions", len(body)) + body)
    time.sleep(15.0)
    _close(held)
    return Seen()


def disconnects(mesh: RunningMesh) -> Seen:
    body = json.dumps({**COMPLETION, "max_tokens": 100, "stream": True}).encode()

    def come_and_go(number: int) -> str:
        try:
            with _connect(mesh.port) as each:
                each.sendall(_head("/v1/completions", len(body)) + body)
                if number % 2:
                    each.recv(1)
        except OSError as error:
            return type(error).__name__
        return "left"

    return Seen(_at_once(32, come_and_go, range(2000)))


def many_choices(mesh: RunningMesh) -> Seen:
    whole = {**COMPLETION, "max_tokens": 40, "n": 128, "logprobs": 20, "temperature": 1}
    streamed = {**COMPLETION, "max_tokens": 40, "logprobs": 20, "stream": True}
    return Seen(_posts(mesh, 11, [("/v1/completions", body) for body in [whole] + [streamed] * 10], timeout=180.0))


def stop_streamer(mesh: RunningMesh) -> Seen:
    pid = mesh.processes()["streamer"]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3.0)
    os.kill(pid, signal.SIGCONT)
    return Seen()


def stop_worker(mesh: RunningMesh) -> Seen:
    """Until another takes its place."""
    pid = mesh.processes()["worker"]
    os.kill(pid, signal.SIGSTOP)
    took = seconds_until(lambda: mesh.processes().get("worker", pid) != pid, 60.0)
    if took is None:
        os.kill(pid, signal.SIGCONT)
        return Seen("not replaced within 60 s")
    return Seen(f"replaced after {took:.1f} s", killed=("worker",))


def kill(role: str) -> Attack:
    def attack(mesh: RunningMesh) -> Seen:
        os.kill(mesh.processes()[role], signal.SIGKILL)
        time.sleep(1.0)
        return Seen(killed=(role,))

    return attack


ATTACKS: dict[str, Attack] = {
    "corpora": many_corpora,
    "bodies": unfinished_bodies,
    "texts": long_texts,
    "lists": huge_lists,
    "hosts": evil_hosts,
    "readers": stalled_readers,
    "disconnects": disconnects,
    "choices": many_choices,
    "stop_streamer": stop_streamer,
    "stop_worker": stop_worker,
    "kill_tokenizer": kill("tokenizer"),
    "kill_proposer": kill("proposer"),
    "kill_worker": kill("worker"),
}


def _posts(mesh: RunningMesh, at_once: int, asked: list[tuple[str, Any]], timeout: float = 60.0) -> str:
    encoded = [(path, json.dumps(body).encode()) for path, body in asked]
    return _at_once(at_once, lambda each: status(mesh.port, "POST", each[0], each[1], timeout), encoded)


def _at_once(workers: int, call: Callable[[Any], object], what: Iterable[Any]) -> str:
    """How often each result came."""
    with ThreadPoolExecutor(workers) as callers:
        counts = Counter(map(str, callers.map(call, what)))
    return ", ".join(f"{count} x {result}" for result, count in counts.most_common())


def _connect(port: int, buffer: int = 0) -> socket.socket:
    made = socket.socket()
    if buffer:
        # Before it connects: the window is agreed on then.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    made.settimeout(20.0)
    made.connect(("127.0.0.1", port))
    return made


def _head(path: str, length: int) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}")
    return "\r\n".join((*lines, "", "")).encode()


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()


# Seen from outside ----------------------------------------------------------------------------------------


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


class Watch:
    """Takes a sample every second."""

    def __init__(self, mesh: RunningMesh, patience: float) -> None:
        self._mesh, self._patience = mesh, patience
        self._done = threading.Event()
        self.samples: list[Sample] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(128) as workers:
            ticker = threading.Thread(target=self._tick, args=(workers,), daemon=True)
            ticker.start()
            try:
                yield
            finally:
                self._done.set()
                ticker.join()

    def _tick(self, workers: ThreadPoolExecutor) -> None:
        while not self._done.wait(1.0):
            workers.submit(self._sample, workers)

    def _sample(self, workers: ThreadPoolExecutor) -> None:
        # First of all: a probe may take until the next attack.
        at, pids = time.monotonic(), self._mesh.processes()
        ready = workers.submit(status, self._mesh.port, "GET", "/health/ready", None, READY_S)
        probe = probed(self._mesh.port, self._patience)
        took = time.monotonic() - at
        after = status(self._mesh.port, "GET", "/health/ready", None, READY_S)
        self.samples.append(Sample(at, ready.result(), probe, took, after, pids))


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


# The test -------------------------------------------------------------------------------------------------


def _during(began: list[tuple[str, float]], at: float) -> str:
    """The attack under way, and the second of it."""
    name, since = [each for each in began if each[1] <= at][-1]
    return f"{name}, {at - since:.1f} s"


def restarts(samples: list[Sample]) -> Counter[str]:
    """Other processes that each role had, compared with the sample before."""
    found: Counter[str] = Counter()
    last: dict[str, int] = {}
    for sample in sorted(samples, key=lambda each: each.at):
        for role, pid in sample.pids.items():
            found[role] += last.get(role, pid) != pid
            last[role] = pid
    return found


def test_ready_is_held_to_a_request_and_what_changes_meanwhile_is_no_contradiction() -> None:
    def agree(ready: int, probe: int, probe_s: float = 0.1, after: int | None = None) -> bool:
        return Sample(0.0, ready, probe, probe_s, ready if after is None else after).agree

    # Late is served; a full server works; without an answer of ready there may be none of a request.
    assert agree(200, 200, 9.0) and agree(200, 429) and agree(503, 503) and agree(503, 200, 5.0) and agree(0, 0, 10.0)
    assert not (agree(200, 503) or agree(200, 0, 10.0) or agree(503, 200) or agree(0, 200))
    assert agree(503, 200, 0.8, after=200) and agree(200, 503, 0.8, after=503)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(1800)
def test_good_streams_go_on_under_every_attack() -> None:
    bodies = good_bodies(STREAMS, TOKENS)
    killed: Counter[str] = Counter()
    late: dict[str, str] = {}
    began = [("calm", 0.0)]
    starting = time.monotonic()
    with running_mesh(served_model_name=NAME, max_choices=128) as mesh:
        started = time.monotonic()
        texts = known_texts(mesh.port, bodies)
        patience = max(PROBE_S, ATTACK_TOKENS * (time.monotonic() - started))
        back_within = max(BACK_S, started - starting)
        streams, watch = GoodStreams(mesh.port, bodies, texts), Watch(mesh, patience)
        with watch.running(), streams.running():
            time.sleep(CALM_S)
            for name, attack in ATTACKS.items():
                began.append((name, time.monotonic()))
                seen = attack(mesh)
                killed.update(seen.killed)
                if (back := seconds_until(lambda: is_serving(mesh.port), 60.0)) is None or back > back_within:
                    late[name] = f"{back} s; {seen.said}"
                time.sleep(CALM_S)
        assert mesh.process.poll() is None
    # All at once: a run takes minutes.
    wrong = {
        "late": late,
        "streams": [ended for ended in streams.ended if ended.how != "fine"],
        "ready": [(_during(began, sample.at), sample) for sample in watch.samples if not sample.agree],
        "restarts": dict(restarts(watch.samples) - killed),
    }
    told = f"patience {patience:.1f} s, back within {back_within:.1f} s: {pformat(wrong, width=200)}"
    assert not any(wrong.values()), told
    assert streams.ended and watch.samples
