"""The interface of verification, and its three implementations: plain torch, compiled loops, Triton. All return
the same integers (kernels/verify/README.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import torch

    from kernels.verify.questions import Answers, Questions


class Verifier(Protocol):
    def verify(self, logits: torch.Tensor, questions: Questions) -> Answers:
        """Verify one batch: all strategies, chains and trees. `logits` [R, V] are unchanged afterwards. All randomness
        is a function of seeds and positions. Waits for the device, if there is one."""
        ...

    def logprobs(
        self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The model's own log-probabilities of `tokens` in `rows`; and the `count` most probable ids, with theirs."""
        ...


class UnderWay(Protocol):
    @property
    def there(self) -> torch.Tensor:
        """Answers.tokens on the device. The next questions overwrite them."""
        ...

    def wait(self) -> Answers: ...


class VerifierElsewhere(Verifier, Protocol):
    """On a device that computes while the host goes on."""

    def start(self, logits: torch.Tensor, questions: Questions) -> UnderWay:
        """`verify`, without waiting for the device."""
        ...


def verifier(executor: str) -> Verifier:
    """The verifier for the device on which this executor (models/choose.py) leaves its logits."""
    if executor == "triton":
        from kernels.verify.on_device import OnDevice

        return OnDevice()
    module = {"plain": "reference", "compiled": "cpu"}[executor]
    return cast(Verifier, importlib.import_module(f"kernels.verify.{module}"))
