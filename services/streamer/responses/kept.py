"""Responses that later requests refer to by their id: kept in memory, for a bounded time, number and size.

Each owner, who is one API key, has a share of its own: nobody's requests push another's responses out. Knows no HTTP.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.api.messages import ChatTurn
from services.streamer.openai.errors import ApiError
from services.streamer.responses.items import read_items

# Bytes of a turn's objects, besides its texts.
TURN_BYTES = 256


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """`body`: the response as JSON. `turns`: the conversation with it, without its instructions. `problem`: why that
    can't be continued; "": it can."""

    body: bytes
    turns: tuple[ChatTurn, ...]
    problem: str = ""

    @property
    def size(self) -> int:
        """Bytes. Turns that several responses share count for each of them."""
        return len(self.body) + sum(_size(each) for each in self.turns)


def kept_response(body: bytes, turns: tuple[ChatTurn, ...], output: Sequence[Mapping[str, Any]]) -> KeptResponse:
    """`turns`: the conversation that these items answer."""
    try:
        answer = read_items(output, "output", turns)
    except ApiError as error:  # half a call, or arguments that are no JSON
        return KeptResponse(body, turns, error.message)
    return KeptResponse(body, (*turns, *answer))


def _size(turn: ChatTurn) -> int:
    texts = [turn.content, turn.reasoning, *(each.arguments for each in turn.tool_calls)]
    return TURN_BYTES + sum(sys.getsizeof(each) for each in texts if each is not None)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of an owner's responses. `most` 0: none is kept."""

    most: int = 256
    most_bytes: int = 64 * 2**20
    seconds: float = 3600.0


class OwnResponses:
    """Of one owner, the oldest first."""

    def __init__(self, bounds: Bounds, now: Callable[[], float]) -> None:
        self._bounds = bounds
        self._now = now
        self.most_bytes = bounds.most_bytes
        self._kept: OrderedDict[str, tuple[KeptResponse, int, float]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def keeps(self) -> bool:
        return self._bounds.most > 0

    def keep(self, response_id: str, response: KeptResponse) -> None:
        """One that is larger than all that may be kept is not."""
        size = response.size
        if not self.keeps or size > self.most_bytes:
            return
        self._kept[response_id] = response, size, self._now() + self._bounds.seconds
        self.bytes += size
        self._make_room()

    def shrink(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._make_room()

    def _make_room(self) -> None:
        while len(self._kept) > self._bounds.most or self.bytes > self.most_bytes:
            self._drop(next(iter(self._kept)))

    def find(self, response_id: str) -> KeptResponse | None:
        self.expire()
        found = self._kept.get(response_id)
        return None if found is None else found[0]

    def remove(self, response_id: str) -> bool:
        """Whether it was there."""
        self.expire()
        if response_id not in self._kept:
            return False
        self._drop(response_id)
        return True

    def expire(self) -> None:
        now = self._now()
        while self._kept:
            response_id, (_, _, until) = next(iter(self._kept.items()))
            if until > now:
                return
            self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        self.bytes -= self._kept.pop(response_id)[1]


class KeptResponses:
    """Of all owners. One in a process. `owners`: how many there may be; their bytes are `bounds`' together."""

    def __init__(self, bounds: Bounds, now: Callable[[], float], owners: Callable[[], int] = lambda: 1) -> None:
        self._bounds = bounds
        self._now = now
        self._count = owners
        self._owners: dict[str, OwnResponses] = {}

    def of(self, owner: str) -> OwnResponses:
        """`owner`: one of the few that have an API key; "": all, where there are no keys."""
        own = self._owners.setdefault(owner, OwnResponses(self._bounds, self._now))
        for each in self._owners.values():
            each.expire()
        # Keys come and go; what one that was removed has kept counts until it expires.
        keeping = sum(1 for each in self._owners.values() if each or each is own)
        for each in self._owners.values():
            each.shrink(self._bounds.most_bytes // max(1, self._count(), keeping))
        return own


def no_such_response(response_id: str) -> ApiError:
    """As the answer to a request for it."""
    return ApiError(404, missing(response_id), code="response_not_found")


def no_previous_response(response_id: str) -> ApiError:
    """As the answer to a request that continues it."""
    return ApiError(400, f"previous_response_id: {missing(response_id)}", param="previous_response_id",
                    code="previous_response_not_found")  # fmt: skip


def missing(response_id: str) -> str:
    known = f"There is no response {response_id[:80]!r} of this API key here"
    return f"{known}: it was deleted, has expired, or was never kept"
