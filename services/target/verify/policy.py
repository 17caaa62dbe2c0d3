"""Which strategy verifies a request, and whether what it says counts. Knows no logits.

accept_policy `normal` is the only one that serves users: `accept_all` takes every draft as it comes, which
changes the text and shows the most that speculation could bring; `reject_all` takes none, which shows what
it costs.
"""

from __future__ import annotations

from services.messages import Sampling
from services.target.verify.registry import STRATEGIES

ACCEPT = {"normal": "match", "accept_all": "all", "reject_all": "none"}
# Colder than this is greedy (kernels/sample/README.md).
GREEDY_BELOW = 1e-5


def strategy_for(asked: str, default: str, sampling: Sampling) -> str:
    """The request's strategy, else the server's, else by temperature.

    `greedy` has no meaning for a sampled request: it is verified by target_match, which keeps its text what
    it would be without drafts, and says so in its statistics.
    """
    name = asked or ("" if default == "auto" else default)
    if name == "greedy" or not name:
        return "greedy" if sampling.temperature < GREEDY_BELOW else "target_match"
    return name


def is_lossless(strategy: str, accept_policy: str) -> bool:
    """Whether the text is what it would be without speculation."""
    return STRATEGIES[strategy].lossless and accept_policy != "accept_all"
