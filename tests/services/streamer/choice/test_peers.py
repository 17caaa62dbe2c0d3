"""What becomes of a question to another role when it is lost, slow or full."""

from __future__ import annotations

from typing import Any

import pytest
from fake_mesh import FakeDirectory

from mesh.directory.membership import Member
from mesh.errors import Busy, DeadlineExceeded, MeshError, NotReached, PeerLost
from services.api.messages import Encode, Encoded
from services.streamer.choice import peers as module
from services.streamer.choice.peers import MOST_DEATHS, Peers
from services.streamer.openai.errors import ApiError

TEXT = Encode(text="hi")


class Tokenizers:
    """Two of them, which answer one after another with what a test says: the last answer again and again."""

    def __init__(self, *answers: MeshError | Encoded) -> None:
        self.answers = [*answers]
        self.asked: list[str] = []
        self.directory = FakeDirectory()
        for name in ("tokenizer-1", "tokenizer-2"):
            self.directory.change(Member("tokenizer", name, name, 1, "ready"))
        self.peers = Peers(self.directory, self)  # type: ignore[arg-type]

    def ref(self, endpoint: str, role: str) -> Any:
        self.asked.append(endpoint)
        return self

    async def ask(self, message: object, timeout: float) -> Encoded:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, MeshError):
            raise answer
        return answer

    async def refusal(self) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await self.peers.encode(TEXT)
        return caught.value


async def test_a_lost_tokenizer_is_followed_by_another() -> None:
    mesh = Tokenizers(PeerLost(), Encoded(token_ids=[7]))
    assert await mesh.peers.encode(TEXT) == [7]
    assert mesh.asked == ["tokenizer-1", "tokenizer-2"]


async def test_a_text_that_tokenizers_die_of_ends_after_two() -> None:
    mesh = Tokenizers(NotReached(), PeerLost())
    error = await mesh.refusal()
    assert (error.status, error.code, error.final) == (500, "tokenizer_died", True)
    # The first wasn't reached, and didn't die of it.
    assert len(mesh.asked) == 1 + MOST_DEATHS


async def test_connections_that_break_are_no_deaths() -> None:
    mesh = Tokenizers(PeerLost(), PeerLost(), PeerLost(), Encoded(token_ids=[7]))
    mesh.directory.members_.pop()
    assert await mesh.peers.encode(TEXT) == [7]


async def test_a_text_that_takes_too_long_is_not_given_to_another() -> None:
    mesh = Tokenizers(DeadlineExceeded())
    error = await mesh.refusal()
    assert (error.status, error.code, mesh.asked) == (504, "request_timeout", ["tokenizer-1"])


async def test_full_tokenizers_are_no_missing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.0)
    error = await Tokenizers(Busy()).refusal()
    assert (error.status, error.code, error.retry_after) == (429, "too_many_requests", 1)
    error = await Tokenizers(NotReached()).refusal()
    assert (error.status, error.code) == (503, "no_tokenizer")
