"""The verification strategies, by name."""

from __future__ import annotations

from services.target.verify.greedy import Greedy
from services.target.verify.target_match import TargetMatch
from services.target.verify.verifier import Verifier

STRATEGIES: dict[str, Verifier] = {
    "greedy": Greedy(),
    "target_match": TargetMatch(),
}
