"""The prompts of a training: from files, or written by the model itself.

    <|im_start|>system ... <|im_start|>user\n  Why is the sea salty?  <|im_end|>\n<|im_start|>assistant\n
    └───────────── opening ──────────────┘   └── the model's own ──┘  └ ends it

The model writes a prompt as the continuation of its chat template, which is cut where the user's message begins. Knows
no engine: what was sampled is passed in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.config import read_network
from models.errors import ModelError
from services.api.chat_templates import read_template
from services.api.sampling import Sampling
from services.tokenizer.chat_template import ChatTemplate, TemplateError
from services.tokenizer.encode import Encoder
from services.training.answers import ModelAnswer

# Numbers of the model's own prompts begin here, those of the data at 0: neither depends on how many the others are.
OWN_PROMPTS = 1 << 30
# One prompt of this many is held out, by the hash of its text: the same ones in every run.
HELD_OUT_OF = 20
MOST_PROMPT_TOKENS = 1024
LEAST_OWN_TOKENS, MOST_OWN_TOKENS = 4, 96
# Stands for the user's message in a rendered template.
MARKER = "b5c1e7d04f"


@dataclass(frozen=True, slots=True)
class Opening:
    """`ids` are the template up to the user's message. `ends`: the special token that ends the message, if the template
    has one, which isn't always an end token of the model. `follows`: the first word after the message."""

    ids: list[int]
    ends: list[int]
    follows: str

    def sampling(self, seed: int) -> Sampling:
        # Other seeds than those of answers, and of other trainings.
        return Sampling(max_tokens=MOST_OWN_TOKENS, temperature=1.0, seed=seed << 32, stop_token_ids=self.ends)


class Asking:
    """How the model is asked: through its chat template where it has one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._encoder = Encoder.from_folder(folder)
        self._most_tokens = min(MOST_PROMPT_TOKENS, read_network(folder).max_context - 1)
        source = read_template(folder)
        try:
            self._template = None if source is None else ChatTemplate(source, 1 << 20)
        except TemplateError as error:
            raise ValueError(str(error)) from error

    def ids(self, text: str) -> list[int]:
        rendered = text if self._template is None else self._render(self._template, text)
        return self._encoder.encode(rendered, add_special_tokens=self._template is None)

    def split(self, texts: Mapping[int, str]) -> tuple[dict[int, list[int]], list[list[int]]]:
        """Prompts to train on, by number, and those held out. Longer ones are left out."""
        chosen: dict[int, list[int]] = {}
        held: list[list[int]] = []
        for number, text in texts.items():
            ids = self.ids(text)
            if not 0 < len(ids) <= self._most_tokens:
                continue
            if int(hashlib.sha256(text.encode()).hexdigest(), 16) % HELD_OUT_OF == 0:
                held.append(ids)
            else:
                chosen[number] = ids
        return chosen, held

    def opening(self) -> Opening:
        """Raises ModelError for a model that isn't asked through a template."""
        name = self._folder.name
        if self._template is None:
            raise ModelError(f"{name} has no chat template: it can't write prompts", "give --data")
        before, found, after = self._render(self._template, MARKER).partition(MARKER)
        if not found:
            raise ModelError(f"the chat template of {name} leaves out the user's message", "give --data")
        # In most vocabularies a space belongs to the word that follows it.
        ids = self._encoder.encode(before.rstrip(" "), add_special_tokens=False)
        if not ids:
            raise ModelError(f"the chat template of {name} has nothing before the user's message", "give --data")
        first = self._encoder.encode(after, add_special_tokens=False)[:1]
        special = first and not self._encoder.decode(first, skip_special_tokens=True)
        return Opening(ids, first if special else [], (after.split() or [""])[0])

    def own(self, written: Iterable[ModelAnswer], opening: Opening, others: Iterable[str]) -> dict[int, str]:
        """Those of the sampled texts that can be prompts, by number: whole messages of at least a few tokens, each
        once and not among `others`."""
        seen = {"", *others}
        found: dict[int, str] = {}
        for text in written:
            ids = text.ids[text.prompt_tokens :]
            plain = self._encoder.decode(ids, skip_special_tokens=True)
            # With a special token or the template's next words within it, it is more than a message.
            more = plain != self._encoder.decode(ids, skip_special_tokens=False)
            more |= opening.follows != "" and opening.follows in plain
            if text.stopped and len(ids) >= LEAST_OWN_TOKENS and not more and plain.strip() not in seen:
                found[text.number] = plain.strip()
                seen.add(plain.strip())
        return found

    def _render(self, template: ChatTemplate, content: str) -> str:
        try:
            return template.render([{"role": "user", "content": content}], True)
        except TemplateError as error:
            raise ValueError(str(error)) from error


def from_files(files: Sequence[Path]) -> list[str]:
    """Each once. A prompt a line: text, or JSON with `prompt` or `messages` (the first of the user counts)."""
    return list(dict.fromkeys(prompt for file in files for prompt in _lines(file)))


def _lines(file: Path) -> Iterator[str]:
    """Raises ValueError with the file and the line, whatever is in it."""
    for number, line in enumerate(_text_of(file).split("\n"), 1):
        if not line.strip():
            continue
        if file.suffix != ".jsonl":
            yield line.rstrip("\r")
            continue
        try:
            prompt = _prompt_of(json.loads(line))
            # JSON may have half of a character, which no file and no tokenizer can.
            prompt.encode()
        except (ValueError, KeyError, TypeError, StopIteration, RecursionError) as error:
            where = f"{file}: line {number}"
            raise ValueError(f"{where} is neither {{'prompt': ...}} nor {{'messages': ...}} with text") from error
        yield prompt


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: byte {error.start} is not UTF-8") from error


def _prompt_of(line: object) -> str:
    if not isinstance(line, dict):
        raise TypeError("no object")
    if isinstance(prompt := line.get("prompt"), str):
        return prompt
    messages = line["messages"]
    if not isinstance(messages, list):
        raise TypeError("messages is no list")
    return str(next(each["content"] for each in messages if each["role"] == "user"))
