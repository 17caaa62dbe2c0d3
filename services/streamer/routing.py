"""Which worker a request goes to: a pure function of its key and of the workers with their loads.

    prompt, salt ──▶ key of the first pages ──▶ place on a ring of workers ──▶ the first worker there that has room

Rule 1: requests with the same key (the same first pages, or the same session) meet at one worker, whose prefix cache
        has their prompt. All streamers choose alike from the same table, without talking to each other.
Rule 2: no worker is given more than MOST_ABOVE_MEAN times the mean load: beyond that the next one on the ring is taken.
Rule 3: when a worker leaves, only its requests move; when it comes back, they do, too.
Rule 4: streamers hear of each other's requests in each table only. Until the next one each uses its part of the room
        that the table shows: what it has added itself counts as many times as there are streamers.
Rule 5: a prompt shorter than a page shares nothing: it goes to the worker with the least load.

The ring costs a binary search; rendezvous hashing would cost a hash for each worker and request, 1 ms for 1 000
workers (docs/decisions/0024). Knows no sockets, no directory and no clock.
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b

# Pages whose tokens are the key. More would part what shares a shorter beginning; fewer would bring together what only
# shares a few tokens, which are soon computed.
KEY_PAGES = 4
# What others send and what ends is heard of late, so that loads go beyond this (`python -m bench simulate`).
MOST_ABOVE_MEAN = 1.15
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
        """The first worker from the key's place on with a load below `room`, else the least loaded one. Only those in
        `loads` count."""
        owners, number = self._owners, len(self._owners)
        start = bisect(self._places, key)
        for step in range(number):
            name = owners[(start + step) % number]
            if loads.get(name, room) < room:
                return name
        return min(loads, key=lambda name: (loads[name], name))


def room_of(total: int, workers: int) -> int:
    """The load that no worker may exceed once one more request is there, with `total` before it. Where these are their
    loads, there is always a worker below it."""
    total += 1
    return max(-(-total // workers), int(MOST_ABOVE_MEAN * total / workers))


class Router:
    """The ring and the loads of the ready workers. One in a streamer; `choose` changes nothing."""

    def __init__(self) -> None:
        self._ring = Ring()
        self._loads: dict[str, int] = {}
        self._names: tuple[str, ...] = ()
        self._total = 0
        self._streamers = 1
        # The loads of the last table, and what this streamer has added since.
        self._told: dict[str, int] = {}
        self._added: Counter[str] = Counter()

    def set(self, loads: Mapping[str, int], streamers: int = 1) -> None:
        """A table: the ready workers and their loads, and how many streamers send to them."""
        self._ring.set(loads)
        self._told, self._loads = dict(loads), dict(loads)
        self._names = tuple(sorted(loads))
        self._total = sum(loads.values())
        self._streamers = streamers
        self._added.clear()

    def add(self, instance: str, change: int) -> None:
        """A request was sent to this worker, or has ended there."""
        if instance not in self._told:
            return
        added = self._added[instance] = self._added[instance] + change
        # Of ends, others may have had none.
        self._loads[instance] = max(0, self._told[instance] + added * (self._streamers if added > 0 else 1))
        self._total = max(0, self._total + change * self._streamers)

    def choose(self, key: int | None, turn: int = 0, avoid: Collection[str] = ()) -> str | None:
        """The worker for a request with this key; for one without a key `turn` decides between equals. Those in `avoid`
        are taken only where there is no other."""
        loads, names, total = self._loads, self._names, self._total
        if avoid and (others := {name: load for name, load in loads.items() if name not in avoid}):
            loads, names, total = others, tuple(sorted(others)), sum(others.values())
        if not loads:
            return None
        if key is None:
            return _least(names, loads, turn)
        return self._ring.first(key, loads, room_of(total, len(loads)))


def _least(names: tuple[str, ...], loads: Mapping[str, int], turn: int) -> str:
    """The least loaded of LOOKED_AT workers, which are all of them in a small mesh. `turn` says where to begin, so that
    streamers with one table don't all take the same."""
    start = turn % len(names)
    return min(_from(names, start), key=loads.__getitem__)


def _from(names: tuple[str, ...], start: int) -> tuple[str, ...]:
    found = names[start : start + LOOKED_AT]
    return found + names[: min(start, LOOKED_AT - len(found))]
