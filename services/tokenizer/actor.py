"""The tokenizer: conversations and text in, token ids out.

Encoding runs in threads (lanes.py), the chat template and the check of grammars in a process each, so that a long
prompt, a slow template or a large grammar doesn't hold up the others. Knows nothing of HTTP or of the model's weights.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from mesh.actor import Actor, Call
from mesh.errors import Refuse
from models.errors import ModelError
from models.sources import ensure_model
from services.api.chat_templates import read_template
from services.api.messages import (
    CheckGrammar,
    Decode,
    Decoded,
    Encode,
    Encoded,
    EncodedWords,
    EncodeWords,
    GrammarChecked,
)
from services.api.settings import cache_dir
from services.runtime.introspection import Figures
from services.tokenizer.chat_template import TemplateError
from services.tokenizer.encode import Encoder, TooLong
from services.tokenizer.grammar_process import GrammarCheckFailed, GrammarProcess
from services.tokenizer.lanes import Lanes
from services.tokenizer.metrics import TokenizerMetrics
from services.tokenizer.template_process import TemplateBroken, TemplateDeadline, TemplateProcess

if TYPE_CHECKING:
    from services.runtime.process import Context

log = logging.getLogger("specmesh.tokenizer")


class TokenizerActor(Actor):
    handlers = {  # noqa: RUF012
        Encode: "encode",
        EncodeWords: "encode_words",
        CheckGrammar: "check_grammar",
        Decode: "decode",
    }
    mailbox_size = 1024
    # Waiting for a thread or for the template is most of a handler's life. None waits for another: what they hold in
    # all is bounded by the lanes.
    concurrency = mailbox_size

    def __init__(self, context: Context) -> None:
        self._settings = context.settings
        self._directory = context.directory
        self._metrics = TokenizerMetrics(context.registry, context.clock)
        self._lanes = Lanes()
        self._encoder: Encoder | None = None
        self._template: TemplateProcess | None = None
        self._grammars: GrammarProcess | None = None
        self._ahead = False  # its child has been started, or needn't be
        self._draining = False

    async def on_start(self) -> None:
        settings = self._settings
        folder = await asyncio.to_thread(
            lambda: ensure_model(settings.model, cache_dir(settings), dtype=settings.dtype)
        )
        source = read_template(folder, settings.chat_template)
        if source is not None:
            self._template = TemplateProcess(
                source,
                max_chars=self._settings.max_body_bytes,
                deadline=self._settings.template_timeout,
            )
            try:
                await self._template.start()
            except TemplateError as error:
                if settings.chat_template:
                    raise ModelError(f"chat_template: {settings.chat_template}: {error}", "correct the file") from error
                log.warning("chats will be refused: %s", error)
        self._grammars = GrammarProcess(folder / "tokenizer.json")
        self._encoder = await asyncio.to_thread(lambda: Encoder.from_folder(folder))
        self._directory.on_change(self._look_for_workers)
        self._look_for_workers()

    async def on_stop(self) -> None:
        if self._template is not None:
            await self._template.close()
        self._ahead = True
        if self._grammars is not None:
            await self._grammars.close()
        self._lanes.close()

    # Handlers -------------------------------------------------------------------------------------------

    async def encode(self, message: Encode, call: Call) -> Encoded:
        encoder = self._loaded()
        with self._lanes.hold(_length(message)), self._metrics.work("encode"):
            text, add_special_tokens = await self._text_of(message)
            try:
                encoder.check_length(text, message.max_tokens)
                token_ids = await self._lanes.run(
                    len(text),
                    lambda: encoder.encode(
                        text, add_special_tokens=add_special_tokens, max_tokens=message.max_tokens
                    ),
                )
            except TooLong as error:
                raise self._refuse("too_long", str(error)) from None
            self._metrics.prompt_tokens(len(token_ids))
            return Encoded(token_ids=token_ids)

    async def encode_words(self, message: EncodeWords, call: Call) -> EncodedWords:
        length = sum(map(len, message.words))
        with self._lanes.hold(length), self._metrics.work("encode_words"):
            spellings = await self._lanes.run(length, lambda: self._loaded().encode_words(message.words))
            return EncodedWords(spellings=spellings)

    async def check_grammar(self, message: CheckGrammar, call: Call) -> GrammarChecked:
        assert self._grammars is not None, "handlers run after on_start"
        with self._lanes.hold(len(message.grammar)), self._metrics.elsewhere("check_grammar"):
            try:
                return GrammarChecked(problem=await self._grammars.check(message.grammar, message.caller))
            except GrammarCheckFailed as error:
                raise self._refuse("deadline", str(error)) from None

    async def decode(self, message: Decode, call: Call) -> Decoded:
        length = len(message.token_ids)
        with self._lanes.hold(length), self._metrics.work("decode"):
            try:
                text = await self._lanes.run(
                    length,
                    lambda: self._loaded().decode(
                        message.token_ids, skip_special_tokens=message.skip_special_tokens
                    ),
                )
            except ValueError as error:
                raise self._refuse("invalid", str(error)) from None
            return Decoded(text=text)

    async def _text_of(self, message: Encode) -> tuple[str, bool]:
        """The text, and whether the tokenizer adds its special tokens: templates write their own."""
        if message.text is not None and message.turns is None:
            return message.text, message.add_special_tokens
        if message.turns is None or message.text is not None:
            raise self._refuse("invalid", "give either messages or a text")
        if self._template is None:
            raise self._refuse("no_template", "this model has no chat template: use the completions API")
        try:
            text = await self._template.render(
                message.turns, message.add_generation_prompt, message.tools, message.template_kwargs
            )
            return text, False
        except TemplateBroken as error:
            raise self._refuse("no_template", f"{error}: use the completions API") from None
        except TemplateDeadline as error:
            raise self._refuse("deadline", str(error)) from None
        except TemplateError as error:
            raise self._refuse("invalid", str(error)) from None

    def _look_for_workers(self) -> None:
        """Once there is one, the child for grammars is started: not before, as the start of a worker is what users wait
        for, and it takes half a second of a core. The mock engine serves no grammars."""
        if self._ahead or self._settings.engine == "mock" or not self._directory.ready("worker"):
            return
        assert self._grammars is not None
        self._ahead = True
        self._grammars.start_ahead()

    # What the process around us asks -------------------------------------------------------------------

    def ready(self) -> list[str]:
        reasons = []
        if self._encoder is None:
            reasons.append("the tokenizer is being loaded")
        if self._draining:
            reasons.append("draining")
        return reasons

    def progress_age(self) -> float:
        return self._metrics.progress_age()

    def load(self) -> int:
        return self._metrics.running

    def figures(self) -> Figures:
        return Figures({"running": self._metrics.running}, {"tokens": self._metrics.tokens})

    async def drain(self, timeout: float) -> None:
        self._draining = True
        await self._metrics.idle(timeout)

    def _loaded(self) -> Encoder:
        assert self._encoder is not None, "handlers run after on_start"
        return self._encoder

    def _refuse(self, reason: str, message: str) -> Refuse:
        self._metrics.refused(reason)
        return Refuse(reason, message)


def _length(message: Encode) -> int:
    """Characters of what is to be encoded."""
    texts = [message.text, message.tools, message.template_kwargs]
    for turn in message.turns or ():
        texts += [turn.content, turn.reasoning, *(each.arguments for each in turn.tool_calls)]
    return sum(map(len, filter(None, texts)))
