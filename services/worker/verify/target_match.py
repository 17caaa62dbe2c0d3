"""A drafted token stands while it is the one the target itself samples at that position.

What is emitted is always the target's own sample, so the text is what it would be without drafts, and the
request's seed is honoured. The default for sampled requests.
"""

from __future__ import annotations

from services.worker.verify.strategy import Strategy

TARGET_MATCH = Strategy("target_match", "MATCH", lossless=True, exact=True)
