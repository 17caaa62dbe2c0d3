"""The table of formats: a row for each, with how it is recognised in a chat template. A model's template is written for
the format that the model was trained on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from services.api.answer_parsers import AUTO, NONE
from services.api.sampling import ReasoningLimit
from services.streamer.agents import deepseek, ernie, glm, harmony, hermes, kimi, llama3, mistral, pythonic, qwen3_coder
from services.streamer.agents.answer_grammars import form_behind
from services.streamer.agents.call_grammars import Calls, Special, Spelling, Tools
from services.streamer.agents.elements import Schemas
from services.streamer.agents.form_or_calls import FormOrCalls
from services.streamer.agents.ids import long_id, short_id
from services.streamer.agents.parts import CallParser
from services.streamer.agents.reader import AnswerReader
from services.streamer.agents.reasoning import CLOSER, OPENER, Reasoning


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`signs`: texts that are all in the templates of such models; none: nothing tells them. `markers`: those that may
    be special tokens, which are no text elsewhere."""

    name: str
    parser: Callable[[Schemas], CallParser]
    signs: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    new_id: Callable[[], str] = long_id
    spelling: Spelling | None = None  # None: a grammar can't say what arguments look like
    # Another spelling, and the special token of the models that write it.
    newer: tuple[str, Spelling] | None = None

    def spelling_for(self, special: Special) -> Spelling | None:
        return self.newer[1] if self.newer is not None and self.newer[0] in special else self.spelling


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """`inside`: the answer begins with reasoning, also where the prompt doesn't end with <think>. `answer`: reads what
    follows the reasoning, if that isn't read for calls. `markers`: special tokens that are text."""

    name: str
    signs: tuple[str, ...] = ()
    inside: bool = False
    answer: Callable[[], CallParser] | None = None
    reasoning: type[Reasoning] = Reasoning
    markers: tuple[str, ...] = (OPENER, CLOSER)


# The first whose signs are there is taken.
TOOL_FORMATS = (
    ToolFormat("openai", lambda _: harmony.Messages(), (harmony.CHANNEL, harmony.MESSAGE), harmony.MARKERS,
               spelling=harmony.SPELLING),
    ToolFormat("qwen3_coder", qwen3_coder.parser, ("<function=",), ("<tool_call>", "</tool_call>")),
    ToolFormat("glm45", glm.parser, (glm.OPENER, glm.KEY), glm.MARKERS),
    ToolFormat("ernie45", lambda _: ernie.parser(), ("<tool_call>", "<response>"), ernie.MARKERS,
               spelling=hermes.SPELLING),
    ToolFormat("hermes", lambda _: hermes.parser(), ("<tool_call>",), (hermes.OPENER, hermes.CLOSER),
               spelling=hermes.SPELLING),
    ToolFormat("mistral", lambda _: mistral.parser(), (mistral.MARKER,), mistral.MARKERS, short_id,
               mistral.SPELLING, (mistral.ARGUMENTS, mistral.NAMED_SPELLING)),
    ToolFormat("deepseek_v3", lambda _: deepseek.v3(), (deepseek.OPENER, "```json"), deepseek.MARKERS,
               spelling=deepseek.V3_SPELLING),
    ToolFormat("deepseek_v31", lambda _: deepseek.v31(), (deepseek.OPENER,), deepseek.MARKERS,
               spelling=deepseek.V31_SPELLING),
    ToolFormat("kimi_k2", lambda _: kimi.parser(), (kimi.OPENER,), kimi.MARKERS, spelling=kimi.SPELLING),
    ToolFormat("llama3_json", lambda _: llama3.parser(), ("ipython",), (llama3.MARKER,),
               spelling=llama3.SPELLING),
    ToolFormat("pythonic", lambda _: pythonic.parser(), (), pythonic.MARKERS),
)  # fmt: skip
REASONING_FORMATS = (
    ReasoningFormat("openai_gptoss", (harmony.CHANNEL, harmony.MESSAGE), answer=lambda: harmony.Messages(calls=False),
                    reasoning=harmony.Analysis, markers=harmony.MARKERS),
    ReasoningFormat("ernie45", ("<think>", "<response>"), answer=ernie.answer),
    ReasoningFormat("deepseek_r1", ("</think>", deepseek.ASSISTANT), inside=True),
    ReasoningFormat("qwen3", ("</think>",)),
)  # fmt: skip
# Models whose template has no format of its own, or reads no tools, are told this one
# (services/tokenizer/plain_tools.py).
PLAIN = "hermes"
_READS_TOOLS = re.compile(r"\btools\b")


