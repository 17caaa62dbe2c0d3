"""What users see when the process that has the model dies (kill -9) or is stopped for 5 s, and when ten times more is
asked than can be answered: ours, and then vLLM's on the same machine (`--vllm VENV`).

Eight streams have begun when it is struck. `served again`: seconds from then until a request for one token that was
sent afterwards was answered. A server that ends is started again at once, as a supervisor would, and `restarts` counts
that; ours restarts what died itself. One that neither serves nor ends is killed after GIVEN_UP_S.

The overload: requests come at ten times the rate at which eight callers are answered, for 30 s, and users wait 60 s for
the first text and the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import http.client
import os
import signal
import socket
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

from bench.failures.failover import NAME, instances, together
from bench.failures.overload import since, told
from bench.oracles import vllm_drafter
from bench.running_mesh import RunningMesh, resident_mb, running_mesh
from bench.shown import Shown
from loadtest.arrivals import Arrivals, drive
from loadtest.ask import CHAT, LoadRequest
from loadtest.client import Client
from loadtest.outcome import Outcome
from loadtest.workloads import workload
from models.sources import ensure_model
from services.api.settings import Settings, cache_dir
from services.runtime.process_tree import descendants

HELP = "a model's process that dies or stops under streams, and overload: what users see, beside vLLM's"
STOPPED_S, GIVEN_UP_S = 5.0, 120.0
PATIENCE_S, PROBE_S = 60.0, 5.0
RATE_S, OVERLOAD_S, OVERLOAD = 20.0, 30.0, 10.0
ROWS = 64  # sequences at a time, which is our default on a CPU
SHOWN = (
    Shown("What users see of an outage", "sides>*>kill|stop",
          {"streams": "streams", "failed": "failed", "longest gap, s": "longest gap, s",
           "served again after, s": "served again after, s", "restarts": "restarts by hand"},
          "The process that has the model is killed, or stopped for 5 s, under eight streams."),
    Shown("What users see of ten times the load", "sides>*>overload",
          {"asked": "asked", "answered": "answered in 60 s", "refused": "refused", "failed": "failed",
           "first token, s>p50": "first token p50, s", "first token, s>p99": "p99", "tokens/s": "tokens/s",
           "served again after, s": "served again after, s"}),
)  # fmt: skip


class Outage(Protocol):
    """A server that can be struck."""

    port: int
    url: str

    def model_process(self) -> int:
        """The process that has the model."""

    def revive(self, hung: bool) -> bool:
        """Starts it again if it has ended, or is `hung`; whether it did."""


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vllm", type=Path, metavar="VENV", help="environment that has vllm; without it only ours")
    parser.add_argument("--streams", type=int, default=8, help="when it is struck (default 8)")
    parser.add_argument("--tokens", type=int, default=200, help="of each answer (default 200)")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of ours")
    parser.add_argument("--eager", action="store_true", help="vLLM compiles nothing: it starts sooner and is slower")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="of both")
    parser.set_defaults(debug=False, draft_tokens=0)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    sides: dict[str, Any] = {}
    options.so_far["sides"] = sides
    # What was learned in an earlier run would end every answer before the fault.
    settings = {"method": "ngram", "dtype": options.dtype} | dict(each.split("=", 1) for each in options.setting)
    with running_mesh(model=options.model, served_model_name=NAME, **settings) as mesh:
        outages(OurServer(mesh), options, sides.setdefault("specmesh", {}))
    if options.vllm:
        options.so_far["vllm"] = vllm_drafter.version(options.vllm)
        with closing(VllmServer(options)) as server:
            outages(server, options, sides.setdefault("vLLM", {}))
    failed = {fault: sides["specmesh"][fault]["failed"] for fault in ("kill", "stop")}
    missed = [f"{count} streams failed at a {fault}" for fault, count in failed.items() if count]
    return options.so_far | {"missed": missed}


def outages(server: Outage, options: argparse.Namespace, found: dict[str, Any]) -> None:
    together(server, options, int, PATIENCE_S)  # warm
    for fault in ("kill", "stop"):
        heard, seen = together(server, options, functools.partial(strike, server, fault), PATIENCE_S)
        gaps = [each.gap for each in heard if not each.error]
        found[fault] = {
            "streams": len(heard), "failed": sum(bool(each.error) for each in heard),
            "longest gap, s": round(max(gaps), 2) if gaps else None,
            "errors": sorted({each.error[:200] for each in heard if each.error}), **seen,
        }  # fmt: skip
        print(f"{fault}: {found[fault]}", flush=True)
    found["overload"] = asyncio.run(overload(server.url, options)) | served_again(server, time.monotonic())
    print(f"overload: {found['overload']}", flush=True)


def strike(server: Outage, fault: str) -> dict[str, Any]:
    pid, began = server.model_process(), time.monotonic()
    if fault == "kill":
        os.kill(pid, signal.SIGKILL)
        return served_again(server, began)
    os.kill(pid, signal.SIGSTOP)
    # It may be replaced meanwhile.
    awake = threading.Timer(STOPPED_S, lambda: os.path.exists(f"/proc/{pid}") and os.kill(pid, signal.SIGCONT))
    awake.start()
    try:
        return served_again(server, began)
    finally:
        awake.join()


def served_again(server: Outage, began: float) -> dict[str, Any]:
    """A server that doesn't come back is not waited for twice."""
    restarts, given_up = 0, began + GIVEN_UP_S
    while not probed(server.port):
        hung = time.monotonic() > given_up
        if hung and restarts:
            return {"served again after, s": None, "restarts": restarts}
        if server.revive(hung):
            restarts, given_up = restarts + 1, time.monotonic() + GIVEN_UP_S
        time.sleep(0.1)
    return {"served again after, s": round(time.monotonic() - began, 2), "restarts": restarts}


