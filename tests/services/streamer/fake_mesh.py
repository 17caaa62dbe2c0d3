"""A mesh without a model: the real node and codec, a tokenizer and targets that do what a test scripts.

`FakeMesh.start_door` runs the real StreamerActor on a free port; requests go over real sockets.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
from mesh_doubles.memory import MemoryNetwork
from prometheus_client import CollectorRegistry
from small_tokenizer import END_OF_TEXT, byte_level_tokenizer

from mesh.actor import Actor, Call
from mesh.codec import Codec
from mesh.directory.membership import Member
from mesh.errors import Refuse
from mesh.node import Node
from mesh.stream import StreamWriter
from services.api.messages import (
    KINDS,
    CheckGrammar,
    Decode,
    Decoded,
    Describe,
    Encode,
    Encoded,
    EncodedWords,
    EncodeWords,
    Failed,
    Finished,
    Generate,
    GrammarChecked,
    ModelCard,
    Run,
    Span,
    TokenLogprob,
    Tokens,
    TopToken,
)
from services.api.pooling import LAST
from services.api.prompt_columns import PromptColumns
from services.api.prompt_logprobs import PromptLogprob, pack, parts
from services.api.sampling_defaults import SamplingDefaults
from services.api.settings import Settings
from services.streamer.actor import ModelFiles, StreamerActor
from services.streamer.choice.detokenize import Vocabulary
from services.tokenizer.encode import Encoder

MODEL = "tiny"
TOKENIZER = byte_level_tokenizer()
CARD = ModelCard(
    model=MODEL,
    max_context=256,
    vocab_size=TOKENIZER.get_vocab_size(),
    eos_token_ids=[TOKENIZER.token_to_id(END_OF_TEXT)],
    methods=["naive", "ngram"],
    verify_strategies=["greedy", "target_match", "rejection", "block"],
    max_speculative_tokens=8,
    engine="mock",
    accept_policies=["normal", "reject_all"],
    embedding_size=8,
)


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


class FakeTokenizer(Actor):
    handlers: ClassVar[dict[type[Any], str]] = {
        Encode: "encode",
        EncodeWords: "encode_words",
        Decode: "decode",
        CheckGrammar: "check_grammar",
    }
    concurrency = 8

    def __init__(self) -> None:
        self.words_asked: list[list[str]] = []
        self.grammars_asked: list[str] = []

    async def encode(self, message: Encode, call: Call) -> Encoded:
        text = message.text
        if message.turns is not None:
            text = "".join(f"<{turn.role}>{turn.content}" for turn in message.turns)
        assert text is not None
        if "untokenizable" in text:
            raise Refuse("invalid", "the template refused the conversation")
        ids = ids_of(text)
        if message.max_tokens and len(ids) > message.max_tokens:
            raise Refuse("too_long", f"the prompt has {len(ids)} tokens, the limit is {message.max_tokens}")
        return Encoded(token_ids=ids)

    async def encode_words(self, message: EncodeWords, call: Call) -> EncodedWords:
        self.words_asked.append(message.words)
        return EncodedWords(spellings=Encoder(TOKENIZER).encode_words(message.words))

    async def check_grammar(self, message: CheckGrammar, call: Call) -> GrammarChecked:
        self.grammars_asked.append(message.grammar)
        return GrammarChecked(problem="no text follows it" if "impossible" in message.grammar else "")

    async def decode(self, message: Decode, call: Call) -> Decoded:
        return Decoded(text=TOKENIZER.decode(message.token_ids, skip_special_tokens=False))


Script = Callable[["FakeTarget", Generate, StreamWriter], Awaitable[None]]


class FakeTarget(Actor):
    """Runs `script` for every Generate; keeps what it was asked and what was cancelled."""

    streams: ClassVar[dict[type[Any], str]] = {Generate: "generate"}
    handlers: ClassVar[dict[type[Any], str]] = {Describe: "describe"}

    def __init__(self, script: Script) -> None:
        self.script = script
        self.card = CARD
        self.asked: list[Generate] = []
        self.cancelled: list[str] = []
        self.running = 0
        self.began = asyncio.Event()
        self.was_cancelled = asyncio.Event()
        # Cleared: as if the thread that computes took no more mail.
        self.describes = asyncio.Event()
        self.describes.set()

    async def describe(self, message: Describe, call: Call) -> ModelCard:
        await self.describes.wait()
        return self.card

    async def generate(self, message: Generate, call: Call, out: StreamWriter) -> None:
        self.asked.append(message)
        self.running += 1
        self.began.set()
        try:
            await self.script(self, message, out)
        except asyncio.CancelledError:
            self.cancelled.append(message.request_id)
            self.was_cancelled.set()
            raise
        finally:
            self.running -= 1


def tokens(message: Generate, seq: int, ids: list[int], drafted: int = 0, source: str = "ngram") -> Tokens:
    """One verify step's message; logprobs are told apart by the token ids."""
    from_a_draft = {"source": source, "match_length": 3} if drafted else {}
    runs = [Run(length=len(ids), drafted=drafted, accepted=len(ids) - 1, **from_a_draft)]
    logprobs = None
    if message.sampling.logprobs >= 0:
        top = [TopToken(id=each, logprob=-each / 100) for each in range(40, 40 + message.sampling.logprobs)]
        logprobs = [TokenLogprob(logprob=-each / 100, top=top) for each in ids]
    return Tokens(
        request_id=message.request_id, attempt=message.attempt, seq=seq, ids=ids, runs=runs, logprobs=logprobs
    )


