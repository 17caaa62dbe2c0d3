"""Which worker a request goes to: a pure function of its key and of the workers with their loads.

    prompt, salt ──▶ key of the first pages ──▶ place on a ring of workers ──▶ the first worker there that has room

Rule 1: requests with the same key (the same first pages, or the same session) meet at one worker, whose prefix cache
        has their prompt. All streamers choose alike from the same table, without talking to each other.
Rule 2: no worker is given more than MOST_ABOVE_MEAN times the mean load: beyond that the next one on the ring is taken.
Rule 3: when a worker leaves, only its requests move; when it comes back, they do, too.
Rule 4: a load is what this streamer runs there, which it knows exactly. What others run it would know half a second
        late, when a quarter of that has changed; but what each of them spreads evenly is even in sum.
Rule 5: a prompt shorter than a page shares nothing: it goes to the worker with the least load.

Rule 6: in a mesh with phases, requests go to workers that generate, and each gets the name of a prefill worker, chosen
        in the same way; where one phase is missing, the others do its work. Without phases a worker that isn't the
        first on the ring gets that one's name: it most likely has the pages.

The ring costs a binary search; rendezvous hashing would cost a hash for each worker and request, 1 ms for 1 000
workers (docs/internals/decisions/0024). Knows no sockets, no directory and no clock.
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b

from services.api.phases import PREFILL

# Pages whose tokens are the key. More would part what shares a shorter beginning; fewer would bring together what only
# shares a few tokens, which are soon computed.
KEY_PAGES = 4
# Less would send more requests away from their prefixes.
MOST_ABOVE_MEAN = 1.25
# Places of each worker on the ring. The more there are, the more equal are the workers' parts of it.
PLACES = 64

# Workers that a request without a key chooses between.
LOOKED_AT = 16

OF_A_PROMPT = b"specmesh prompt"
OF_A_SESSION = b"specmesh session"
OF_A_PLACE = b"specmesh place"


def key_of(prompt: list[int], page_tokens: int, salt: str = "", session: str = "") -> int | None:
    """The key of a request; None: it shares nothing with another. Different salts have no page in common."""
    if session:
        return _hash(OF_A_SESSION, f"{salt}\0{session}".encode("utf-8", "surrogatepass"))
    pages = min(KEY_PAGES, len(prompt) // page_tokens)
    if not pages:
        return None
    tokens = array("q", prompt[: pages * page_tokens]).tobytes()
    return _hash(OF_A_PROMPT, salt.encode("utf-8", "surrogatepass") + b"\0" + tokens)


def parted(phases: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The workers that requests are sent to, and those that compute prompts for them; `phases` by worker."""
    prefill = [name for name, phase in phases.items() if phase == PREFILL]
    generating = [name for name, phase in phases.items() if phase != PREFILL]
    return (generating, prefill) if generating else (prefill, [])


def _hash(purpose: bytes, text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8, person=purpose).digest(), "big")


class Ring:
    """The workers on a circle of 64-bit numbers, each at PLACES places that its name gives."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._owners: list[str] = []
        self._known: frozenset[str] = frozenset()

    def set(self, instances: Iterable[str]) -> None:
        """These workers are there."""
        instances = frozenset(instances)
        if instances == self._known:
            return
        kept = [each for each in zip(self._places, self._owners, strict=True) if each[1] in instances]
        for name in instances - self._known:
            kept += [(_hash(OF_A_PLACE, f"{name}\0{number}".encode()), name) for number in range(PLACES)]
        kept.sort()
        self._places = [place for place, _ in kept]
        self._owners = [name for _, name in kept]
        self._known = instances

    def first(self, key: int, loads: Mapping[str, int], room: int) -> str:
        """The first worker from the key's place on with a load below `room`; there is one. Only those in `loads`
        count."""
        owners, number = self._owners, len(self._owners)
        start = bisect(self._places, key)
        for step in range(number):
            name = owners[(start + step) % number]
            if loads.get(name, room) < room:
                return name
        raise AssertionError("a worker is no more loaded than the mean")

    def home(self, key: int) -> str:
        """The first worker from the key's place on, whatever its load."""
        return self._owners[bisect(self._places, key) % len(self._owners)] if self._owners else ""


def room_of(total: int, workers: int) -> int:
    """The load that no worker may exceed once one more request is there, with `total` before it. Where these are their
    loads, there is always a worker below it."""
    total += 1
    return max(-(-total // workers), int(MOST_ABOVE_MEAN * total / workers))


class Router:
    """The ring, the ready workers, and what runs there. One in a streamer; `choose` changes nothing."""

    def __init__(self) -> None:
        self._ring = Ring()
        # This streamer's requests, wherever they run, and those at ready workers.
        self._running: Counter[str] = Counter()
        self._loads: dict[str, int] = {}
        self._names: tuple[str, ...] = ()
        self._total = 0
        # The loads that the table told, of all streamers.
        self._told: dict[str, int] = {}

    def set(self, told: Mapping[str, int]) -> None:
        """A table: the ready workers and their loads."""
        self._ring.set(told)
        self._told = dict(told)
        self._names = tuple(sorted(told))
        self._loads = {name: self._running[name] for name in told}
        self._total = sum(self._loads.values())

    def add(self, instance: str, change: int) -> None:
        """A request was sent to this worker, or has ended there."""
        self._running[instance] += change
        if not self._running[instance]:
            del self._running[instance]
        if instance in self._loads:
            self._loads[instance] += change
            self._total += change

    def home(self, key: int) -> str:
        """The worker to which requests with this key go while it has room; "": there is none."""
        return self._ring.home(key)

    def choose(self, key: int | None, turn: int = 0, avoid: Collection[str] = ()) -> str | None:
        """The worker for a request with this key; for one without a key `turn` decides between equals. Those in `avoid`
        are taken only where there is no other."""
        loads, names, total = self._loads, self._names, self._total
        if avoid and (others := {name: load for name, load in loads.items() if name not in avoid}):
            loads, names, total = others, tuple(sorted(others)), sum(others.values())
        if not loads:
            return None
        if key is None:
            return self._least(names, turn)
        return self._ring.first(key, loads, room_of(total, len(loads)))

    def _least(self, names: tuple[str, ...], turn: int) -> str:
        """The least loaded of LOOKED_AT workers, which are all of them in a small mesh. `turn` says where to begin, so
        that streamers with one table don't all take the same."""
        loads, told = self._loads, self._told
        return min(_from(names, turn % len(names)), key=lambda name: (loads[name], told[name]))


def _from(names: tuple[str, ...], start: int) -> tuple[str, ...]:
    found = names[start : start + LOOKED_AT]
    return found + names[: min(start, LOOKED_AT - len(found))]
