"""A verifier of its own for chains of one length at temperature 1, with a fault to order: what the law's harness is
tried on. It shares neither noise nor arithmetic with those it stands in for."""

from __future__ import annotations

import numpy as np
import torch

from kernels.verify.questions import BLOCK, Answers, Questions

SOUND = ""
GENEROUS = "a draft stands 1 % more often"
WHOLE = "what replaces a draft is drawn from the whole target"
UNWEIGHTED = "what block leaves isn't weighted by its joint probability"
REUSED = "numbers belong to positions, so steps use them again"
SAME_NOISE = "what replaces a draft is chosen by the number that refused it"


class Verifier:
    def __init__(self, fault: str = SOUND) -> None:
        self.fault = fault

    def __call__(self, logits: torch.Tensor, questions: Questions) -> Answers:
        rules = questions.records
        many = len(rules)
        rows = len(logits) // many
        self.seeds, self.positions = rules["seed"].astype(np.uint64), rules["position"].astype(np.uint64)
        target = torch.softmax(logits.double(), -1).numpy().reshape(many, rows, -1)
        tokens = questions.drafted.numpy().reshape(many, rows)[:, 1:]
        drafter = self._drafter(questions, target.shape)
        self.every = np.arange(many)
        judge = self._block if rules[0].strategy == BLOCK else self._rejection
        accepted, left = judge(target, drafter, tokens)
        found = np.pad(tokens, ((0, 0), (0, 1)))
        found[self.every, accepted] = self._drawn(left, accepted)
        return Answers(
            tokens=torch.from_numpy(found.reshape(-1).astype(np.int32)),
            rows=torch.arange(many * rows, dtype=torch.int32),
            accepted=torch.from_numpy(accepted.astype(np.int32)),
            failed=torch.zeros(many, dtype=torch.int32),
        )

    def _drafter(self, questions: Questions, shape: tuple[int, ...]) -> np.ndarray:
        """float64 [B, K, V], what each drafted token was drawn from."""
        many, rows, size = shape
        one_hot = np.eye(size)[questions.drafted.numpy().reshape(many, rows)[:, 1:]]
        given = questions.draft_probs
        if given is None:
            return one_hot
        of_row = given.of_row.numpy().reshape(many, rows)[:, 1:]
        return np.where((of_row >= 0)[:, :, None], given.probs.numpy()[of_row], one_hot)

    def _number(self, index: int) -> np.ndarray:
        """Uniform [B], for the drafted token `index` of this step."""
        if self.fault == REUSED:
            return _uniform(self.seeds, self.positions + np.uint64(index), 0)
        return _uniform(self.seeds, self.positions, index + 1)

    def _drawn(self, weights: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        positions = self.positions + accepted.astype(np.uint64)
        number = _uniform(self.seeds, positions, 999)
        if self.fault == SAME_NOISE:
            refused = accepted < self.length
            number = np.where(refused, _uniform(self.seeds, self.positions, accepted.astype(np.uint64) + 1), number)
        sums = weights.cumsum(-1)
        return (sums <= number[:, None] * sums[:, -1:]).sum(-1)

    def _rejection(self, target: np.ndarray, drafter: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        many, self.length = tokens.shape
        accepted, standing = np.zeros(many, np.int64), np.ones(many, bool)
        for index in range(self.length):
            p, q = (values[self.every, index, tokens[:, index]] for values in (target, drafter))
            standing &= self._number(index) * q < p * (1.01 if self.fault == GENEROUS else 1.0)
            accepted += standing
        return accepted, self._left(target, drafter, accepted, np.ones(many))

    def _block(self, target: np.ndarray, drafter: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        many, self.length = tokens.shape
        accepted, joint = np.zeros(many, np.int64), np.ones(many)
        weight = np.ones(many)
        for index in range(self.length):
            p, q = (values[self.every, index, tokens[:, index]] for values in (target, drafter))
            joint = np.minimum(1.0, joint * p / q)
            h = joint
            if index + 1 < self.length:
                rest = np.maximum(joint[:, None] * target[:, index + 1] - drafter[:, index + 1], 0).sum(-1)
                h = rest / np.maximum(rest + 1 - joint, 1e-300)
            stands = self._number(index) < h * (1.01 if self.fault == GENEROUS else 1.0)
            accepted, weight = np.where(stands, index + 1, accepted), np.where(stands, joint, weight)
        return accepted, self._left(target, drafter, accepted, weight)

    def _left(self, target: np.ndarray, drafter: np.ndarray, accepted: np.ndarray, weight: np.ndarray) -> np.ndarray:
        own = target[self.every, accepted]
        if self.length == 0 or self.fault == WHOLE:
            return own
        said = drafter[self.every, np.minimum(accepted, self.length - 1)]
        weight = np.ones_like(weight) if self.fault == UNWEIGHTED else weight
        left = np.maximum(weight[:, None] * own - said, 0)
        whole = (accepted == self.length) | (left.sum(-1) < 1e-12)
        return np.where(whole[:, None], own, left)


def _uniform(seeds: np.ndarray, positions: np.ndarray, index: np.ndarray | int) -> np.ndarray:
    """A number in [0, 1) for each (seed, position, index): splitmix64 over their sum."""
    x = seeds * np.uint64(0x9E3779B97F4A7C15) + positions * np.uint64(0xD1B54A32D192ED03)
    x = x + np.asarray(index, np.uint64) * np.uint64(0x8CB92BA72F3D8DD7)
    for _ in range(2):
        x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        x = x ^ x >> np.uint64(31)
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53
