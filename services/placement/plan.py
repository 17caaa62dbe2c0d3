"""Where a cluster's role processes go, as values: what each needs, how many there are at first, on which machine one
goes. What is to be done when some are missing, lost or too many: mesh/supervisor/decide.py.

    machines + watchers ──choose_machine──▶ the machine with the fewest of that role

A watcher is the process on a machine of the cluster that starts and watches one role process (watcher.py). Knows no
Ray, process, socket or clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mesh.directory.membership import Member
from mesh.supervisor.decide import Instance
from services.api.settings import ROLES, Settings

# CPUs that Ray sets aside for the roles that don't compute.
SMALL = 0.2
# A watcher that answered once and then doesn't for this long is dead, if the directory doesn't hear its process either.
SILENT = 2.0  # s


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


@dataclass(slots=True)
class Watcher(Instance):
    """The process on a machine that starts and watches a role's process, as the keeper knows it."""

    machine: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """All of a machine's CPUs and GPUs, free or not."""

    id: str
    cpus: float
    gpus: float = 0.0


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