def columns(ids: list[int], count: int) -> PromptColumns:
    """Log-probabilities that tell the tokens apart; the token itself has rank 2, behind 65, 66, ..."""
    top = [TopToken(id=65 + nth, logprob=-nth / 4) for nth in range(count)]
    return pack(1, [PromptLogprob(logprob=-token / 4, rank=2, top=top) for token in ids[1:]])


def about_prompt(message: Generate, part: PromptColumns) -> Tokens:
    return Tokens(request_id=message.request_id, attempt=message.attempt, seq=0, ids=[], prompt_logprobs=part)


def finished(message: Generate, count: int, reason: Any = "stop", cached: int = 0) -> Finished:
    stop = CARD.eos_token_ids[0] if reason == "stop" else None
    return Finished(
        request_id=message.request_id,
        attempt=message.attempt,
        reason=reason,
        prompt_tokens=message.prompt_tokens,
        cached_tokens=cached,
        completion_tokens=count,
        stop_token=stop,
    )


def pooled(message: Generate) -> list[float]:
    """Numbers that tell prompts of different lengths apart, and how they are pooled."""
    step = 1 if message.pooling == LAST else 2
    return [float(len(message.token_ids) + at * step) for at in range(CARD.embedding_size)]


def embedded(message: Generate) -> Finished:
    embedding = array("f", pooled(message)).tobytes()
    return msgspec.structs.replace(finished(message, 0, "length"), embedding=embedding)


def failed(message: Generate, reason: str, retryable: bool = False) -> Failed:
    return Failed(
        request_id=message.request_id,
        attempt=message.attempt,
        reason=reason,
        message=f"it was {reason}",
        retryable=retryable,
    )


