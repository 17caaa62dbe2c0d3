"""A drafted token stands while it is one of the likeliest few that top_p leaves (FastDeploy's rule). Leans towards
the proposer: changes the distribution."""

from __future__ import annotations

from services.worker.verify.strategy import Strategy

TOPP = Strategy("topp", "TOPP", lossless=False)
