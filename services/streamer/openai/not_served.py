"""Fields of OpenAI and vLLM that aren't served, and how a request with one of them is refused.

A field whose value asks for nothing is let through: clients send the defaults of their libraries. Every other value is
refused with the field's name. Knows JSON values, and no parameter that is served.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from services.streamer.openai.errors import unsupported
from services.streamer.openai.fields import BodyFields

Values = dict[str, tuple[Any, ...]]

# Each with the values that ask for nothing, besides null; many are what vLLM takes a missing field for.
CHAT: Values = {
    "echo": (False,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "verbosity": (),
    "web_search_options": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
}
COMPLETION: Values = {"suffix": ("",), "add_special_tokens": (True,)}
BOTH: Values = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1.0, 1),
    "early_stopping": (False,),
    "truncate_prompt_tokens": (),
    "logits_processors": ([],),
}
EMBEDDINGS: Values = {
    "add_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "use_activation": (),
    "messages": ([],),
    "input_type": (),
}
# Fields of other servers that are refused in a body, and that some clients put into `metadata`.
REFUSED_ELSEWHERE = frozenset({"enable_thinking", "reasoning_max_tokens", "temp_scaled_logprobs", "chat_template"})
# Fields that ask for something in chats alone.
OF_CHATS = frozenset({
    "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "include_reasoning", "reasoning_effort",
    "thinking_token_budget",
})  # fmt: skip


def check_not_asked(fields: BodyFields, values: Values) -> None:
    for name, harmless in values.items():
        fields.only(name, *harmless)


def check_metadata(metadata: Any, read: Collection[str]) -> None:
    """Labels, which have no effect, are texts. A field of a body that stands here with another value asks for
    something, and would be ignored. `read`: the fields of a body that have an effect."""
    if not isinstance(metadata, dict):
        return
    for name, value in metadata.items():
        if value is None or isinstance(value, str):
            continue
        known = name in REFUSED_ELSEWHERE or any(name in each for each in (CHAT, COMPLETION, BOTH))
        if name in read and not known:
            message = f"has no effect there: put {name} into the body itself, beside metadata"
            raise unsupported(f"metadata.{name}", message)
        if known or name in OF_CHATS:
            raise unsupported(f"metadata.{name}")