@dataclass(frozen=True, slots=True)
class Formats:
    """Of the served model."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    def reader(
        self, schemas: Schemas | None, end_of_prompt: str, *, one_call: bool, quiet: bool, form: bool = False
    ) -> AnswerReader | None:
        """Of an answer behind this prompt. `schemas`: of the tools it may call; None: it may call none. `form`: a
        grammar leaves it calls or another form, or a form alone."""
        reasoning = self.reasoning_behind(end_of_prompt)
        called = self.tools if schemas is not None else None
        in_messages = called is not None and called.spelling is not None and called.spelling.in_messages
        answer = None if in_messages else self._answer(form)
        if reasoning is None and answer is None and called is None:
            return None
        calls = None if called is None or schemas is None else called.parser(schemas)
        if form and not in_messages and calls is not None and called is not None and called.spelling is not None:
            calls = FormOrCalls(calls, called.spelling.opener)
        new_id = long_id if called is None else called.new_id
        return AnswerReader(reasoning, answer, calls, new_id, one_call, quiet)

    def _answer(self, form: bool) -> CallParser | None:
        """Of a form nothing is left out but what its grammar puts before it."""
        how = self.reasoning
        if how is None or how.answer is None or (form and not how.reasoning.marks.lead):
            return None
        return how.answer()

    def calls(self, tools: Tools, end_of_prompt: str, special: Special, *, several: bool) -> Calls | None:
        """Of an answer behind this prompt, for a grammar. None: the format can't be held to."""
        spelling = None if self.tools is None else self.tools.spelling_for(special)
        if spelling is None:
            return None
        reasoning = self.reasoning_behind(end_of_prompt)
        return Calls(spelling, tools, special, several, reasoning)

    def form_grammar(self, form: str, end_of_prompt: str, special: Special) -> str:
        """Of an answer with this form, a grammar, behind this prompt and its reasoning."""
        reasoning = self.reasoning_behind(end_of_prompt)
        return form if reasoning is None else form_behind(form, reasoning, special)

    def reasoning_limit(self, tokens: int, end_of_prompt: str) -> ReasoningLimit | None:
        """Of an answer behind this prompt; None: it has no reasoning."""
        reasoning = self.reasoning_behind(end_of_prompt)
        if reasoning is None:
            return None
        return ReasoningLimit(tokens, reasoning.inside, reasoning.marks.opener, reasoning.marks.closer)

    def reasoning_behind(self, end_of_prompt: str) -> Reasoning | None:
        """Of an answer behind this prompt; None: it has none."""
        how = self.reasoning
        return None if how is None else how.reasoning.behind(end_of_prompt, how.inside)

    def markers(self, *, tools: bool) -> frozenset[str]:
        """Special tokens that are text in answers which a reader reads."""
        called = self.tools.markers if tools and self.tools is not None else ()
        return frozenset(called if self.reasoning is None else (*called, *self.reasoning.markers))


def formats_of(tool_call_parser: str, reasoning_parser: str, template: str) -> Formats:
    return Formats(tool_format(tool_call_parser, template), reasoning_format(reasoning_parser, template))


def tool_format(name: str, template: str) -> ToolFormat | None:
    """By the setting. None: calls stay in the text."""
    if name == AUTO:
        formats = TOOL_FORMATS if _READS_TOOLS.search(template) else ()
        found = (each for each in formats if each.signs and all(sign in template for sign in each.signs))
        return next(found, None) or tool_format(PLAIN, template)
    return None if name == NONE else next(each for each in TOOL_FORMATS if each.name == name)


def reasoning_format(name: str, template: str) -> ReasoningFormat | None:
    """By the setting. None: reasoning stays in the text."""
    if name == AUTO:
        return next((each for each in REASONING_FORMATS if all(sign in template for sign in each.signs)), None)
    return None if name == NONE else next(each for each in REASONING_FORMATS if each.name == name)
