"""The limits of a worker by machine, model and settings. They never change."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from services.api.methods import AUTO, METHODS, NAIVE
from services.api.strategies import Verification
from services.worker.running.runner import Facts

# Default draft length of `auto`, which verifies only the part that pays; other methods verify all of it.
LONGEST_AUTO = 48
AS_FITS = Verification()
# Most bytes that logits of prompt tokens take in a step (float32), for requests that want their log-probabilities.
PROMPT_LOGITS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    page_tokens: int
    pages: int
    # Additional pages for the branches of a step's drafts; 0: drafts are chains.
    branch_pages: int = 0
    max_sequences: int = 64
    max_step_tokens: int = 512
    # Whether twice the rows take twice the time, as on a CPU; on a GPU hundreds take little longer than a few.
    rows_cost: bool = False
    # Seconds that a step with prompts may take, where rows cost time; 0.0: any.
    longest_step: float = 0.0
    max_waiting: int = 256
    method: str = NAIVE
    methods: tuple[str, ...] = field(default_factory=lambda: tuple(METHODS))
    # The method of the head or draft model that is loaded, which `auto` uses, too; "": none.
    head: str = ""
    # The most tokens it drafts at once; 0: by method.
    model_steps: int = 0
    # -1: by method.
    num_speculative_tokens: int = -1
    verification: Verification = AS_FITS
    # Whether drafts may be trees, for requests that don't set it.
    trees: bool = False
    # Whether requests may choose strategies that change the text or its distribution.
    allow_lossy: bool = False
    prefix_cache: bool = True
    # Of a model with states: the first place behind those of running sequences, and how many follow.
    first_snapshot: int = 0
    snapshots: int = 0
    # With it pages are named; workers that know the same one have the same names. b"": one of this process alone.
    secret: bytes = field(default=b"", repr=False)
    # Seconds of waiting that weigh as much as one level of priority.
    priority_seconds: float = 5.0

    @property
    def max_length(self) -> int:
        """Longest text: bounded by the model, and by the pages one sequence can have."""
        return min(self.max_context, self.pages * self.page_tokens)

    @property
    def scored_rows(self) -> int:
        """Most rows of a step that are scored, beyond the one that each sequence has."""
        return PROMPT_LOGITS_BYTES // (4 * self.vocab_size)

    @property
    def most_speculative_tokens(self) -> int:
        """The longest draft a request may ask for."""
        return LONGEST_AUTO if self.num_speculative_tokens < 0 else self.num_speculative_tokens

    def draft_length(self, method: str, asked: int = -1) -> int:
        """The longest draft of a request with this method that asks for `asked` tokens (-1: for nothing)."""
        if asked >= 0:
            return min(asked, self.most_speculative_tokens)
        if self.num_speculative_tokens >= 0:
            return self.num_speculative_tokens
        return LONGEST_AUTO if method == AUTO else METHODS[method].length

    @property
    def max_running(self) -> int:
        """Each running sequence needs a row in every step."""
        return min(self.max_sequences, self.max_step_tokens)


def limits_of(facts: Facts, **more: Any) -> Limits:
    """Of a loaded model. `more` are other fields of Limits, or values in place of the model's. Where sequences have a
    state, the pages of a text's beginning are of no use unless the state there is kept, too."""
    fixed: dict[str, Any] = {
        "vocab_size": facts.vocab_size,
        "max_context": facts.max_context,
        "eos_token_ids": tuple(facts.eos_token_ids),
        "page_tokens": facts.page_tokens,
        "pages": facts.pages,
        "branch_pages": facts.branch_pages,
    }
    limits = Limits(**fixed | more)
    if not facts.states:
        return limits
    return replace(
        limits,
        prefix_cache=limits.prefix_cache and facts.snapshots > 0,
        max_sequences=min(limits.max_sequences, facts.states),
        first_snapshot=facts.states,
        snapshots=facts.snapshots,
    )
