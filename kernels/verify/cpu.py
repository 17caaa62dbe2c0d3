"""What reference.py says, as compiled loops for a CPU: the same integers.

A call is one native function over all its sequences, on the calling thread. A row is copied, edited, filtered and
chosen from before the next one is looked at, and rows behind the end of a sequence's path are never read:

    strategies    which rows to look at, and what follows from them
    cpu_rows      the facts of a row that strategies ask for
    cpu_take      a row of logits, edited, in the call's memory
    cpu_filters   what top_k, top_p and min_p leave of it, and its masses
    cpu_choice    its arg-max with noise, and what a draft's distribution leaves
    cpu_logprobs  the model's own opinion
    cpu_lanes     the arithmetic
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import torch

from kernels.cpu_program import aligned
from kernels.verify.cpu_call import BLOCK, Call
from kernels.verify.cpu_logprobs import logprobs_of_all
from kernels.verify.cpu_rows import judge_all
from kernels.verify.questions import Answers, Questions

_local = threading.local()


def verify(logits: torch.Tensor, questions: Questions) -> Answers:
    """`logits` [R, V], float32 or bfloat16, are not changed."""
    call = _call(logits)
    rows, sequences = questions.drafted.shape[0], questions.rules.shape[0]
    assert rows <= logits.shape[0]
    # Numpy makes an array in a third of the time.
    answers = Answers(*(torch.from_numpy(np.empty(n, np.int32)) for n in (rows, rows, sequences, sequences)))
    call.sequences, call.rules = sequences, _address(questions.rules)
    call.begins, call.drafted = _address(questions.begins), _address(questions.drafted)
    call.parents = _address(questions.parents)
    call.tokens, call.rows = _address(answers.tokens), _address(answers.rows)
    call.accepted, call.failed = _address(answers.accepted), _address(answers.failed)
    _set_optional(call, questions)
    if not judge_all(ctypes.addressof(call)):
        raise IndexError("an id to edit is outside of the vocabulary")
    return answers


def logprobs(
    logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of `tokens[i]` in `rows[i]`, and of the `count` likeliest there (equal ones by id): values [N], ids [N, count],
    their values [N, count]. They are the model's own: of the logits as they came, before any parameter."""
    call, asked = _call(logits), rows.shape[0]
    count = min(count, logits.shape[1])
    rows, tokens = rows.to(torch.int32).contiguous(), tokens.to(torch.int32).contiguous()
    own, best = torch.empty(asked), torch.empty(asked, count)
    ids = torch.empty(asked, count, dtype=torch.int32)
    if asked:
        assert rows.shape == tokens.shape
        if not (_within(rows, logits.shape[0]) and _within(tokens, logits.shape[1])):
            raise IndexError("a row or a token outside of the logits")
        call.asked, call.asked_rows, call.asked_tokens = asked, _address(rows), _address(tokens)
        call.asked_count = count
        call.own_values, call.best_ids, call.best_values = own.data_ptr(), _address(ids), best.data_ptr()
        logprobs_of_all(ctypes.addressof(call))
    return own, ids, best


def _within(values: torch.Tensor, size: int) -> bool:
    array = values.numpy()
    return bool(array.min() >= 0) and bool(array.max() < size)


def _set_optional(call: Call, questions: Questions) -> None:
    edits, masks, draft_probs = questions.edits, questions.masks, questions.draft_probs
    call.seen_begins = call.bias_begins = call.mask_of_row = call.probs_of_row = 0
    if edits is not None:
        for name in ("seen_begins", "seen_ids", "seen_counts", "bias_begins", "bias_ids", "forbidden_begins",
                     "forbidden_ids"):  # fmt: skip
            setattr(call, name, _address(getattr(edits, name)))
        call.bias_values = _address(edits.bias_values, torch.float32)
    if masks is not None:
        call.mask_bits, call.mask_of_row = _address(masks.bits), _address(masks.of_row)
        call.mask_stride = masks.bits.shape[1] * 4
    if draft_probs is not None:
        call.probs, call.probs_of_row = _address(draft_probs.probs, torch.float32), _address(draft_probs.of_row)
        call.probs_stride = draft_probs.probs.shape[1] * 4


def _address(tensor: torch.Tensor, dtype: torch.dtype = torch.int32) -> int:
    assert tensor.dtype == dtype and tensor.is_contiguous()
    return tensor.data_ptr()


def _call(logits: torch.Tensor) -> Call:
    """The call of this thread, with memory for a row of this vocabulary."""
    vocabulary = logits.shape[1]
    assert logits.dtype in (torch.float32, torch.bfloat16) and logits.stride(1) == 1
    kept: dict[int, tuple[Call, list[np.ndarray]]] = _local.__dict__
    if vocabulary not in kept:
        # Another model's: there is one at a time.
        kept.clear()
        kept[vocabulary] = _memory(vocabulary)
    call, _ = kept[vocabulary]
    call.logits, call.stride = logits.data_ptr(), logits.stride(0) * logits.element_size()
    call.bfloat16 = logits.dtype == torch.bfloat16
    return call


def _memory(vocabulary: int) -> tuple[Call, list[np.ndarray]]:
    blocks = -(-vocabulary // BLOCK)
    maxima = aligned(-(-blocks // 16) * 16, np.float32)
    # Behind the last block, for who reads whole vectors.
    maxima[:] = -np.inf
    # Scores and fractions, then what lies near an edge: ids, values, weights.
    types = (np.float32, np.float32, np.int32, np.float32, np.int64)
    memory = [maxima, *(aligned(blocks * BLOCK, dtype) for dtype in types)]
    call = Call(vocabulary=vocabulary, blocks=blocks)
    call.maxima, call.copied, call.fractions, call.near_ids, call.near_values, call.near_weights = (
        array.ctypes.data for array in memory
    )
    return call, memory
