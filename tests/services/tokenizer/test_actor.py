"""The tokenizer's answers to messages, and what it refuses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mesh_doubles.clock import FakeClock
from prometheus_client import CollectorRegistry

from mesh.errors import Busy, Refuse
from models.errors import ModelError
from services.api.messages import ChatTurn, CheckGrammar, Decode, Encode, EncodeWords, ToolCall
from services.api.settings import Settings
from services.streamer.agents.grammars import choice
from services.tokenizer.actor import TokenizerActor, _length
from services.tokenizer.encode import Encoder

CALL: Any = None
HI = [ChatTurn(role="user", content="the cat")]


def context(folder: Path, clock: FakeClock | None = None, **settings: Any) -> Any:
    told = Settings.for_tests(model=str(folder), **settings)
    return SimpleNamespace(
        settings=told, registry=CollectorRegistry(), clock=clock or FakeClock(), directory=FakeDirectory()
    )


class FakeDirectory:
    """Of a mesh in which a worker starts."""

    def __init__(self) -> None:
        self.workers: list[str] = []
        self._changed: list[Callable[[], None]] = []

    def ready(self, role: str) -> list[str]:
        return self.workers if role == "worker" else []

    def on_change(self, callback: Callable[[], None]) -> None:
        self._changed.append(callback)

    def has(self, *workers: str) -> None:
        self.workers = [*workers]
        for callback in self._changed:
            callback()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def tokenizer(tiny_folder: Path, clock: FakeClock) -> AsyncIterator[TokenizerActor]:
    actor = TokenizerActor(context(tiny_folder, clock))
    assert actor.ready() == ["the tokenizer is being loaded"]
    await actor.on_start()
    yield actor
    await actor.on_stop()


async def refusal(asked: Any) -> tuple[str, str]:
    with pytest.raises(Refuse) as caught:
        await asked
    return caught.value.reason, caught.value.message


async def test_a_conversation_becomes_what_its_template_says(tokenizer: TokenizerActor) -> None:
    assert tokenizer.ready() == []
    encoded = await tokenizer.encode(Encode(turns=HI), CALL)
    decoded = await tokenizer.decode(Decode(token_ids=encoded.token_ids, skip_special_tokens=False), CALL)
    assert decoded.text == "<|start|>user\nthe cat<|end|>\n<|start|>assistant\n"
    open_end = await tokenizer.encode(Encode(turns=HI, add_generation_prompt=False), CALL)
    assert encoded.token_ids[: len(open_end.token_ids)] == open_end.token_ids


async def test_words_come_back_in_order_each_with_its_spellings(tokenizer: TokenizerActor) -> None:
    words = (await tokenizer.encode_words(EncodeWords(words=["cat", "<|end|>"]), CALL)).spellings
    for spelling, text in zip(words[0], ("cat", " cat"), strict=True):
        assert (await tokenizer.decode(Decode(token_ids=spelling), CALL)).text == text
    assert words[1] == [[1]]


async def test_a_text_gets_its_special_tokens_and_a_template_adds_none_twice(tokenizer: TokenizerActor) -> None:
    with_start = (await tokenizer.encode(Encode(text="the cat"), CALL)).token_ids
    bare = (await tokenizer.encode(Encode(text="the cat", add_special_tokens=False), CALL)).token_ids
    assert with_start == [0, *bare]
    assert (await tokenizer.encode(Encode(turns=HI), CALL)).token_ids.count(0) == 2  # the template's two


async def test_a_prompt_over_the_limit_is_refused_with_both_numbers(tokenizer: TokenizerActor) -> None:
    reason, message = await refusal(tokenizer.encode(Encode(text="the cat", max_tokens=1), CALL))
    assert reason == "too_long"
    assert message.startswith("the prompt has ") and message.endswith("the limit is 1")


@pytest.mark.parametrize("message", [Encode(), Encode(text="a", turns=HI)])
async def test_neither_or_both_of_text_and_messages_is_refused(tokenizer: TokenizerActor, message: Encode) -> None:
    assert (await refusal(tokenizer.encode(message, CALL)))[0] == "invalid"


async def test_an_empty_text_has_no_tokens_of_its_own(tokenizer: TokenizerActor) -> None:
    assert (await tokenizer.encode(Encode(text="", add_special_tokens=False), CALL)).token_ids == []


async def test_ids_outside_the_vocabulary_are_refused(tokenizer: TokenizerActor) -> None:
    assert (await refusal(tokenizer.decode(Decode(token_ids=[10**9]), CALL)))[0] == "invalid"


async def test_a_model_without_a_template_serves_texts_only(tiny_folder: Path, tmp_path: Path) -> None:
    for file in ("tokenizer.json", "config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((tiny_folder / file).read_bytes())
    actor = TokenizerActor(context(tmp_path))
    await actor.on_start()
    try:
        assert (await refusal(actor.encode(Encode(turns=HI), CALL)))[0] == "no_template"
        assert (await actor.encode(Encode(text="the"), CALL)).token_ids
    finally:
        await actor.on_stop()


async def test_a_template_that_cannot_be_compiled_leaves_the_tokenizer_ready_for_texts(
    tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in ("tokenizer.json", "config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((tiny_folder / file).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ 9**(9**9) }}")
    actor = TokenizerActor(context(tmp_path, template_timeout=0.3))
    await actor.on_start()
    try:
        assert actor.ready() == []
        reason, told = await refusal(actor.encode(Encode(turns=HI), CALL))
        assert (reason, told) == (
            "no_template",
            "the model's chat template is broken: compiling it took longer than 0.3 s: use the completions API",
        )
        assert (await actor.encode(Encode(text="the"), CALL)).token_ids
        assert "chats will be refused" in caplog.text
    finally:
        await actor.on_stop()


async def test_what_the_template_says_against_a_conversation_is_the_answer(tiny_folder: Path, tmp_path: Path) -> None:
    for file in ("tokenizer.json", "config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((tiny_folder / file).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(
        "{{ tools }}{% if messages[0].role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )
    actor = TokenizerActor(context(tmp_path, template_timeout=1.0))
    await actor.on_start()
    try:
        tool = [ChatTurn(role="tool", content="x")]
        assert await refusal(actor.encode(Encode(turns=tool), CALL)) == ("invalid", "no tools here")
        assert (await refusal(actor.encode(Encode(turns=HI), CALL)))[0] == "deadline"
    finally:
        await actor.on_stop()


async def test_many_at_once_get_their_own_answers(tokenizer: TokenizerActor) -> None:
    messages = [Encode(text="the cat " * n, add_special_tokens=False) for n in range(1, 60)]
    answers = await asyncio.gather(*(tokenizer.encode(message, CALL) for message in messages))
    texts = await asyncio.gather(*(tokenizer.decode(Decode(token_ids=answer.token_ids), CALL) for answer in answers))
    assert [text.text for text in texts] == [message.text for message in messages]


class SlowForLong:
    """Encodes instead of the tokenizer's encoder, and holds every long text until it is told to go on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.encoded: list[str] = []
        patch.setattr(Encoder, "encode", self.encode)

    def encode(self, text: str, *, add_special_tokens: bool, max_tokens: int = 0) -> list[int]:
        if len(text) > 100:
            assert self.go_on.wait(60)
        self.encoded.append(text)
        return [len(text)]


