"""What reference.py says, as compiled loops for a CPU: the same integers.

A call is one native function over all its sequences, on the calling thread. A row is copied, edited, filtered and
chosen from before the next one is looked at, and rows behind the end of a sequence's path are never read:

    cpu_judges    the strategies: which rows to look at
    cpu_take      a row of logits, edited, in the call's memory
    cpu_filters   what top_k, top_p and min_p leave of it, and its masses
    cpu_choice    its arg-max with noise, and what a draft's distribution leaves
    cpu_logprobs  the model's own opinion
    cpu_lanes     the arithmetic
"""

from __future__ import annotations

import threading

import numpy as np
import torch

from kernels.cpu_program import aligned
from kernels.verify import cpu_words as words
from kernels.verify.cpu_check import first_wrong
from kernels.verify.cpu_judges import judge_all
from kernels.verify.cpu_logprobs import logprobs_of_all
from kernels.verify.questions import Answers, Questions

_local = threading.local()


def verify(logits: torch.Tensor, questions: Questions) -> Answers:
    """`logits` [R, V], float32 or bfloat16, are not changed."""
    call, address = _call(logits)
    drafted, rules = questions.drafted, questions.rules
    rows, sequences = drafted.shape[0], rules.shape[0]
    assert rows <= logits.shape[0]
    # Numpy makes an array in a third of the time.
    answers = Answers(*(torch.from_numpy(np.empty(n, np.int32)) for n in (rows, rows, sequences, sequences)))
    call[words.SEQUENCES : words.PARENTS + 1] = (
        sequences,
        *_addresses(torch.int32, rules, questions.begins, drafted, questions.parents),
    )
    _set_optional(call, questions)
    call[words.TOKENS : words.FAILED + 1] = _addresses(
        torch.int32, answers.tokens, answers.rows, answers.accepted, answers.failed
    )
    if questions.edits is not None and first_wrong(address) >= 0:
        raise IndexError("an id to edit is outside of the vocabulary")
    judge_all(address)
    return answers


def logprobs(
    logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of `tokens[i]` in `rows[i]`, and of the `count` likeliest there (equal ones by id): values [N], ids [N, count],
    their values [N, count]. They are the model's own: of the logits as they came, before any parameter."""
    (call, address), asked = _call(logits), rows.shape[0]
    count = min(count, logits.shape[1])
    rows, tokens = rows.to(torch.int32).contiguous(), tokens.to(torch.int32).contiguous()
    own, best = torch.empty(asked), torch.empty(asked, count)
    ids = torch.empty(asked, count, dtype=torch.int32)
    if asked:
        assert rows.shape == tokens.shape
        if not (_within(rows, logits.shape[0]) and _within(tokens, logits.shape[1])):
            raise IndexError("a row or a token outside of the logits")
        found = (rows.data_ptr(), tokens.data_ptr(), count, own.data_ptr(), ids.data_ptr(), best.data_ptr())
        call[words.ASKED : words.BEST_VALUES + 1] = (asked, *found)
        logprobs_of_all(address)
    return own, ids, best


def _within(values: torch.Tensor, size: int) -> bool:
    array = values.numpy()
    return bool(array.min() >= 0) and bool(array.max() < size)


def _set_optional(call: np.ndarray, questions: Questions) -> None:
    call[words.SEEN_BEGINS : words.TOKENS] = 0
    edits, masks, draft_probs = questions.edits, questions.masks, questions.draft_probs
    if edits is not None:
        call[words.SEEN_BEGINS : words.FORBIDDEN_IDS + 1] = [
            *_addresses(torch.int32, edits.seen_begins, edits.seen_ids, edits.seen_counts),
            *_addresses(torch.int32, edits.bias_begins, edits.bias_ids),
            *_addresses(torch.float32, edits.bias_values),
            *_addresses(torch.int32, edits.forbidden_begins, edits.forbidden_ids),
        ]
    if masks is not None:
        bits, of_row = _addresses(torch.int32, masks.bits, masks.of_row)
        call[words.MASK_BITS : words.MASK_OF_ROW + 1] = bits, masks.bits.shape[1] * 4, of_row
    if draft_probs is not None:
        (probs,) = _addresses(torch.float32, draft_probs.probs)
        (of_row,) = _addresses(torch.int32, draft_probs.of_row)
        call[words.PROBS : words.PROBS_OF_ROW + 1] = probs, draft_probs.probs.shape[1] * 4, of_row


def _addresses(dtype: torch.dtype, *tensors: torch.Tensor) -> list[int]:
    for tensor in tensors:
        assert tensor.dtype == dtype and tensor.is_contiguous()
    return [tensor.data_ptr() for tensor in tensors]


def _call(logits: torch.Tensor) -> tuple[np.ndarray, int]:
    """The words of a call of this thread and their address, with memory for a row of this vocabulary."""
    vocabulary = logits.shape[1]
    assert logits.dtype in (torch.float32, torch.bfloat16) and logits.stride(1) == 1
    kept: dict[int, tuple[np.ndarray, int, list[np.ndarray]]] = _local.__dict__
    if vocabulary not in kept:
        # Another model's: there is one at a time.
        kept.clear()
        kept[vocabulary] = _memory(vocabulary)
    call, address, _ = kept[vocabulary]
    call[words.LOGITS : words.BFLOAT16 + 1] = (
        logits.data_ptr(),
        logits.stride(0) * logits.element_size(),
        logits.dtype == torch.bfloat16,
    )
    return call, address


def _memory(vocabulary: int) -> tuple[np.ndarray, int, list[np.ndarray]]:
    blocks = -(-vocabulary // words.BLOCK)
    ids = blocks * words.BLOCK
    maxima = aligned(-(-blocks // 16) * 16, np.float32)
    # Behind the last block, for who reads whole vectors.
    maxima[:] = -np.inf
    # Scores and fractions, then what lies near an edge: ids, values, weights.
    types = (np.float32, np.float32, np.int32, np.float32, np.int64)
    scores, fractions, *near = [aligned(ids, dtype) for dtype in types]
    call = aligned(words.CALL_WORDS, np.int64)
    memory = [scores, maxima, fractions, *near]
    call[words.VOCABULARY], call[words.BLOCKS] = vocabulary, blocks
    call[words.COPY : words.NEAR_WEIGHTS + 1] = [array.ctypes.data for array in memory]
    return call, call.ctypes.data, memory
