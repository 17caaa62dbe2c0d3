"""Memory, descriptors and threads of a mesh's processes over time: how fast they grow, and a picture.

A process that replaces another of its role continues that one's line in the picture. Slopes are measured within single
processes, without the first WARM_S of each; a process that lived for less than LEAST_S after that is left out. Least
squares give one slope for all processes of a role, and a level for each. The interval is robust against samples that
depend on each other: stretches of WINDOW_S are taken as independent, single samples aren't.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bench.failures.failover import instances
from bench.running_mesh import ROLES, RunningMesh, open_files, resident_mb, threads
from bench.turns import NORMAL, STUDENT_T
from loadtest.plots import STYLE, WIDTH, Axis, PlotLine, plot

QUANTITIES = ("memory, MB", "descriptors", "threads")
WARM_S, LEAST_S, WINDOW_S = 90.0, 120.0, 120.0
# An hour's growth by this part of the level is about none: of 500 MB, 5 MB.
ABOUT_NONE = 0.01
HOUR = 3600.0
# Points of a line in the picture.
POINTS = 150


class ProcessSample(NamedTuple):
    """Values in the order of QUANTITIES."""

    at: float
    role: str
    instance: str
    pid: int
    values: tuple[float, float, float]


class Slope(NamedTuple):
    """An hour, with its 95 % interval; infinite where there are too few stretches for one."""

    slope: float
    low: float
    high: float
    level: float
    processes: int

    @property
    def grows(self) -> bool:
        return self.low > ABOUT_NONE * self.level


def samples(mesh: RunningMesh, at: float) -> list[ProcessSample]:
    found = [(role, name, pid) for role in ROLES for name, pid in instances(mesh, role).items()]
    taken = []
    for role, name, pid in [*found, ("up", "up", mesh.process.pid)]:
        try:
            values = (resident_mb(pid), open_files(pid), threads(pid))
        except OSError:
            continue
        # One that is ending has no memory any more.
        if values[0]:
            taken.append(ProcessSample(at, role, name, pid, values))
    return taken


def slopes(taken: Iterable[ProcessSample]) -> dict[str, dict[str, Slope]]:
    """By quantity and role. A role whose processes never lived long enough has none."""
    series: dict[tuple[str, int], list[ProcessSample]] = defaultdict(list)
    for each in taken:
        series[each.role, each.pid].append(each)
    found: dict[str, dict[str, Slope]] = {name: {} for name in QUANTITIES}
    for role in (*ROLES, "up"):
        lives = [grown_up(each) for (name, _), each in series.items() if name == role]
        lives = [life for life in lives if life]
        for place, name in enumerate(QUANTITIES):
            if slope := common_slope([[(each.at, each.values[place]) for each in life] for life in lives]):
                found[name][role] = slope
    return found


def grown_up(life: Sequence[ProcessSample]) -> list[ProcessSample]:
    """Without its beginning; nothing where it was short."""
    kept = [each for each in life if each.at - life[0].at >= WARM_S]
    return kept if kept and kept[-1].at - kept[0].at >= LEAST_S else []


def common_slope(lives: Sequence[Sequence[tuple[float, float]]]) -> Slope | None:
    across: list[np.ndarray[Any, Any]] = []
    up: list[np.ndarray[Any, Any]] = []
    stretches: list[tuple[int, int]] = []
    for number, life in enumerate(lives):
        times, values = np.array(life, dtype=np.float64).T
        across.append(times - times.mean())
        up.append(values - values.mean())
        stretches += [(number, int((at - times[0]) // WINDOW_S)) for at in times]
    if not across:
        return None
    x, y = np.concatenate(across), np.concatenate(up)
    square = float(x @ x)
    slope = float(x @ y) / square
    scores: dict[tuple[int, int], float] = defaultdict(float)
    for stretch, score in zip(stretches, x * (y - slope * x), strict=True):
        scores[stretch] += float(score)
    count = len(scores)
    freedom = count - 1
    spread = math.inf
    if freedom:
        error = math.sqrt(sum(score**2 for score in scores.values()) * count / freedom) / square
        spread = error * (STUDENT_T[freedom - 1] if freedom <= len(STUDENT_T) else NORMAL)
    level = float(np.mean([value for life in lives for _, value in life]))
    return Slope(slope * HOUR, (slope - spread) * HOUR, (slope + spread) * HOUR, level, len(lives))


def row(found: dict[str, dict[str, Slope]]) -> dict[str, Any]:
    """What a file of rows takes: there is no number for an interval without an end."""
    return {
        name: {
            role: {key: round(value, 3) if math.isfinite(value) else None for key, value in slope._asdict().items()}
            for role, slope in by_role.items()
        }
        for name, by_role in found.items()
    }  # fmt: skip


# The picture ------------------------------------------------------------------------------------------------


def picture(taken: Sequence[ProcessSample], finished: Sequence[float], minutes: float) -> str:
    """An SVG file: a plot for each quantity, and answers a minute. `finished`: seconds at which answers ended."""
    lines: dict[str, list[ProcessSample]] = defaultdict(list)
    for each in taken:
        lines[each.instance].append(each)
    names = sorted(lines, key=lambda name: ([*ROLES, "up"].index(lines[name][0].role), name))
    x = Axis("minutes", low=0.0, high=max(minutes, 0.1))
    plots = []
    for place, quantity in enumerate(QUANTITIES):
        drawn = []
        for name in names:
            every = math.ceil(len(lines[name]) / POINTS)
            points = [(each.at / 60, each.values[place]) for each in lines[name][::every]]
            drawn.append(PlotLine(name, points))
        plots.append(plot(f"{quantity}, by process", x, Axis(quantity, low=0.0), drawn))
    # The last minute isn't whole.
    counts = np.bincount(np.array(finished, dtype=np.int64) // 60, minlength=1)[: int(minutes)]
    points = [(minute + 0.5, float(count)) for minute, count in enumerate(counts)]
    plots.append(plot("answers a minute", x, Axis("answers", low=0.0), [PlotLine("answers that ended well", points)]))
    return stacked(plots)


def stacked(plots: Sequence[str]) -> str:
    """Plots that are parts of a page, as one file."""
    parts, top = [], 0
    for each in plots:
        found = re.match(r'<svg viewBox="0 0 \d+ (\d+)"', each)
        if found:
            parts.append(each.replace("<svg ", f'<svg y="{top}" width="{WIDTH}" height="{found[1]}" ', 1))
            top += int(found[1]) + 16
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}">'
    ground = '<rect width="100%" height="100%" fill="var(--ground)"/>'
    return f"{head}<style>{STYLE}</style>{ground}{''.join(parts)}</svg>\n"