def probed(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_S)
    try:
        body = f'{{"model": "{NAME}", "prompt": "One two three", "max_tokens": 1}}'
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


async def overload(url: str, options: argparse.Namespace) -> dict[str, Any]:
    requests = workload("chat", 1)
    client = Client(url, timeout=PATIENCE_S)
    outcomes: list[Outcome] = []
    began = client.now()

    async def send(index: int, scheduled: float) -> None:
        ask = LoadRequest(CHAT, NAME, 64, ignore_eos=True)
        path, body = ask.request(dict(requests.session(index).turns[0].body), index)
        outcomes.append(since(began, await client.stream(path, body, scheduled=scheduled)))

    with closing(client):
        await drive(Arrivals(concurrency=options.streams, duration=RATE_S), send, now=client.now)
        rate = sum(each.ok for each in outcomes) / (client.now() - began)
        first, began = len(outcomes), client.now()
        outcomes.clear()
        arrivals = Arrivals(rate=OVERLOAD * max(rate, 0.1), duration=OVERLOAD_S)
        await drive(arrivals, send, now=client.now, first=first)
    return {"requests/s before": round(rate, 2), **told(outcomes, OVERLOAD_S)}


# Servers ----------------------------------------------------------------------------------------------------


class OurServer:
    def __init__(self, mesh: RunningMesh) -> None:
        self._mesh = mesh
        self.port, self.url = mesh.port, mesh.url

    def model_process(self) -> int:
        return next(iter(instances(self._mesh, "worker").values()))

    def revive(self, hung: bool) -> bool:
        """It does that itself."""
        return False


class VllmServer:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="outages-")))
        vllm_drafter.make_path(self._folder)
        self._model = ensure_model(options.model, cache_dir(Settings.for_tests()))
        self._running = ExitStack()
        self._start()

    def _start(self) -> None:
        command = self._options.vllm / "bin" / "vllm"
        engine = vllm_drafter.engine(
            "off", self._folder, command, self._model, self._options, served_as=NAME, rows=ROWS
        )
        self.url = self._running.enter_context(engine)
        self.port = int(self.url.rpartition(":")[2])

    def model_process(self) -> int:
        found = {pid: command for pid, command in descendants(os.getpid()).items() if "vllm" in command.lower()}
        named = [pid for pid, command in found.items() if "EngineCore" in command]
        return max(named or found, key=resident_mb)

    def revive(self, hung: bool) -> bool:
        with socket.socket() as door:
            has_ended = door.connect_ex(("127.0.0.1", self.port)) != 0
        if not (has_ended or hung):
            return False
        self._running.close()
        self._start()
        return True

    def close(self) -> None:
        self._running.close()
        self._stack.close()
