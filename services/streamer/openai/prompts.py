"""Prompts of a body: a text, a list of texts, token ids, or a list of lists of them. Knows no model."""

from __future__ import annotations

from typing import Any

from services.api.messages import Encode
from services.streamer.openai.errors import bad_value
from services.streamer.openai.fields import check_list, wrong_type
from services.streamer.openai.sampling import read_ids

# Text or turns for the tokenizer, or token ids that need none.
Prompt = Encode | list[int]


def read_prompts(value: Any, name: str, most: int) -> list[Prompt]:
    if isinstance(value, str):
        return [Encode(text=value)]
    if not isinstance(value, list):
        raise wrong_type(name, "a string, a list of strings, or token ids", value)
    if not value:
        raise bad_value(name, "is empty")
    if not isinstance(value[0], str | list):
        return [read_ids(value, name)]
    prompts: list[Prompt] = []
    for index, each in enumerate(check_list(value, name, most)):
        where = f"{name}[{index}]"
        if type(each) is not type(value[0]):
            raise wrong_type(where, f"of the same type as {name}[0]", each)
        prompts.append(Encode(text=each) if isinstance(each, str) else read_ids(each, where))
    return prompts
