"""Log-probabilities of a prompt's tokens, from the logits of its rows.

    wanted logits   a0 a1 a2 | b0 b1 b2 b3 | c0 c1      a0 a1, b0 b1 b2: rows to be scored; the others are verified
                    ─────        ────────
A few rows at a time are compared with the whole vocabulary; what is kept of a row is its own token's value and rank,
and the most probable ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from services.api.prompt_columns import PromptColumns
from services.worker.running.verifier import Verifier
from services.worker.running.work import SequenceWork

ROWS_AT_ONCE = 32


def score(
    verifier: Verifier, items: Sequence[SequenceWork], logits: torch.Tensor, counts: Mapping[int, int]
) -> tuple[torch.Tensor, dict[int, PromptColumns]]:
    """The logits of the rows to be verified, and by sequence the log-probabilities of the tokens to be scored; a
    sequence whose logits are not finite has none. `counts`: by sequence, how many of the most probable ids are
    wanted."""
    found: dict[int, PromptColumns] = {}
    verified: list[int] = []
    row = 0
    for item in items:
        if item.scored:
            columns = _columns(verifier, logits, row, item, counts[item.sequence_id])
            if columns is not None:
                found[item.sequence_id] = columns
        row += len(item.scored)
        own = len(item.draft.tokens) + 1 if item.chooses else 0
        verified += range(row, row + own)
        row += own
    assert row == logits.shape[0], "every row with logits is scored or verified"
    return logits[torch.tensor(verified, dtype=torch.int64, device=logits.device)], found


def _columns(
    verifier: Verifier, logits: torch.Tensor, first: int, item: SequenceWork, count: int
) -> PromptColumns | None:
    count = min(count, logits.shape[1])
    parts: list[tuple[torch.Tensor, ...]] = []
    for begin in range(0, len(item.scored), ROWS_AT_ONCE):
        tokens = torch.tensor(item.scored[begin : begin + ROWS_AT_ONCE], dtype=torch.int32)
        rows = torch.arange(first + begin, first + begin + len(tokens), dtype=torch.int32)
        own, ids, values = verifier.logprobs(logits, rows, tokens, count)
        parts.append((own, _ranks(logits[first + begin : first + begin + len(tokens)], tokens), ids, values))
    own, ranks, ids, values = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    if bool(own.isnan().any()):
        return None
    return PromptColumns(
        begin=item.start + item.logits_from + 1,
        count=count,
        logprobs=own.to(torch.float32).numpy().tobytes(),
        ranks=ranks.to(torch.int32).numpy().tobytes(),
        top_ids=ids.to(torch.int32).numpy().tobytes(),
        top_logprobs=values.to(torch.float32).numpy().tobytes(),
    )


def _ranks(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """How many ids are at least as probable as the token, itself included, as vLLM counts."""
    own = logits.gather(1, tokens.to(logits.device, torch.int64)[:, None])
    return (logits >= own).sum(1)
