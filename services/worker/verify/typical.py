"""A drafted token stands while its probability is over a threshold that falls with the entropy of the target's
opinion (Medusa's rule). Changes the distribution."""

from __future__ import annotations

from services.worker.verify.strategy import Strategy

TYPICAL = Strategy("typical", "TYPICAL", lossless=False)
