"""What those who start and watch roles know of them."""

from __future__ import annotations

from services.api.nodes import WORKER_NODE

# Drained from the streamer inwards: running streams need the other roles.
STAGE = {"streamer": 2, "worker": 1, "tokenizer": 0, "proposer": 0}
# What has to start before it.
AFTER = {"streamer": ("tokenizer",)}
# Roles that take a new epoch in place when they are fenced.
RENEWED_IN_PLACE = frozenset({"streamer", WORKER_NODE})
