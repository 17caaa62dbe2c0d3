"""The training of a head: texts in an order that the seed decides, a step for each few of them, and a checkpoint now
and then, from which a run that was killed goes on to the same bits.

A checkpoint is a safetensors file (parameters and the optimiser's moments) that is renamed into place; what is in it
says how far it has come, so nothing else is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from services.training.answers import ModelAnswer
from services.training.nets.net import Net
from services.training.target import Target


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """`passes`: how often each text is seen. The rate rises for `warm_up` steps and falls to a tenth as a cosine."""

    passes: int = 1
    rate: float = 1e-3
    texts_a_step: int = 4
    longest: int = 512
    warm_up: int = 20
    checkpoint_every: int = 50
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    step: int
    steps: int
    tokens: int
    loss: float
    hits: list[float]


class Training:
    def __init__(self, net: Net, target: Target, texts: Sequence[ModelAnswer], plan: TrainingPlan, file: Path) -> None:
        self._net, self._target, self._texts, self._plan, self._file = net, target, texts, plan, file
        self._parameters = net.parts
        parts = self._parameters.values()
        self._optimiser = torch.optim.AdamW(parts, lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.0)
        self.steps = plan.passes * -(-len(texts) // plan.texts_a_step)
        self.step, self.tokens = 0, 0

    def run(self, told: Callable[[TrainingProgress], None]) -> None:
        if self._file.exists():
            self._resume()
        for step, batch in self._batches():
            if step < self.step:
                continue
            told(self._one(batch))
            if self.step % self._plan.checkpoint_every == 0 or self.step == self.steps:
                self._keep()

    def _batches(self) -> Iterator[tuple[int, list[ModelAnswer]]]:
        """Each pass in an order of its own, a function of the seed and the pass."""
        step, size = 0, self._plan.texts_a_step
        for turn in range(self._plan.passes):
            generator = torch.Generator().manual_seed(self._plan.seed * 1000 + turn)
            order = torch.randperm(len(self._texts), generator=generator).tolist()
            for first in range(0, len(order), size):
                yield step, [self._texts[place] for place in order[first : first + size]]
                step += 1

    def _one(self, batch: list[ModelAnswer]) -> TrainingProgress:
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate()
        self._optimiser.zero_grad(set_to_none=True)
        total, hits = 0.0, []
        for text in batch:
            ids = text.ids[: self._plan.longest]
            features, final = self._target.features(ids)
            loss, hit = self._net.loss(torch.tensor(ids), features, final)
            torch.autograd.backward(loss / len(batch))
            total += float(loss.detach()) / len(batch)
            hits.append(hit)
            self.tokens += len(ids)
        torch.nn.utils.clip_grad_norm_(self._parameters.values(), 1.0)
        self._optimiser.step()
        self.step += 1
        depth = min(map(len, hits))
        means = [sum(each[place] for each in hits) / len(hits) for place in range(depth)]
        return TrainingProgress(self.step, self.steps, self.tokens, total, means)

    def _rate(self) -> float:
        plan = self._plan
        if self.step < plan.warm_up:
            return plan.rate * (self.step + 1) / plan.warm_up
        share = (self.step - plan.warm_up) / max(1, self.steps - plan.warm_up)
        return plan.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, share))))

    # Checkpoints ------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        tensors = {f"value/{name}": part.detach() for name, part in self._parameters.items()}
        for name, part in self._parameters.items():
            for key, value in self._optimiser.state[part].items():
                tensors[f"{key}/{name}"] = value if torch.is_tensor(value) else torch.tensor(value)
        fresh = self._file.with_suffix(".new")
        save_file(
            {name: value.contiguous() for name, value in tensors.items()},
            fresh,
            {"step": str(self.step), "tokens": str(self.tokens)},
        )
        fresh.replace(self._file)

    def _resume(self) -> None:
        with safe_open(self._file, framework="pt") as kept:
            said = kept.metadata()
            self.step, self.tokens = int(said["step"]), int(said["tokens"])
            names = set(kept.keys())
            with torch.no_grad():
                for name, part in self._parameters.items():
                    part.copy_(kept.get_tensor(f"value/{name}"))
                    state = {
                        key: kept.get_tensor(f"{key}/{name}").clone()
                        for key in ("step", "exp_avg", "exp_avg_sq")
                        if f"{key}/{name}" in names
                    }
                    self._optimiser.state[part] = state
