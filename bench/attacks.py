"""All attacks on one mesh of the real model, one after another, under good greedy streams of known texts.

Every second the answer of /health/ready is written to a log beside the result of a request that goes through the whole
mesh. They agree if ready says 200 and the request is answered, or ready says something else and it isn't answered soon.

    calm run: the known texts ─▶ good streams, a sample every second ─┬─ attack ─▶ wait until it serves ─▶ next ─┐
                                                                      └────────────────────────────────────────┘

With --minutes N causes of trouble follow that begin and end in a loop (bench/attack_causes.py): it has to be back
within 5 s of each end. Nothing is written to bench/results unless --row is given.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench import rows
from bench.attack_causes import (
    PipedMesh,
    closed_output,
    few_descriptors,
    full_disk,
    full_files,
    small_disk,
    stalled_output,
    stepped_clock,
)
from bench.attack_scripts import ATTACKS, Seen
from bench.attack_watch import (
    NAME,
    GoodStreams,
    Watch,
    good_bodies,
    is_serving,
    known_texts,
    restarts,
    seconds_until,
    sizes,
)
from bench.running_mesh import ROLES

HELP = "attacks on a running mesh under good streams: what failed, changed or was restarted; and ready beside the facts"
LOG = Path(tempfile.gettempdir()) / "specmesh-attacks.log"
# After an attack: at most until it serves again, and then a while in which its other effects show.
BACK_S, CALM_S = 90.0, 4.0
BACK_BAR_S = 5.0
Sizes = dict[str, tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Result:
    """Of one attack, up to the beginning of the next. `back_s`: from its end until the mesh served; None: it didn't."""

    seconds: float
    back_s: float | None
    fine: int
    failed: int
    changed: int
    disagreed_s: int
    restarted: dict[str, int]  # that the attack didn't kill
    before: Sizes
    after: Sizes
    said: str = ""
    starves: bool = False
    reasons: list[str] = field(default_factory=list)


class Window(NamedTuple):
    """When an attack began and ended, and when the next could begin."""

    name: str
    seen: Seen
    begin: float
    attacked: float
    back_s: float | None
    end: float
    before: Sizes
    after: Sizes


Attacked = Callable[[PipedMesh], Seen]


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    figures = measure(options)
    if options.row:
        rows.append("attacks", ["attacks", *argv], figures)
    for missed in figures["missed"]:
        print(f"MISSED attacks: {missed}")
    return 1 if figures["missed"] else 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench attacks", description=HELP)
    made.add_argument("--only", default=",".join(ATTACKS), help=f"comma-separated, of {', '.join(ATTACKS)}; none: ''")
    made.add_argument("--streams", type=int, default=16, help="good streams at a time")
    made.add_argument("--tokens", type=int, default=100, help="length of a good answer, in tokens")
    made.add_argument("--minutes", type=float, default=0.0, help="then a loop of causes that come and go, in minutes")
    made.add_argument("--log", type=Path, default=LOG, help="file that gets a line a second: ready and the probe")
    made.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the server")
    made.add_argument("--row", action="store_true", help="append a row to bench/results")
    return made


