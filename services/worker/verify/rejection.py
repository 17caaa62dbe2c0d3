"""A drafted token stands with probability min(1, target_prob / draft_prob); the first that doesn't is replaced by
a sample of what the target has left. Pays for drafters that draw from a distribution of their own.

The distribution is that of the target alone; the text for a seed depends on what was drafted.
"""

from __future__ import annotations

from services.worker.verify.strategy import Strategy

REJECTION = Strategy("rejection", "REJECTION", lossless=True)
