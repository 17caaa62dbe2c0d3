"""Rejection of the whole draft at once: as much stands as its joint probability allows, never less on average than
token by token. The distribution is that of the target alone."""

from __future__ import annotations

from services.worker.verify.strategy import Strategy

BLOCK = Strategy("block", "BLOCK", lossless=True)
