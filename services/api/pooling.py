"""How the hidden states of a prompt's tokens become its embedding."""

from __future__ import annotations

LAST = "last"  # that of the last token, which has seen all others
MEAN = "mean"  # the mean over all tokens
POOLINGS = (LAST, MEAN)
