"""What a trained head's folder says of itself: README.md for people, training.json for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from services.training.answers import ModelAnswer
from services.training.job import Job
from services.training.loop import TrainingProgress
from services.training.measure import Measured
from services.training.nets.net import Net
from services.training.prompts import OWN_PROMPTS

# Points of a training's curve.
POINTS = 16


class Point(NamedTuple):
    """A part of a training: tokens seen at its end, the share of most probable tokens that were right, its seconds."""

    tokens: int
    right: float
    seconds: float


class Curve:
    """How often the most probable token was right on text that the head then learned from, in a file that a run which
    goes on continues: a line for each part of the training, of which the last one counts."""

    def __init__(self, file: Path, steps: int, now: Callable[[], float] = time.monotonic) -> None:
        self._file, self._steps, self._now = file, steps, now
        self._part, self._hits = -1, list[float]()
        self._began = now()

    def add(self, progress: TrainingProgress) -> None:
        part = progress.step * POINTS // self._steps
        self._part = part if self._part < 0 else self._part
        self._hits.append(progress.hits[0])
        if part > self._part:
            now = self._now()
            line = {"part": part, **Point(progress.tokens, fmean(self._hits), now - self._began)._asdict()}
            with self._file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
            self._part, self._hits, self._began = part, [], now

    def points(self) -> list[Point]:
        if not self._file.exists():
            return []
        lines = [json.loads(line) for line in self._file.read_text(encoding="utf-8").splitlines()]
        by_part = {line.pop("part"): Point(**line) for line in lines}
        return [by_part[part] for part in sorted(by_part)]


def told(job: Job, net: Net, texts: Sequence[ModelAnswer], found: Measured, curve: Sequence[Point]) -> dict[str, Any]:
    own = sum(text.number >= OWN_PROMPTS for text in texts)
    return {
        "method": job.method,
        "model": job.model,
        "seed": job.plan.seed,
        "answers": len(texts),
        "own_prompts": own,
        "data": [path.name for path in job.data],
        "tokens": sum(len(text.ids) - text.prompt_tokens for text in texts),
        "answer_temperature": job.temperature,
        "passes": job.plan.passes,
        "training_seconds": round(sum(point.seconds for point in curve)),
        "numbers": sum(part.numel() for part in net.parts.values()),
        "vocabulary": len(net.tokens),
        "held_out_prompts": found.prompts,
        "held_out_tokens": found.tokens,
        "tokens_per_step": round(found.tokens_per_step, 3),
        "accepted_by_position": [round(share, 3) for share in found.accepted],
        "curve": [[point.tokens, round(point.right, 3)] for point in curve],
    }


def card(job: Job, said: dict[str, Any]) -> str:
    shares = ", ".join(f"{share:.2f}" for share in said["accepted_by_position"])
    sources = [f"{said['answers'] - said['own_prompts']} from {', '.join(said['data'])}"] if job.data else []
    sources += [f"{said['own_prompts']} that the model wrote itself"] if job.own_prompts else []
    curve = "\n".join(f"| {tokens} | {right:.2f} |" for tokens, right in said["curve"])
    return f"""# {job.method} head for {job.model}

Made by `specmesh train-drafter --head {job.method} --model {job.model} --train-seed {job.plan.seed}`.

- Trained on {said['answers']} of the model's own answers ({said['tokens']} tokens, \
temperature {job.temperature:g}) to prompts:
  {", ".join(sources)}.
- {job.plan.passes} passes in {said['training_seconds'] / 60:.0f} minutes, {said['numbers']} trained numbers, a draft \
vocabulary of {said['vocabulary']} tokens{', stored in 8 bits' if job.eight_bits else ''}.
- On {said['held_out_prompts']} held-out prompts (greedy, {said['held_out_tokens']} tokens): \
{said['tokens_per_step']:.2f} tokens per step;
  share of drafted tokens accepted by position: {shares}.

| tokens seen | most probable next token right, on text not seen before |
|---|---|
{curve}
"""
