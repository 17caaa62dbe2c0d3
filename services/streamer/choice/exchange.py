"""One request, with what all of its steps share: from the encoding of its prompts to its last byte."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from services.api.messages import ModelCard
from services.streamer.agents.families import Formats
from services.streamer.choice.answer_memory import AnswerMemory
from services.streamer.choice.detokenize import Vocabulary
from services.streamer.choice.generation import Choice
from services.streamer.choice.namespace import Caller
from services.streamer.choice.peers import Peers
from services.streamer.choice.turns import Turns
from services.streamer.openai.request import Request

AnyRequest = TypeVar("AnyRequest")


@dataclass(slots=True)
class AnyExchange(Generic[AnyRequest]):
    request: AnyRequest
    answer_id: str
    caller: Caller
    card: ModelCard
    deadline: float  # of the event loop's clock
    peers: Peers
    vocabulary: Vocabulary
    turns: Turns
    choices: list[Choice] = field(default_factory=list, kw_only=True)  # once the prompts are encoded


@dataclass(slots=True)
class Exchange(AnyExchange[Request]):
    """Of a request for an answer."""

    memory: AnswerMemory
    page_tokens: int = 32
    formats: Formats = field(default_factory=Formats)
