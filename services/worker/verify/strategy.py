"""What a verification strategy declares of itself. How it judges is kernels/verify/README.md. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Strategy:
    name: str
    # Its code in kernels/verify/questions.py.
    code: str
    # Whether the text, or for sampled requests its distribution, is what it would be without drafts.
    lossless: bool
    # Whether the text is, token for token.
    exact: bool = False
