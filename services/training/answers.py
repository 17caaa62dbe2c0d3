"""What a head is trained on: the model's own answers, made by the worker's engine in batches and appended to a file.

A line of answers.jsonl is one text: its ids, and how many of them are the prompt. A file that was cut short is
continued: its lines say which prompts are done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from services.api.messages import Generate, Sampling, Speculation
from services.api.methods import NAIVE
from services.worker.running.runner import Runner
from services.worker.scheduling.events import Arrived, Emit, Output, StepDone
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler


class Text(msgspec.Struct, frozen=True):
    """`number` is that of its prompt."""

    number: int
    prompt_tokens: int
    ids: list[int]


def read(file: Path) -> list[Text]:
    """All whole lines."""
    if not file.exists():
        return []
    lines = file.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Text) for line in lines]


def make(
    runner: Runner, prompts: Sequence[Sequence[int]], file: Path, *, max_tokens: int, temperature: float, seed: int
) -> Iterator[Text]:
    """Answers the prompts that the file lacks, as they end. The text of a prompt depends on its number and the seed."""
    done = {text.number for text in read(file)}
    _cut_to_whole_lines(file)
    scheduler = Scheduler(_limits(runner))
    texts: dict[int, list[int]] = {}
    todo = iter([number for number in range(len(prompts)) if number not in done])
    with file.open("ab") as out:
        while True:
            while len(texts) < 2 * scheduler.limits.max_running and (number := next(todo, None)) is not None:
                texts[number] = list(prompts[number])
                request = _request(number, texts[number], max_tokens, temperature, seed)
                scheduler.handle(Arrived(request, number))
            if not scheduler.has_work:
                return
            for number in _step(scheduler, runner, texts):
                text = Text(number, len(prompts[number]), texts.pop(number))
                out.write(msgspec.json.encode(text) + b"\n")
                out.flush()
                yield text


def _step(scheduler: Scheduler, runner: Runner, texts: dict[int, list[int]]) -> list[int]:
    """One step. Returns the prompts whose answers have ended."""
    scheduler.schedule()
    runner.launch(scheduler.place())
    ended: list[int] = []
    for item in scheduler.handle(StepDone(runner.finish())):
        if isinstance(item, Emit):
            texts[item.stream] += item.tokens.ids
        elif (number := _ended(item)) is not None:
            ended.append(number)
    return ended


def _ended(item: Output) -> int | None:
    stream = getattr(item, "stream", None)
    return stream if isinstance(stream, int) else None


def _limits(runner: Runner) -> Limits:
    facts = runner.facts
    return Limits(
        vocab_size=facts.vocab_size,
        max_context=facts.max_context,
        eos_token_ids=tuple(facts.eos_token_ids),
        page_tokens=facts.page_tokens,
        pages=facts.pages,
        max_sequences=16,
        max_waiting=1 << 20,
        method=NAIVE,
    )


def _request(number: int, prompt: list[int], max_tokens: int, temperature: float, seed: int) -> Generate:
    return Generate(
        request_id=str(number),
        attempt=1,
        token_ids=prompt,
        prompt_tokens=len(prompt),
        sampling=Sampling(max_tokens=max_tokens, temperature=temperature, seed=seed + number),
        speculation=Speculation(),
    )


def _cut_to_whole_lines(file: Path) -> None:
    if file.exists():
        data = file.read_bytes()
        file.write_bytes(data[: data.rfind(b"\n") + 1])
