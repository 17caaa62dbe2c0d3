"""An hour of a whole mesh under faults: `specmesh up` with two workers, two streamers and two proposers, 32 streams of
mixed traffic, and a fault every 20 s in an order that `--seed` decides.

    twins: each request once, calm and without drafts ─▶ streams, a probe every second ─┬─ fault ─▶ 20 s ─▶ fault ─▶ ...
                                                                                       └─ processes looked at every 5 s

What became of a stream is in soak_traffic.py (a stream whose streamer died is lost, all others can be saved), faults
are in soak_faults.py, growth and the picture in soak_growth.py. Seconds are not ready when /health/ready, asked over a
new connection, did not say 200 within 2 s. What happens is put down to the last fault that began before it.

Ctrl-C ends it early: the row has what was seen until then. Exit code 1: a stream failed, a text changed, a second was
not ready, or something grew.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import itertools
import json
import random
import signal
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, closing, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple, get_args

from bench.failures import soak_growth
from bench.failures.failover import until_ready
from bench.failures.soak_faults import Faults, Struck, deck
from bench.failures.soak_growth import ProcessSample
from bench.failures.soak_traffic import (
    KINDS,
    LEAVES_WITHIN,
    REFUSED,
    Caller,
    Fate,
    SoakRequest,
    callers,
    fate,
    is_changed,
    longest_gap,
)
from bench.running_mesh import RunningMesh
from bench.shown import Shown
from loadtest.client import Client
from loadtest.outcome import Outcome

HELP = "a mesh for an hour under mixed streams and a fault every 20 s: failed, changed, not ready, growth"
NAME = "measured"
SETTINGS = {"workers": 2, "streamers": 2, "proposers": 2, "kv_cache_mb": 512}
PROBE_EVERY_S, PROBE_WITHIN_S = 1.0, 2.0
LOOK_EVERY_S = 5.0
PATIENCE_S = 600.0  # with an answer: the server's own (request_timeout)
OVERLOAD = 10  # times the streams
# Twins are asked again while the mesh refuses them, and a caller waits after an error.
TRIES, AGAIN_S = 20, 0.5
FATES = get_args(Fate)
TOLD = ("lost", "failed", "changed", "refused")  # of each fault
SHOWN = (
    Shown("An hour under faults", "",
          {"minutes": "minutes", "faults": "faults", "streams>begun": "streams", "streams>lost": "lost with streamer",
           "streams>failed": "failed", "changed": "texts changed", "not ready, s": "not ready, s",
           "worst gap, s": "longest gap, s"},
          "Two workers, streamers and proposers, 32 streams, a fault every 20 s. Streams of a streamer that died are "
          "lost, all others can be saved."),
    Shown("What an hour under faults did", "by fault>*",
          {"struck": "times", "lost": "lost with streamer", "failed": "failed", "changed": "changed",
           "refused": "refused", "not ready, s": "not ready, s", "worst gap, s": "longest gap, s"}),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=60.0, help="under faults (default 60)")
    parser.add_argument("--every", type=float, default=20.0, help="seconds from fault to fault, or after a roll (20)")
    parser.add_argument("--streams", type=int, default=32, help="at a time (default 32)")
    parser.add_argument("--requests", type=int, default=4, help="different ones of each stream (default 4)")
    parser.add_argument("--tokens", type=int, default=128, help="longest answer (default 128)")
    parser.add_argument("--seed", type=int, default=1, help="of requests, faults and whom they strike (default 1)")
    parser.add_argument("--without", action="append", default=[], metavar="FAULT", help="leave out, such as 'roll'")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the server")
    parser.add_argument("--folder", type=Path, help="for the mesh's log and store, kept; default: a temporary one")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="where growth is drawn")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    settings = {"served_model_name": NAME, **SETTINGS} | dict(each.split("=", 1) for each in options.setting)
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        folder.mkdir(parents=True, exist_ok=True)
        mesh = RunningMesh(folder.resolve(), settings)
        stack.callback(mesh.stop)
        mesh.wait_until_ready()
        until_ready(mesh, int(settings["workers"]))
        asyncio.run(Soak(mesh, folder.resolve(), options).run())
    figures: dict[str, Any] = options.so_far
    return figures


class StreamEnd(NamedTuple):
    """`at`: seconds after the first fault could come."""

    at: float
    kind: str
    fate: Fate
    changed: bool
    gap: float


class Soak:
    def __init__(self, mesh: RunningMesh, folder: Path, options: argparse.Namespace) -> None:
        self._mesh, self._options = mesh, options
        self._faults = Faults(mesh, folder, options.seed, self._overload)
        self._chance = random.Random(f"callers/{options.seed}")
        self._callers = callers(options.streams, options.requests, options.tokens, options.seed, NAME)
        self._twins: dict[int, str] = {}
        self._stop = asyncio.Event()
        self._began, self._seconds = 0.0, options.minutes * 60
        self._struck: list[Struck] = []
        self._ends: list[StreamEnd] = []
        self._not_ready: list[float] = []
        self._samples: list[ProcessSample] = []

    async def run(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        await self._until_stopped(self._ask_twins())
        if self._stop.is_set():
            raise SystemExit("ended before the first fault")
        self._began = time.monotonic()
        try:
            await self._until_stopped(self._soak())
        finally:
            self._conclude()

    async def _soak(self) -> None:
        """Streams that are under way in the end are heard to their end."""
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(each) for each in (self._probe(), self._look(), self._strike(), self._tell())]
            async with asyncio.TaskGroup() as streams:
                for caller in self._callers:
                    streams.create_task(self._call(caller))
            for each in beside:
                each.cancel()

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Raises what ended the work."""
        working, stopped = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            stopped.cancel()
            working.cancel()
            await asyncio.wait((working,))

    def _now(self) -> float:
        return time.monotonic() - self._began

    # Streams

    async def _ask_twins(self) -> None:
        """As many at once as streams later."""
        asked = iter([each for caller in self._callers for each in caller.requests])
        client = Client(self._mesh.url)

        async def ask() -> None:
            for each in asked:
                self._twins[each.number] = await self._twin(client, each)

        with closing(client):
            await asyncio.gather(*(ask() for _ in self._callers))
        print(f"{len(self._twins)} twins, {sum(map(len, self._twins.values()))} characters", flush=True)

    async def _twin(self, client: Client, request: SoakRequest) -> str:
        path, body = request.twin()
        for _ in range(TRIES):
            outcome = await client.stream(path, body, scheduled=0.0, keep_text=True)
            if outcome.ok:
                return outcome.text
            if outcome.error not in REFUSED:
                break
            await asyncio.sleep(AGAIN_S)
        raise RuntimeError(f"a calm mesh didn't answer: {outcome.error} {outcome.detail}")

    async def _call(self, caller: Caller) -> None:
        kind = KINDS[caller.kind]
        with closing(Client(self._mesh.url, timeout=PATIENCE_S, read_pause=kind.read_pause)) as client:
            for request, salt in caller.rounds(self._chance):
                path, body = request.again(salt)
                leave = self._chance.randint(1, LEAVES_WITHIN) if kind.leaves else None
                outcome = await client.stream(path, body, scheduled=0.0, abandon_after=leave, keep_text=True)
                at = self._now()
                if outcome.error:
                    # Its streamer, if that is why, has surely ended then.
                    await asyncio.sleep(AGAIN_S)
                self._heard(at, caller, request, outcome)
                if at >= self._seconds:
                    return

    def _heard(self, at: float, caller: Caller, request: SoakRequest, outcome: Outcome) -> None:
        twin = self._twins[request.number]
        with_streamer = self._faults.broke_with_streamer(outcome.local_port, unheard=not outcome.chunks)
        # A slow reader's gaps are its own.
        gap = 0.0 if KINDS[caller.kind].read_pause or not outcome.ok else longest_gap(outcome)
        end = StreamEnd(at, caller.kind, fate(outcome, with_streamer), is_changed(outcome, twin), gap)
        self._ends.append(end)
        if end.changed or end.fate == "failed":
            print(f"{end.at:.1f} s, after {self._fault_before(end.at)}: request {request.number} ({end.kind}) "
                  f"{end.fate}{', changed' * end.changed} {outcome.error} {outcome.detail}", flush=True)  # fmt: skip
        if end.changed:
            print(f"  expected {twin!r}\n  got      {outcome.text!r}", flush=True)

    async def _overload(self, seconds: float) -> None:
        """More of the same, whose answers nobody compares."""
        caller = next(each for each in self._callers if each.kind == "chat")

        async def ask() -> None:
            with closing(Client(self._mesh.url)) as client:
                for request in itertools.cycle(caller.requests):
                    path, body = request.again("")
                    if (await client.stream(path, body, scheduled=0.0)).error:
                        await asyncio.sleep(AGAIN_S)

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(ask() for _ in range((OVERLOAD - 1) * len(self._callers))))

    # What goes on beside them

    async def _strike(self) -> None:
        names = [name for name in self._faults.kinds if name not in self._options.without]
        async with asyncio.TaskGroup() as under_way:
            for name in deck(self._options.seed, names):
                await asyncio.sleep(self._options.every)
                if self._now() >= self._seconds:
                    return
                self._struck.append(Struck(self._now(), name))
                fault = under_way.create_task(self._one(name))
                if name == "roll":
                    # An instance of each role is away. What strikes the other one would leave none.
                    await fault

    async def _one(self, name: str) -> None:
        at = self._now()
        print(f"{at:.1f} s: {name}: {await self._faults.strike(name)}", flush=True)

    async def _probe(self) -> None:
        async def ask(at: float) -> None:
            if why := await asyncio.to_thread(why_not_ready, self._mesh.url):
                self._not_ready.append(at)
                print(f"{at:.1f} s, after {self._fault_before(at)}: not ready: {why}", flush=True)

        async with asyncio.TaskGroup() as probes:
            while True:
                probes.create_task(ask(self._now()))
                await asyncio.sleep(PROBE_EVERY_S)

    async def _look(self) -> None:
        while True:
            self._samples += await asyncio.to_thread(soak_growth.samples, self._mesh, self._now())
            await asyncio.sleep(LOOK_EVERY_S)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(60)
            told = self._counted()
            short = {name: told[name] for name in ("streams", "changed", "not ready, s", "worst gap, s")}
            print(f"{self._now() / 60:.0f} minutes: {json.dumps(short)}", flush=True)

    # Figures

    def _fault_before(self, at: float) -> str:
        place = bisect.bisect_right([each.at for each in self._struck], at)
        return self._struck[place - 1].fault if place else "nothing"

    def _counted(self) -> dict[str, Any]:
        return counted(self._ends, self._not_ready, self._struck, self._fault_before)

    def _conclude(self) -> None:
        slopes = soak_growth.slopes(self._samples)
        told = self._counted()
        minutes = self._now() / 60
        growing = [f"{name} of {role} grows by {slope.slope:.3g} an hour ({slope.low:.3g} to {slope.high:.3g})"
                   for name, by_role in slopes.items() for role, slope in by_role.items() if slope.grows]  # fmt: skip
        self._options.so_far |= {
            "minutes": round(minutes, 1), "streams at a time": len(self._callers), **told,
            "an hour": soak_growth.row(slopes), "missed": missed(told) + growing,
            **({"ended_early": True} if self._now() < self._seconds else {}),
        }  # fmt: skip
        if self._options.picture:
            finished = [each.at for each in self._ends if each.fate == "finished"]
            self._options.picture.write_text(soak_growth.picture(self._samples, finished, minutes), "utf-8")


