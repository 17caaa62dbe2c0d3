"""What the machine, the model and the settings allow a target. Never changes."""

from __future__ import annotations

from dataclasses import dataclass

from services.worker.verify.policy import Verification

NAIVE = "naive"
# Other servers' word for it.
OFF = "off"
AUTO = "auto"
PREDICTION = "prediction"
# Drafts that are chosen by what they bring may be long; others are as long as this wherever they can be.
LONGEST_AUTO = 48
LONGEST_FIXED = 8
AS_FITS = Verification()


@dataclass(frozen=True, slots=True)
class Limits:
    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    page_tokens: int
    pages: int
    # For branches of a step's drafts, besides the others; 0: drafts are chains.
    branch_pages: int = 0
    max_sequences: int = 64
    max_step_tokens: int = 512
    max_waiting: int = 256
    method: str = NAIVE
    methods: tuple[str, ...] = (NAIVE, "ngram", "suffix", PREDICTION, "hybrid", AUTO)
    # -1: by method.
    num_speculative_tokens: int = -1
    verification: Verification = AS_FITS
    # Whether drafts may be trees, in requests that don't say.
    trees: bool = False
    # Whether requests may ask for what changes their text, or its distribution.
    allow_lossy: bool = False
    prefix_cache: bool = True
    # Seconds of waiting that weigh as much as one level of priority.
    priority_seconds: float = 5.0

    @property
    def max_length(self) -> int:
        """What one sequence alone can have in pages bounds a text as the model does."""
        return min(self.max_context, self.pages * self.page_tokens)

    @property
    def most_speculative_tokens(self) -> int:
        """What a request may ask for."""
        return LONGEST_AUTO if self.num_speculative_tokens < 0 else self.num_speculative_tokens

    def draft_length(self, method: str, asked: int = -1) -> int:
        """The longest draft of a request with this method that asks for `asked` tokens (-1: for nothing)."""
        if asked >= 0:
            return min(asked, self.most_speculative_tokens)
        if self.num_speculative_tokens >= 0:
            return self.num_speculative_tokens
        return LONGEST_AUTO if method == AUTO else LONGEST_FIXED

    @property
    def max_running(self) -> int:
        """One row for each, whatever comes."""
        return min(self.max_sequences, self.max_step_tokens)