def measure(options: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {"served_model_name": NAME, "max_choices": 128}
    settings |= dict(each.split("=", 1) for each in options.setting)
    windows: list[Window] = []
    with (
        tempfile.TemporaryDirectory(prefix="mesh-") as folder,
        small_disk(Path(folder) / "store") if options.minutes else nullcontext(False) as mounted,
        options.log.open("w") as log,
    ):
        mesh = PipedMesh(Path(folder), settings)
        try:
            mesh.wait_until_ready()
            bodies = good_bodies(options.streams, options.tokens)
            streams, watch = GoodStreams(mesh.port, bodies, known_texts(mesh.port, bodies)), Watch(mesh, log)
            print(f"a line every second: {options.log}", flush=True)
            with watch.running(), streams.running():
                time.sleep(CALM_S)
                # Ctrl-C: the table of what was run.
                with suppress(KeyboardInterrupt):
                    for window in _attacked(mesh, _schedule(options, mounted, mesh.clock is not None)):
                        windows.append(window)
            ended_early = mesh.process.poll()
        finally:
            mesh.stop()
    results = [(window.name, _result(window, streams, watch)) for window in windows]
    print("\n".join(["", _HEAD, *(_line(name, result) for name, result in results)]))
    missed = [*_missed(results)]
    if ended_early is not None:
        missed.append(f"`up` ended by itself with code {ended_early}")
    return {"attacks": [{"name": name, **asdict(result)} for name, result in results], "missed": missed}


def _attacked(mesh: PipedMesh, attacks: Iterator[tuple[str, Attacked]]) -> Iterator[Window]:
    for name, attack in attacks:
        if mesh.process.poll() is not None:
            print(f"`up` has ended with code {mesh.process.returncode}; nothing more is run", flush=True)
            return
        print(f"{name} ...", flush=True)
        yield _one(mesh, name, attack)


def _schedule(options: argparse.Namespace, mounted: bool, clock: bool) -> Iterator[tuple[str, Attacked]]:
    for name in filter(None, options.only.split(",")):
        yield name, ATTACKS[name]
    if not options.minutes:
        return
    end = time.monotonic() + 60 * options.minutes
    causes = {
        "stalled output": stalled_output,
        "256 descriptors": few_descriptors,
        "full disk": full_disk if mounted else full_files,
    }
    if clock:
        causes["stepped clock"] = stepped_clock
    while time.monotonic() < end:
        yield from causes.items()
    yield "closed output", closed_output


def _one(mesh: PipedMesh, name: str, attack: Attacked) -> Window:
    before, begin = sizes(mesh), time.monotonic()
    try:
        seen = attack(mesh)
    except (OSError, KeyError) as error:
        # The mesh was in no state to be attacked, which the other columns show.
        seen = Seen(f"broke off: {type(error).__name__}: {error}")
    attacked = time.monotonic()
    back = seconds_until(lambda: is_serving(mesh.port), BACK_S)
    time.sleep(CALM_S)
    return Window(name, seen, begin, attacked, back, time.monotonic(), before, sizes(mesh))


def _result(window: Window, streams: GoodStreams, watch: Watch) -> Result:
    begin, end = window.begin, window.end
    restarted = restarts(watch.samples, begin, end)
    for role in window.seen.killed:
        restarted[role] = restarted.get(role, 0) - 1
    return Result(
        seconds=round(window.attacked - begin, 1),
        back_s=None if window.back_s is None else round(window.back_s, 1),
        fine=streams.count("fine", begin, end),
        failed=streams.count("failed", begin, end),
        changed=streams.count("changed", begin, end),
        disagreed_s=watch.disagreed(begin, end),
        restarted={role: count for role, count in restarted.items() if count > 0},
        before=window.before,
        after=window.after,
        said=window.seen.said,
        starves=window.seen.starves,
        reasons=sorted({each.why for each in streams.ended if each.why and begin <= each.at < end})[:5],
    )


def _missed(results: list[tuple[str, Result]]) -> Iterator[str]:
    for name, result in results:
        if (result.failed and not result.starves) or result.changed:
            yield f"{name}: {result.failed} good streams failed, {result.changed} changed"
        if result.disagreed_s:
            yield f"{name}: ready was wrong in {result.disagreed_s} s"
        if result.restarted:
            yield f"{name}: restarted without being killed: {json.dumps(result.restarted)}"
        if result.back_s is None or result.back_s > BACK_BAR_S:
            yield f"{name}: back after {result.back_s} s, at most {BACK_BAR_S}"


_COLUMNS = ("attack", "seconds", "back s", "fine", "failed", "changed", "disagree s", "restarted")
_WIDTHS = (16, 8, 7, 5, 7, 8, 11, 16)
_SHOWN = ("up", *ROLES)
_HEAD = "".join(
    [name.ljust(width) for name, width in zip(_COLUMNS, _WIDTHS, strict=True)]
    + [f"{role} MB, files".ljust(24) for role in _SHOWN]
    + ["seen by the attacker"]
)


def _line(name: str, result: Result) -> str:
    restarted = " ".join(f"{count}x{role}" for role, count in result.restarted.items()) or "-"
    cells = (
        name, result.seconds, result.back_s, result.fine, result.failed, result.changed, result.disagreed_s, restarted,
    )  # fmt: skip
    parts = [str(cell).ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)]
    parts += [_grown(result.before.get(role), result.after.get(role)).ljust(24) for role in _SHOWN]
    return "".join(parts) + result.said


def _grown(before: tuple[float, int] | None, after: tuple[float, int] | None) -> str:
    """Before > after; a role that isn't there has no numbers."""
    mb, files = ("-", "-") if before is None else (f"{before[0]:.0f}", before[1])
    mb_after, files_after = ("-", "-") if after is None else (f"{after[0]:.0f}", after[1])
    return f"{mb} > {mb_after}, {files} > {files_after}"