def says(text: str | list[int], group: int = 1, *, cached: int = 0, source: str = "ngram") -> Script:
    """Answers every request with the same tokens, `group` at a time, whatever attempt asks from wherever; and one for
    an embedding with numbers that tell its prompt."""
    ids = ids_of(text) if isinstance(text, str) else text

    async def script(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        if message.pooling:
            await out.send(embedded(message))
            return
        end = min(len(ids), message.sampling.max_tokens)
        if message.sampling.prompt_logprobs >= 0:
            prompt = message.token_ids[: message.prompt_tokens]
            for told in parts(columns(prompt, message.sampling.prompt_logprobs), 3):
                await out.send(about_prompt(message, told))
        seq = len(message.token_ids) - message.prompt_tokens
        while seq < end:
            part = ids[seq : min(seq + group, end)]
            await out.send(tokens(message, seq, part, drafted=group, source=source))
            seq += len(part)
        reason = "stop" if end == len(ids) else "length"
        await out.send(finished(message, end, reason, cached))

    return script


async def tells_times(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
    """Says "a b c", with spans if it is asked for them."""
    ids = ids_of("a b c")
    for seq, token in enumerate(ids):
        spans = [Span(what="queue", begin=0.0, end=0.001), Span(what="prefill", begin=0.001, end=0.002, tokens=4)]
        if seq:
            begin = 0.001 * (seq + 1)
            spans = [Span(what="verify", begin=begin, end=begin + 0.001, tokens=1, step=seq)]
        item = tokens(message, seq, [token])
        await out.send(msgspec.structs.replace(item, spans=spans) if message.timeline else item)
    await out.send(finished(message, len(ids)))


async def floods(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
    """Tokens without end."""
    seq = 0
    while True:
        await out.send(tokens(message, seq, [97] * 500))
        seq += 500


def hangs_after(text: str) -> Script:
    """Says a text and then nothing more, for ever."""
    ids = ids_of(text)

    async def script(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        for seq, token in enumerate(ids):
            await out.send(tokens(message, seq, [token]))
        await asyncio.Event().wait()

    return script


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """What is awaited has no event of its own (a count that falls to zero)."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@dataclass
class FakeDirectory:
    """The part of the directory's client that the door uses; the test decides who is there."""

    members_: list[Member] = field(default_factory=list)
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    silence: float = 0.0

    def members(self, role: str | None = None) -> list[Member]:
        return [member for member in self.members_ if role in (None, member.role)]

    def pick(self, role: str, key: str | None = None) -> Member | None:
        return next((member for member in self.members(role) if member.state == "ready"), None)

    def on_change(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def change(self, *members: Member) -> None:
        """The new entries replace those of the same instance."""
        changed = {member.instance for member in members}
        self.members_ = [each for each in self.members_ if each.instance not in changed] + list(members)
        for callback in self.callbacks:
            callback()


@dataclass
class FakeContext:
    settings: Settings
    node: Node
    directory: FakeDirectory
    registry: CollectorRegistry
    role: str = "streamer"
    instance: str = "streamer-1"


class DoorUnderTest(StreamerActor):
    """The real one; only the model's files are replaced."""

    sampling = SamplingDefaults()

    template = ""

    def load_model_files(self) -> ModelFiles:
        return ModelFiles(Vocabulary(TOKENIZER), self.sampling, self.template)


class FakeMesh:
    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.codec = Codec(KINDS)
        self.node = self._node("streamer-1")
        self.directory = FakeDirectory()
        self.registry = CollectorRegistry()
        self.nodes: dict[str, Node] = {}
        self.door: DoorUnderTest | None = None
        self.sampling = SamplingDefaults()  # of the model that start_door serves
        self.epoch = 0

    def _node(self, name: str) -> Node:
        return Node(self.network.transport(), self.codec, name=name)

    async def start_tokenizer(self) -> None:
        self.tokenizer = FakeTokenizer()
        await self.start("tokenizer", "tokenizer-1", self.tokenizer)

    async def start_target(self, script: Script, instance: str = "worker-1", phase: str = "") -> FakeTarget:
        target = FakeTarget(script)
        await self.start("worker", instance, target, phase)
        return target

    async def start(self, role: str, instance: str, actor: Actor, phase: str = "") -> None:
        node = self._node(instance)
        await node.start(f"mem://{instance}")
        await node.spawn(actor, role)
        self.nodes[instance] = node
        self.epoch += 1
        self.directory.change(Member(role, instance, node.endpoint, node.epoch, "ready", phase=phase))

    async def stop(self, instance: str, *, tell_directory: bool = True) -> None:
        """The node leaves; its streams break off."""
        node = self.nodes.pop(instance)
        await node.stop(0.0)
        if tell_directory:
            self.directory.members_ = [each for each in self.directory.members_ if each.instance != instance]
            self.directory.change()

    async def start_door(self, **overrides: Any) -> DoorUnderTest:
        settings = Settings.for_tests(**{"port": 0, "served_model_name": MODEL, **overrides})
        context: Any = FakeContext(settings, self.node, self.directory, self.registry)
        await self.node.start("mem://streamer-1")
        self.door = DoorUnderTest(context)
        self.door.sampling = self.sampling
        await self.node.spawn(self.door, "streamer")
        return self.door

    @property
    def url(self) -> str:
        assert self.door is not None
        return f"http://127.0.0.1:{self.door.port}"

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.stop(0.0)
        await self.node.stop(0.0)
