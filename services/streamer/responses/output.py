"""The items of a response's output while they grow, and the published events that tell of each.

    response.output_item.added ─▶ (content_part.added) ─▶ deltas ─▶ done ─▶ (content_part.done) ─▶ output_item.done

Pure. Knows neither sequence numbers nor the response around the items.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import orjson

from services.streamer.agents.reader import SaidCall

# The event's type, and its other fields.
Event = tuple[str, dict[str, Any]]
IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"


class _Item:
    """What all of them have. `index`: its place in the output."""

    prefix = ""

    def __init__(self, index: int) -> None:
        self.id = self.prefix + secrets.token_hex(12)
        self._index = index
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    def item(self, status: str) -> dict[str, Any]:
        raise NotImplementedError

    def _of_item(self, kind: str, status: str) -> Event:
        return f"response.output_item.{kind}", {"output_index": self._index, "item": self.item(status)}

    def _of_part(self, kind: str, **more: Any) -> Event:
        return f"response.{kind}", {"item_id": self.id, "output_index": self._index, "content_index": 0, **more}


class Message(_Item):
    prefix = "msg_"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._logprobs: list[bytes] = []

    def begun(self) -> Iterator[Event]:
        yield self._of_item("added", IN_PROGRESS)
        yield self._of_part("content_part.added", part=self._part())

    def more(self, text: str, logprobs: bytes) -> Iterator[Event]:
        """`logprobs`: of tokens, JSON without the brackets around it."""
        self._texts.append(text)
        if logprobs:
            self._logprobs.append(logprobs)
        yield self._of_part("output_text.delta", delta=text, logprobs=_list([logprobs] if logprobs else []))

    def ended(self, status: str) -> Iterator[Event]:
        yield self._of_part("output_text.done", text=self.text, logprobs=_list(self._logprobs))
        yield self._of_part("content_part.done", part=self._part())
        yield self._of_item("done", status)

    def item(self, status: str) -> dict[str, Any]:
        content = [] if status == IN_PROGRESS else [self._part()]
        return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": _list(self._logprobs)}


class Reasoning(_Item):
    prefix = "rs_"

    def begun(self) -> Iterator[Event]:
        yield self._of_item("added", IN_PROGRESS)
        yield self._of_part("content_part.added", part=self._part())

    def more(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        yield self._of_part("reasoning_text.delta", delta=text)

    def ended(self, status: str) -> Iterator[Event]:
        yield self._of_part("reasoning_text.done", text=self.text)
        yield self._of_part("content_part.done", part=self._part())
        yield self._of_item("done", status)

    def item(self, status: str) -> dict[str, Any]:
        content = [] if status == IN_PROGRESS else [self._part()]
        return {"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": content}

    def _part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}


class FunctionCall(_Item):
    prefix = "fc_"

    def __init__(self, index: int, call: SaidCall) -> None:
        super().__init__(index)
        self.call_index = call.index
        self._call_id, self._name = call.id, call.name

    def begun(self) -> Iterator[Event]:
        yield self._of_item("added", IN_PROGRESS)

    def more(self, arguments: str) -> Iterator[Event]:
        self._texts.append(arguments)
        yield self._of_arguments("delta", delta=arguments)

    def ended(self, status: str) -> Iterator[Event]:
        yield self._of_arguments("done", name=self._name, arguments=self.text)
        yield self._of_item("done", status)

    def item(self, status: str) -> dict[str, Any]:
        named = {"call_id": self._call_id, "name": self._name, "arguments": self.text}
        return {"id": self.id, "type": "function_call", "status": status, **named}

    def _of_arguments(self, kind: str, **more: Any) -> Event:
        place = {"item_id": self.id, "output_index": self._index}
        return f"response.function_call_arguments.{kind}", {**place, **more}


def _list(written: list[bytes]) -> orjson.Fragment:
    return orjson.Fragment(b"[" + b",".join(written) + b"]")
