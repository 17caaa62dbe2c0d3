"""Prompt lookup: what followed the last few tokens of the text earlier in its prompt or output. The longest n-gram is
tried first; of several occurrences the last one counts, or the most frequent continuation (`ngram_prefers`). Texts of
other requests are not used."""

from __future__ import annotations

from typing import ClassVar

from services.proposer.fast import NGRAM
from services.proposer.text_drafter import TextDrafter


class NgramDrafter(TextDrafter):
    name: ClassVar[str] = "ngram"
    sources: ClassVar[int] = NGRAM
