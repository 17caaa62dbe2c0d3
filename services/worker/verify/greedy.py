"""A drafted token stands while it is the likeliest one. For requests at temperature 0."""

from __future__ import annotations

from services.worker.verify.strategy import Strategy

GREEDY = Strategy("greedy", "MATCH", lossless=True, exact=True)
