"""Kept responses: bounded in number, size and time, and each owner's are its own."""

from __future__ import annotations

from services.api.messages import ChatTurn, ToolCall
from services.streamer.responses.kept import TURN_BYTES, Bounds, KeptResponse, KeptResponses


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def response(size: int = 10) -> KeptResponse:
    return KeptResponse(b"x" * size, ())


def test_the_oldest_leave_when_there_are_too_many() -> None:
    own = KeptResponses(Bounds(most=2), Clock()).of("a")
    for name in ("r1", "r2", "r3"):
        own.keep(name, response())
    assert [own.find(name) is not None for name in ("r1", "r2", "r3")] == [False, True, True]
    assert own.bytes == 20


def test_the_oldest_leave_when_they_are_too_large() -> None:
    own = KeptResponses(Bounds(most_bytes=100), Clock()).of("a")
    own.keep("r1", response(60))
    own.keep("r2", response(50))
    assert own.find("r1") is None and own.find("r2") is not None and own.bytes == 50
    # What doesn't fit at all pushes nothing out.
    own.keep("r3", response(101))
    assert own.find("r3") is None and own.find("r2") is not None


def test_they_expire_also_while_only_others_ask() -> None:
    clock = Clock()
    kept = KeptResponses(Bounds(seconds=10.0), clock)
    own = kept.of("a")
    own.keep("r1", response())
    clock.time = 5.0
    own.keep("r2", response())
    clock.time = 10.0
    assert own.find("r1") is None and own.find("r2") is not None
    clock.time = 15.0
    kept.of("b")
    assert len(own) == 0 and own.bytes == 0


def test_an_owner_sees_and_pushes_out_only_its_own() -> None:
    kept = KeptResponses(Bounds(most=1), Clock())
    kept.of("a").keep("r1", response())
    kept.of("b").keep("r2", response())
    assert kept.of("b").find("r1") is None and not kept.of("b").remove("r1")
    assert kept.of("a").find("r1") is not None
    assert kept.of("a").remove("r1") and not kept.of("a").remove("r1")
    assert kept.of("a").bytes == 0


def test_none_are_kept_where_none_are_wanted() -> None:
    own = KeptResponses(Bounds(most=0), Clock()).of("a")
    own.keep("r1", response())
    assert not own.keeps and own.find("r1") is None and len(own) == 0


def test_the_conversation_counts() -> None:
    call = ToolCall(id="c", name="f", arguments="a" * 500)
    turns = (ChatTurn(role="user", content="u" * 1000, reasoning="r" * 200, tool_calls=[call]),)
    assert KeptResponse(b"x" * 10, turns).size > 10 + TURN_BYTES + 1700


def test_owners_that_come_later_leave_each_a_smaller_share_of_the_same_bytes() -> None:
    count = 1
    kept = KeptResponses(Bounds(most_bytes=100), Clock(), lambda: count)
    first = kept.of("a")
    first.keep("r", response(60))
    count = 2
    second = kept.of("b")
    assert first.find("r") is None
    second.keep("s", response(50))
    assert (first.most_bytes, second.bytes) == (50, 50)
    count = 1  # "b" was removed, and what it kept is still there
    assert kept.of("a").most_bytes == 50
