"""The attacks of bench/attacks.py. Each is a client's or an operator's doing against a running mesh, takes seconds, and
returns what the attacker saw and which roles it killed. None needs a key or a mesh key.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from bench.attack_watch import NAME, answer, seconds_until, status
from bench.running_mesh import RunningMesh


class Seen(NamedTuple):
    said: str = ""
    killed: tuple[str, ...] = ()
    # Whether it takes the connections that good streams need: those that fail are no fault of the mesh.
    starves: bool = False


Attack = Callable[[RunningMesh], Seen]

BODY_BYTES = 4_000_000  # a little less than max_body_bytes
COMPLETION = {"model": NAME, "prompt": "Tell me everything", "temperature": 0, "ignore_eos": True}


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