def why_not_ready(url: str) -> str:
    """Empty where it is."""
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=PROBE_WITHIN_S):
            return ""
    except urllib.error.HTTPError as refused:
        return f"{refused.code} {refused.read(300).decode(errors='replace')}"
    except (OSError, HTTPException) as gone:
        return str(gone) or type(gone).__name__


def counted(
    ends: list[StreamEnd], not_ready: list[float], struck: list[Struck], fault_before: Callable[[float], str]
) -> dict[str, Any]:
    by_fault: dict[str, dict[str, Any]] = {}

    def of(fault: str) -> dict[str, Any]:
        return by_fault.setdefault(fault, {"worst gap, s": 0.0, **dict.fromkeys(("struck", *TOLD, "not ready, s"), 0)})

    for each in struck:
        of(each.fault)["struck"] += 1
    for end in ends:
        line = of(fault_before(end.at))
        line["changed"] += end.changed
        line["worst gap, s"] = max(line["worst gap, s"], round(end.gap, 2))
        if end.fate in TOLD:
            line[end.fate] += 1
    for at in not_ready:
        of(fault_before(at))["not ready, s"] += 1
    fates = Counter(end.fate for end in ends)
    return {
        "faults": len(struck),
        "streams": {"begun": len(ends), **{name: fates[name] for name in FATES}},
        "kinds": dict(Counter(end.kind for end in ends)),
        "changed": sum(end.changed for end in ends),
        "not ready, s": len(not_ready),
        "worst gap, s": max((line["worst gap, s"] for line in by_fault.values()), default=0.0),
        "by fault": by_fault,
    }


def missed(told: dict[str, Any]) -> list[str]:
    bars = {
        f"{told['streams']['failed']} streams failed that could be saved": told["streams"]["failed"],
        f"{told['changed']} texts changed": told["changed"],
        f"{told['not ready, s']} seconds not ready": told["not ready, s"],
    }
    return [what for what, is_missed in bars.items() if is_missed]
