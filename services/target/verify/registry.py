"""The verification strategies, by name."""

from __future__ import annotations

from services.target.verify.block import BLOCK
from services.target.verify.greedy import GREEDY
from services.target.verify.rejection import REJECTION
from services.target.verify.strategy import Strategy
from services.target.verify.target_match import TARGET_MATCH
from services.target.verify.topp import TOPP
from services.target.verify.typical import TYPICAL

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy for strategy in (GREEDY, TARGET_MATCH, REJECTION, BLOCK, TYPICAL, TOPP)
}
