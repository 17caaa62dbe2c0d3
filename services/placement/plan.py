"""Which role processes a cluster should have, as values: what each needs, on which machine it goes, and what is to
be done when some are missing, lost or too many. Knows no Ray, process, socket or clock.

    desired + watchers ──decide──▶ Create, Drain, Remove      (while workers are replaced: rolling.py)
    machines + watchers ──choose_machine──▶ the machine with the fewest of that role

A watcher is the process on a machine of the cluster that starts and watches one role process (watcher.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mesh.directory.membership import Member
from services.api.settings import ROLES, Settings
from services.placement.rolling import is_one_more_due, next_to_drain

# CPUs that Ray sets aside for the roles that don't compute.
SMALL = 0.2
# A watcher that answered once and then doesn't for this long is dead, if the directory doesn't hear its process either.
SILENT = 2.0  # s

# placed: Ray was asked for it; there: it answers; draining: told to end; ended: its process has; dead: it is gone.
WatcherState = Literal["placed", "there", "draining", "ended", "dead"]


@dataclass(frozen=True, slots=True)
class Share:
    """What a process takes of a machine, with those it starts itself: a worker starts its ranks, on its own machine."""

    cpus: float
    gpus: float = 0.0

    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def told(self) -> str:
        return told(self.bundle())


def told(bundle: Mapping[str, float]) -> str:
    """As in "2 CPUs and 1 GPU"."""
    return " and ".join(f"{count:g} {name}{'' if count == 1 else 's'}" for name, count in bundle.items())


@dataclass(frozen=True, slots=True)
class Watcher:
    role: str
    instance: str
    state: WatcherState
    machine: str = ""
    ready: bool = False
    load: int = 0
    # It waits for a machine with room.
    homeless: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """All of a machine's CPUs and GPUs, free or not."""

    id: str
    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Create:
    role: str
    instance: str


@dataclass(frozen=True, slots=True)
class Drain:
    instance: str


@dataclass(frozen=True, slots=True)
class Remove:
    instance: str


Instruction = Create | Drain | Remove


def shares_of(settings: Settings, cluster_gpus: float) -> dict[str, Share]:
    """A worker takes a GPU for each rank where its executor runs on one: by name, or because the cluster has some."""
    on_gpu = settings.engine == "torch" and (
        settings.executor == "triton" or (settings.executor == "auto" and cluster_gpus > 0)
    )
    shares = {role: Share(SMALL) for role in ROLES}
    gpus = float(settings.tensor_parallel_size) if on_gpu else 0.0
    return {**shares, "worker": Share(cpus_of_worker(settings), gpus)}


def cpus_of_worker(settings: Settings) -> float:
    """Of all its ranks, each of which has a thread at least."""
    return max(float(settings.worker_cpus), float(settings.tensor_parallel_size))


def counts_of(settings: Settings) -> dict[str, int]:
    """How many of each role there are at first."""
    workers = min(settings.workers, settings.max_workers or settings.workers)
    return {
        "tokenizer": settings.tokenizers,
        "proposer": settings.proposers,
        "worker": max(workers, settings.min_workers),
        "streamer": settings.streamers,
    }


def decide(
    desired: Mapping[str, int],
    watchers: Sequence[Watcher],
    numbers: Mapping[str, int],
    stages: Mapping[str, int],
    stopping: bool = False,
    old: Collection[str] = (),
) -> list[Instruction]:
    """`numbers`: the largest that an instance of each role has had, so that no two processes ever share a name. While
    `stopping`, the roles of the highest stage drain first. `old`: instances to be replaced one by one."""
    out: list[Instruction] = [Remove(each.instance) for each in watchers if each.state in ("ended", "dead")]
    left = [each for each in watchers if each.state not in ("ended", "dead")]
    if stopping:
        stage = max((stages[each.role] for each in left), default=0)
        return out + [Drain(each.instance) for each in left if stages[each.role] == stage and each.state != "draining"]
    for role, count in desired.items():
        ours = [each for each in left if each.role == role]
        active = [each for each in ours if each.state != "draining"]
        missing = max(count - len(active), int(is_one_more_due(active, len(ours) - len(active), count, old)))
        first = numbers.get(role, 0) + 1
        out += [Create(role, f"{role}-{first + more}") for more in range(missing)]
        if replaced := next_to_drain(active, count, old):
            out.append(Drain(replaced))
        else:
            most = count + any(each.instance in old for each in active)
            out += [Drain(each.instance) for each in surplus(active, most)]
    return out


def surplus(active: Sequence[Watcher], count: int) -> list[Watcher]:
    """Those to end: without an answer yet first, then not ready ones, then the idlest."""
    order = sorted(active, key=lambda each: (each.state == "there", each.ready, each.load, -number_of(each.instance)))
    return order[: max(0, len(active) - count)]


def number_of(instance: str) -> int:
    number = instance.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def is_dead(unanswered: float, has_answered: bool, is_heard: bool) -> bool:
    """Of a watcher that Ray doesn't call dead yet: for a machine Ray takes longer than the directory's heartbeats."""
    return has_answered and unanswered > SILENT and not is_heard


def choose_machine(
    role: str, shares: Mapping[str, Share], machines: Iterable[Machine], watchers: Sequence[Watcher], home: str
) -> str:
    """The machine with the fewest watchers of this role, and among these the one with the most CPUs left; "": none has
    room as far as we know, and Ray is to find one. Streamers go to `home`, where clients expect them, while it has
    room."""
    share, best = shares[role], ""
    best_rank: tuple[int, int, float] | None = None
    for machine in machines:
        there = [each for each in watchers if each.machine == machine.id]
        cpus = machine.cpus - sum(shares[each.role].cpus for each in there)
        gpus = machine.gpus - sum(shares[each.role].gpus for each in there)
        if cpus < share.cpus or gpus < share.gpus:
            continue
        alike = sum(each.role == role for each in there)
        rank = (0 if role == "streamer" and machine.id == home else 1, alike, -cpus)
        if best_rank is None or rank < best_rank:
            best, best_rank = machine.id, rank
    return best


def works(member: Member, stale_after: float) -> bool:
    """Whether a process is healthy: missing peers don't count, being stuck does."""
    if member.state in ("lost", "starting"):
        return False
    return member.state != "unready" or member.progress_age < stale_after
