"""The verification strategies, by name."""

from __future__ import annotations

from services.worker.verify.block import BLOCK
from services.worker.verify.greedy import GREEDY
from services.worker.verify.rejection import REJECTION
from services.worker.verify.strategy import Strategy
from services.worker.verify.target_match import TARGET_MATCH
from services.worker.verify.topp import TOPP
from services.worker.verify.typical import TYPICAL

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy for strategy in (GREEDY, TARGET_MATCH, REJECTION, BLOCK, TYPICAL, TOPP)
}
