"""The one table of verification strategies, and which of them verifies a request. Knows no logits.

Choices of settings, the HTTP API's enum and docs/internals/verify.md are made from the table; how a strategy decides is
kernels/verify/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from services.api.messages import Speculation
    from services.api.sampling import Sampling

Number = TypeVar("Number", int, float)

AUTO = "auto"
# Below this a temperature counts as 0 (kernels/verify/README.md).
GREEDY_BELOW = 1e-5
# Bounds of what a request may set.
MOST_CANDIDATES = 1024
LONGEST_WINDOW = 64


@dataclass(frozen=True, slots=True)
class Strategy:
    """When a draft token is accepted."""

    name: str
    # Its constant in kernels/verify/questions.py.
    code: str
    help: str
    # Whether the text, or for sampled requests its distribution, is what it would be without drafts.
    lossless: bool
    # Whether the text is, token for token.
    exact: bool = False
    # Whether it accepts more of a draft that was sampled, given the distribution it was sampled from.
    reads_probs: bool = False
    # What other servers call it in their speculative config.
    aliases: tuple[str, ...] = ()


STRATEGIES: dict[str, Strategy] = {
    row.name: row
    for row in (
        Strategy(
            "greedy",
            "MATCH",
            "Accepts a draft token if it is the most probable one; at temperature 0 every strategy is this one",
            lossless=True,
            exact=True,
        ),
        Strategy(
            "target_match",
            "MATCH",
            "Accepts a draft token if it is the one that the target model itself samples at that position",
            lossless=True,
            exact=True,
            aliases=("strict",),
        ),
        Strategy(
            "rejection",
            "REJECTION",
            "Accepts a draft token with probability min(1, target probability / draft probability)",
            lossless=True,
            reads_probs=True,
            aliases=("rejection_sampler", "standard", "probabilistic"),
        ),
        Strategy(
            "block",
            "BLOCK",
            "Accepts a draft by its joint probability; on average no fewer tokens than `rejection`",
            lossless=True,
            reads_probs=True,
        ),
        Strategy(
            "typical",
            "TYPICAL",
            "Accepts a draft token if its probability is above a threshold that falls with the entropy (Medusa)",
            lossless=False,
            aliases=("typical_acceptance_sampler",),
        ),
        Strategy(
            "topp",
            "TOPP",
            "Accepts a draft token if it is among the most probable few of the top-p set (FastDeploy)",
            lossless=False,
        ),
    )
}

# `normal` is the one for users. `accept_all` accepts every draft, which changes the text and shows the most that
# speculation could bring; `reject_all` accepts none, which shows what it costs.
ACCEPT_POLICIES = ("normal", "accept_all", "reject_all")


@dataclass(frozen=True, slots=True)
class Verification:
    """How drafts are verified: of a server (`strategy` may be auto), or of a sequence."""

    strategy: str = AUTO
    accept_policy: str = "normal"
    # topp: size of the set in tokens; and the second most probable token is accepted, too, if this number of draft
    # tokens behind it are the most probable ones.
    max_candidate_len: int = 5
    verify_window: int = 2
    # typical: a probability that always suffices, and the factor of exp(-entropy).
    typical_epsilon: float = 0.09
    typical_delta: float = 0.3

    @property
    def lossless(self) -> bool:
        """Whether the text, or its distribution, is what it would be without drafts."""
        if self.accept_policy != "normal":
            return self.accept_policy == "reject_all"
        return self.strategy == AUTO or STRATEGIES[self.strategy].lossless

    @property
    def exact(self) -> bool:
        """Whether the text is what it would be without drafts, token for token."""
        if self.accept_policy != "normal":
            return self.accept_policy == "reject_all"
        return self.strategy == AUTO or STRATEGIES[self.strategy].exact


def verification_for(asked: Speculation, server: Verification, sampling: Sampling) -> Verification:
    """What the request asks for, else the server's setting, else what fits the temperature.

    At temperature 0 every strategy is greedy. `greedy` has no meaning for a sampled request: it is verified by
    target_match, which keeps its text what it would be without drafts, and its statistics say so.
    """
    strategy = asked.verify_strategy or AUTO
    if strategy == AUTO:
        strategy = server.strategy
    if sampling.temperature < GREEDY_BELOW:
        strategy = "greedy"
    elif strategy in (AUTO, "greedy"):
        strategy = "target_match"
    return Verification(
        strategy=strategy,
        accept_policy=asked.accept_policy or server.accept_policy,
        max_candidate_len=_either(asked.max_candidate_len, server.max_candidate_len),
        verify_window=_either(asked.verify_window, server.verify_window),
        typical_epsilon=_either(asked.typical_epsilon, server.typical_epsilon),
        typical_delta=_either(asked.typical_delta, server.typical_delta),
    )


def _either(asked: Number, server: Number) -> Number:
    return server if asked < 0 else asked


def strategies_for_requests(server: Verification, allow_lossy: bool) -> list[str]:
    """What a request may name: all lossless ones, the server's own, and the others where they are allowed."""
    return [name for name, each in STRATEGIES.items() if each.lossless or allow_lossy or name == server.strategy]


def policies_for_requests(server: Verification, allow_lossy: bool) -> list[str]:
    return [name for name in ACCEPT_POLICIES if name != "accept_all" or allow_lossy or name == server.accept_policy]


def problem(asked: Speculation, server: Verification, allow_lossy: bool) -> str:
    """Why a request can't be verified as it asks, or ""."""
    strategies = [AUTO, *strategies_for_requests(server, allow_lossy)]
    if asked.verify_strategy and asked.verify_strategy not in strategies:
        return f"verify strategy {asked.verify_strategy[:40]!r} is not served here; served are {', '.join(strategies)}"
    policies = policies_for_requests(server, allow_lossy)
    if asked.accept_policy and asked.accept_policy not in policies:
        return f"accept policy {asked.accept_policy[:40]!r} is not served here; served are {', '.join(policies)}"
    # Written so that NaN fails, too.
    if not -1 <= asked.max_candidate_len <= MOST_CANDIDATES or asked.max_candidate_len == 0:
        return f"max_candidate_len lies outside 1..{MOST_CANDIDATES}"
    if not -1 <= asked.verify_window <= LONGEST_WINDOW:
        return f"verify_window lies outside 0..{LONGEST_WINDOW}"
    for name, value in (("typical_epsilon", asked.typical_epsilon), ("typical_delta", asked.typical_delta)):
        if not (value == -1.0 or 0.0 < value <= 1.0):
            return f"{name} lies outside 0..1"
    return ""