async def test_a_short_text_does_not_wait_for_long_ones(
    tokenizer: TokenizerActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowForLong(monkeypatch)
    long = [asyncio.create_task(tokenizer.encode(Encode(text="x" * 100_000), CALL)) for _ in range(8)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(20):
            assert (await tokenizer.encode(Encode(text="the cat"), CALL)).token_ids == [7]
        assert slow.encoded == ["the cat"]
    finally:
        slow.go_on.set()
    assert [answer.token_ids for answer in await asyncio.gather(*long)] == [[100_000]] * 8


async def test_long_texts_wait_in_bounded_room_that_short_ones_do_not_share(
    tokenizer: TokenizerActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowForLong(monkeypatch)
    megabyte = "x" * (1 << 20)
    long = [asyncio.create_task(tokenizer.encode(Encode(text=megabyte), CALL)) for _ in range(32)]
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await tokenizer.encode(Encode(text=megabyte), CALL)
    assert (await tokenizer.encode(Encode(text="the cat"), CALL)).token_ids == [7]
    slow.go_on.set()
    await asyncio.gather(*long)
    assert (await tokenizer.encode(Encode(text=megabyte), CALL)).token_ids == [1 << 20]


async def test_a_text_that_cannot_fit_is_refused_at_once(
    tokenizer: TokenizerActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a chat, too: of its template's text."""
    monkeypatch.setattr(Encoder, "encode", None)
    text = "the cat " * 100_000
    turns = [ChatTurn(role="user", content=text)]
    for message in (Encode(text=text, max_tokens=100), Encode(turns=turns, max_tokens=100)):
        reason, told = await refusal(tokenizer.encode(message, CALL))
        assert (reason, told.startswith("the prompt has at least ")) == ("too_long", True)


async def test_idle_time_is_no_standstill_and_waiting_work_is(
    tokenizer: TokenizerActor, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowForLong(monkeypatch)
    await clock.advance(100.0)
    assert (tokenizer.progress_age(), tokenizer.load()) == (0.0, 0)
    long = asyncio.create_task(tokenizer.encode(Encode(text="x" * 1000), CALL))
    await asyncio.sleep(0)
    assert tokenizer.progress_age() == 0.0
    await clock.advance(3.0)
    assert (tokenizer.progress_age(), tokenizer.load()) == (3.0, 1)
    await tokenizer.encode(Encode(text="the cat"), CALL)
    assert (tokenizer.progress_age(), tokenizer.load()) == (0.0, 1)
    slow.go_on.set()
    await long
    assert (tokenizer.progress_age(), tokenizer.load()) == (0.0, 0)


async def test_draining_waits_for_what_runs_and_no_longer_than_it_may(
    tokenizer: TokenizerActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tokenizer.drain(1.0)
    assert tokenizer.ready() == ["draining"]
    slow = SlowForLong(monkeypatch)
    long = asyncio.create_task(tokenizer.encode(Encode(text="x" * 1000), CALL))
    await asyncio.sleep(0)
    await tokenizer.drain(0.01)
    assert not long.done()
    slow.go_on.set()
    await tokenizer.drain(60.0)
    assert tokenizer.load() == 0
    await long


@pytest.mark.model
async def test_smollm2_prompts_equal_those_of_transformers() -> None:
    from transformers import AutoTokenizer

    from models.sources import ensure_model
    from services.api.settings import cache_dir

    folder = ensure_model("smollm2-135m-instruct", cache_dir(Settings.for_tests()))
    reference = AutoTokenizer.from_pretrained(folder)
    actor = TokenizerActor(context(folder))
    await actor.on_start()
    try:
        for turns in CONVERSATIONS:
            for prompt in (True, False):
                encoded = await actor.encode(
                    Encode(turns=[ChatTurn(**turn) for turn in turns], add_generation_prompt=prompt), CALL
                )
                expected = reference.apply_chat_template(turns, add_generation_prompt=prompt, return_dict=False)
                assert encoded.token_ids == expected
        for turns in CONVERSATIONS:
            text = turns[-1]["content"]
            encoded = await actor.encode(Encode(text=text), CALL)
            assert encoded.token_ids == reference(text)["input_ids"]
            decoded = await actor.decode(Decode(token_ids=encoded.token_ids), CALL)
            assert decoded.text == reference.decode(
                encoded.token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
    finally:
        await actor.on_stop()


CONVERSATIONS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue?\n\n"}],
    [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "  naïve 日本語 🙂 \t<|im_end|> {{ x }} \u202e\u0000 "},
    ],
    [{"role": "user", "content": "def f(x):\n    return x ** 2\n" * 50}],
    [{"role": "user", "content": ""}],
]


@pytest.mark.parametrize("engine", ["torch", "mock"])
async def test_the_child_for_grammars_starts_with_the_first_worker(tiny_folder: Path, engine: str) -> None:
    around = context(tiny_folder, engine=engine)
    actor = TokenizerActor(around)
    await actor.on_start()
    try:
        grammars = actor._grammars
        assert grammars is not None and grammars._starting is None
        around.directory.has("a")
        if engine == "mock":
            assert grammars._starting is None
            return
        assert actor.ready() == [] and grammars._starting is not None
        await grammars._starting
        child = grammars._child.process
        assert child is not None
        around.directory.has("a", "b")
        assert (await actor.check_grammar(CheckGrammar(grammar=choice(["a"])), CALL)).problem == ""
        assert grammars._child.process is child
    finally:
        await actor.on_stop()


async def test_tools_and_their_calls_count_as_text_that_is_held(tokenizer: TokenizerActor) -> None:
    call = ToolCall(id="1", name="f", arguments='{"a": 1}')
    turn = ChatTurn(role="assistant", content=None, tool_calls=[call], reasoning="hmm")
    assert _length(Encode(turns=[*HI, turn], tools="[1]", template_kwargs="{}")) == 7 + 8 + 3 + 3 + 2
    longer = await tokenizer.encode(Encode(turns=[*HI, turn], tools="[1]"), CALL)
    assert len(longer.token_ids) > len((await tokenizer.encode(Encode(turns=HI), CALL)).token_ids)


async def test_a_template_of_the_operator_replaces_that_of_the_folder(tiny_folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "chat.jinja"
    own.write_text("{{ bos_token }}{{ messages[0].content }}")
    actor = TokenizerActor(context(tiny_folder, chat_template=str(own)))
    await actor.on_start()
    try:
        encoded = await actor.encode(Encode(turns=HI), CALL)
        decode = Decode(token_ids=encoded.token_ids, skip_special_tokens=False)
        assert (await actor.decode(decode, CALL)).text == "<|start|>the cat"
    finally:
        await actor.on_stop()


@pytest.mark.parametrize("text", [None, "{% for %}", "\0" * (1 << 21)])
async def test_a_template_of_the_operator_that_is_none_ends_the_start(
    tiny_folder: Path, tmp_path: Path, text: str | None
) -> None:
    own = tmp_path / "chat.jinja"
    if text is not None:
        own.write_text(text)
    actor = TokenizerActor(context(tiny_folder, chat_template=str(own)))
    try:
        with pytest.raises(ModelError, match=r"chat\.jinja"):
            await actor.on_start()
    finally:
        await actor.on_stop()
