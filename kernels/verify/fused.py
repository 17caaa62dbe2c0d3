"""verify and logprobs in Triton: the same integers as reference.py, from logits that are read once or a few times.

    prepare   which sequence a row belongs to, how deep it stands
    edit      few scores are edited: they move to a list, and leave holes
    scan      every row once: the highest; and what is chosen, where nothing is filtered
    collect, narrow   only for top_k and top_p: steps of the search for the last id inside
    settle    the highest of a row; the rest of that search
    measure   rows that are filtered or judged again: what is chosen, or masses, or ranks
    joint, rest   only for joint acceptance against distributions
    walk      which drafted tokens stand
    pick, finish   what the last row chooses, where that depends on what was refused
    put back  the logits as they were

No launch looks at data on the host, and all memory is a `Workspace`, so a step can be captured in a graph and
replayed. Rows behind begins[-1] are nobody's, and a sequence may have none: a graph is made for the largest batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.ahead_of_time import Compilation, signature_of
from kernels.device import aligned
from kernels.launch import ceil_div, launch, multiprocessors, power_of_two
from kernels.verify.fused_edits import edit_kernel, put_back_kernel
from kernels.verify.fused_logprobs import logprobs_kernel
from kernels.verify.fused_numbers import ROW
from kernels.verify.fused_rows import (
    CAPACITY,
    MOST_SPLITS,
    PART,
    PEAKS,
    TALLY,
    collect_kernel,
    measure_kernel,
    narrow_kernel,
    prepare_kernel,
    scan_kernel,
    settle_kernel,
)
from kernels.verify.fused_verdicts import (
    CHOICE,
    PICK,
    finish_kernel,
    joint_kernel,
    pick_kernel,
    rest_kernel,
    walk_kernel,
)
from kernels.verify.questions import LONGEST_DRAFT, Answers, Questions

LARGEST_VOCABULARY = 1 << 20
# Ids that a program reads at once; and those that search for the last id inside of top_k or top_p.
BLOCK = 1024
SCAN: dict[str, int] = {"BLOCK": 1024, "warps": 4}
COLLECT: dict[str, int] = {"BLOCK": 1024, "warps": 4}
NARROW: dict[str, int] = {"BLOCK": 128, "warps": 4}
SETTLE: dict[str, int] = {"BLOCK": 256, "warps": 8}
# Steps of a search that all programs of a row take, one launch each, before one goes on alone.
STEPS = 5
# The largest top_k whose last id is sure to be collected in the first step. But where thousands are equal there is no
# room for them, and one program goes on alone.
SMALL_K = 512
# Programs for each multiprocessor, before a row is read by one alone.
PROGRAMS = 8


@dataclass(frozen=True, slots=True)
class Launches:
    """Which launches a batch may need. Who made the rules knows; a launch that isn't needed only costs its time."""

    penalties: bool = True  # a rule penalises
    sampled: bool = True  # a rule isn't greedy
    filters: bool = True  # top_k, top_p or min_p
    judged: bool = True  # a strategy other than MATCH, or an accept policy other than NORMAL
    long: bool = True  # a rule's last id inside may come after those that are collected first

    @property
    def searched(self) -> bool:
        return self.sampled and self.filters

    @property
    def measured(self) -> bool:
        return self.sampled and (self.filters or self.judged)

    @property
    def picked(self) -> bool:
        return self.sampled and self.judged


EVERYTHING = Launches()


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: int
    sequences: int
    entries: int = 0  # edited scores of all rows
    dtype: torch.dtype = torch.bfloat16  # of the logits
    device: torch.device = field(default_factory=lambda: torch.device("cuda"))

    @property
    def splits(self) -> int:
        return splits_of(self.rows, self.device)

    @property
    def pick_splits(self) -> int:
        return splits_of(self.sequences, self.device)


def splits_of(rows: int, device: torch.device) -> int:
    """Among how many programs a row is divided. No number depends on it."""
    return min(MOST_SPLITS.value, power_of_two(ceil_div(PROGRAMS * multiprocessors(device), max(rows, 1))))


def group_of(vocabulary: int) -> int:
    """Of how many ids the highest is kept."""
    return power_of_two(ceil_div(vocabulary, PEAKS.value))


def pieces_of(rows: int, sequences: int) -> list[int]:
    """Words of answers: tokens, rows, accepted, failed."""
    return [aligned(size) for size in (rows, rows, sequences, sequences)]


class Workspace:
    """What the kernels hand to each other, for batches of at most these sizes. One batch at a time."""

    def __init__(self, sizes: Sizes, told: torch.Tensor | None = None) -> None:
        """`told`: where answers go, at least as much as the pieces."""
        self.sizes = sizes

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=sizes.device)

        rows, sequences, entries = sizes.rows, sizes.sequences, max(sizes.entries, 1)
        self.table = empty(rows, ROW.value)
        self.parts = empty(rows, sizes.splits, PART.value)
        self.peaks = empty(rows, PEAKS.value, dtype=torch.int16)
        self.places = empty(rows, CAPACITY.value, dtype=torch.int64)
        self.tallies = empty(STEPS - 1, rows, sizes.splits, TALLY.value, dtype=torch.int64)
        self.sums = empty(rows, sizes.splits, 2, dtype=torch.int64)
        self.joints = empty(rows, dtype=torch.float64)
        self.choices = empty(sequences, CHOICE.value)
        self.picks = empty(sequences, sizes.pick_splits, PICK.value)
        self.entry_ids = empty(entries)
        self.entry_values = empty(entries, dtype=torch.float32)
        self.entry_raw = empty(entries, dtype=sizes.dtype)
        # The answers in one piece: they go to the host with one copy.
        self.pieces = pieces_of(rows, sequences)
        self.told = empty(sum(self.pieces)) if told is None else told[: sum(self.pieces)]
        self.answers = Answers(*self.told.split(self.pieces))

    @property
    def memory(self) -> tuple[torch.Tensor, ...]:
        """All of it, but for the answers."""
        return (
            self.table, self.parts, self.peaks, self.places, self.tallies, self.sums, self.joints, self.choices,
            self.picks, self.entry_ids, self.entry_values, self.entry_raw,
        )  # fmt: skip

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.memory)


def workspace_for(logits: torch.Tensor, questions: Questions) -> Workspace:
    """One that is large enough for these questions, whatever their rules: more than a server needs."""
    rows, sequences = questions.drafted.shape[0], questions.rules.shape[0]
    longest = min(rows, LONGEST_DRAFT + 1)
    entries = rows * longest
    if questions.edits is not None:
        edits = questions.edits
        entries += longest * (edits.seen_ids.shape[0] + edits.bias_ids.shape[0]) + edits.forbidden_ids.shape[0]
    return Workspace(Sizes(rows, sequences, entries, logits.dtype, logits.device))


def verify(
    logits: torch.Tensor, questions: Questions, workspace: Workspace | None = None, needs: Launches = EVERYTHING
) -> Answers:
    """`logits` [R, V], float32 or bfloat16, are as they were afterwards, but not meanwhile. The answers lie in the
    workspace. A sequence whose edited scores don't fit into it is refused."""
    rows, vocabulary = logits.shape
    sequences = questions.rules.shape[0]
    assert logits.stride(1) == 1 and vocabulary < LARGEST_VOCABULARY
    assert questions.drafted.shape[0] <= rows
    work = workspace or workspace_for(logits, questions)
    sizes = work.sizes
    rows = questions.drafted.shape[0]
    assert rows <= sizes.rows and sequences <= sizes.sequences and logits.dtype == sizes.dtype
    batch = _Batch(logits, questions, work, needs, rows, sequences)
    batch.prepare()
    batch.look()
    batch.judge()
    answers = work.answers
    return Answers(answers.tokens[:rows], answers.rows[:rows], answers.accepted[:sequences], answers.failed[:sequences])


@dataclass(slots=True)
class _Batch:
    logits: torch.Tensor
    questions: Questions
    work: Workspace
    needs: Launches
    rows: int
    sequences: int

    @property
    def edited(self) -> bool:
        return self.needs.penalties or self.questions.edits is not None

    def prepare(self) -> None:
        q, work = self.questions, self.work
        _start(prepare_kernel, (self.sequences + 1,), q.begins, q.parents, work.table, self.sequences, self.rows)
        if self.edited:
            edits = q.edits
            nothing = q.begins
            lists = (
                (
                    edits.seen_begins, edits.seen_ids, edits.seen_counts, edits.bias_begins, edits.bias_ids,
                    edits.bias_values, edits.forbidden_begins, edits.forbidden_ids,
                )
                if edits
                else (nothing,) * 8
            )  # fmt: skip
            _start(
                edit_kernel, (self.rows,), self.logits, q.rules, q.begins, q.drafted, q.parents, work.table, *lists,
                *self._entries, work.entry_raw, work.sizes.entries, HAS_LISTS=edits is not None,
                **self._row,
            )  # fmt: skip

    def look(self) -> None:
        q, work, splits = self.questions, self.work, self.work.sizes.splits
        row = (self.logits, q.rules, work.table, *self._entries, *self._masks, work.parts)
        common, group = self._row | self._has, {"GROUP": group_of(self.logits.shape[1])}
        _start(
            scan_kernel, self._grid, *row, work.peaks, splits, **common, **group, **_scan(self.logits.dtype),
            SAMPLED=self.needs.sampled,
        )  # fmt: skip
        steps = (STEPS if self.needs.long else 1) if self.needs.searched else 0
        if steps:
            _start(
                collect_kernel, self._grid, *row, work.peaks, work.places, work.sums, splits,
                **common, **group, **COLLECT,
            )  # fmt: skip
        search = (work.places, work.sums, work.tallies, splits)
        for taken in range(1, steps):
            _start(narrow_kernel, self._grid, *row, *search, taken, **common, **NARROW)
        _start(settle_kernel, (self.rows,), *row, *search, steps, **common, **SETTLE)
        if self.needs.measured:
            _start(
                measure_kernel, self._grid, self.logits, q.rules, q.begins, q.drafted, q.parents, work.table,
                *self._entries, *self._masks, work.parts, work.sums, work.sizes.splits,
                **self._row, BLOCK=BLOCK, **self._has, TOGETHER=_together(self.logits.dtype),
            )  # fmt: skip

    def judge(self) -> None:
        q, work, answers = self.questions, self.work, self.work.answers
        row = (work.table, *self._entries, *self._masks)
        drafts = (q.begins, q.drafted, q.parents)
        dense = {"HAS_PROBS": q.draft_probs is not None}
        probs = (q.draft_probs.probs, q.draft_probs.of_row) if q.draft_probs else (q.begins, q.begins)
        common, splits = self._row | self._has, work.sizes.splits
        if q.draft_probs is not None:
            assert q.draft_probs.probs.is_contiguous()
            _start(joint_kernel, (self.sequences,), self.logits, q.rules, *drafts, *row, work.sums, *probs,
                   work.joints, splits, **common)  # fmt: skip
            _start(rest_kernel, self._grid, self.logits, q.rules, q.begins, *row, work.sums, *probs,
                   work.joints, splits, **common, BLOCK=BLOCK)  # fmt: skip
        _start(
            walk_kernel, (self.sequences,), self.logits, q.rules, *drafts, *row, work.parts, work.sums, *probs,
            work.choices, answers.tokens, answers.rows, answers.accepted, answers.failed, splits,
            **common, **dense,
        )  # fmt: skip
        if self.needs.picked:
            picks = work.sizes.pick_splits
            _start(
                pick_kernel, (self.sequences, picks), self.logits, q.rules, q.drafted, q.parents, *row, work.sums,
                probs[0], work.choices, work.picks, splits, picks, **common, **dense, BLOCK=BLOCK,
            )  # fmt: skip
            _start(finish_kernel, (self.sequences,), work.choices, work.picks, answers.tokens, picks)
        if self.edited:
            _start(put_back_kernel, (self.rows,), self.logits, work.table, work.entry_ids, work.entry_raw, **self._row)

    @property
    def _grid(self) -> tuple[int, int]:
        return self.rows, self.work.sizes.splits

    @property
    def _row(self) -> dict[str, int]:
        return {"V": self.logits.shape[1], "STRIDE": self.logits.stride(0)}

    @property
    def _has(self) -> dict[str, bool]:
        return {"HAS_EDITS": self.edited, "HAS_MASKS": self.questions.masks is not None}

    @property
    def _entries(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.work.entry_ids, self.work.entry_values

    @property
    def _masks(self) -> tuple[torch.Tensor, torch.Tensor]:
        masks = self.questions.masks
        return (masks.bits, masks.of_row) if masks else (self.questions.begins, self.questions.begins)


def logprobs(
    logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of `tokens[i]` in `rows[i]` (int32), and of the `count` likeliest there: values [N], ids [N, count], their
    values [N, count]. Not while `verify` runs on the same logits."""
    number, vocabulary = rows.shape[0], logits.shape[1]
    assert logits.stride(1) == 1 and count <= vocabulary < LARGEST_VOCABULARY
    own = torch.empty(number, dtype=torch.float32, device=logits.device)
    ids = torch.empty(number, count, dtype=torch.int32, device=logits.device)
    values = torch.empty(number, count, dtype=torch.float32, device=logits.device)
    if number:
        launch(logprobs_kernel, (number,), logits, rows, tokens, own, ids, values, count, V=vocabulary,
               STRIDE=logits.stride(0), **_columns(vocabulary))  # fmt: skip
    return own, ids, values


def _columns(vocabulary: int) -> dict[str, int]:
    return {"BLOCK": BLOCK, "COLUMN": power_of_two(ceil_div(vocabulary, BLOCK))}


def _scan(dtype: torch.dtype) -> dict[str, int]:
    return SCAN | {"TOGETHER": _together(dtype)}


def _together(dtype: torch.dtype) -> int:
    """Ids that a thread has side by side."""
    return 16 // dtype.itemsize


def _start(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    launch(kernel, grid, *args, fp_fusion=False, **constants)


def compilations(arch: int) -> Iterator[Compilation]:
    """Plain questions about bfloat16, and everything at once about float32."""
    types = dict.fromkeys(
        ("rules", "begins", "drafted", "parents", "table", "entry_ids", "bits", "mask_rows", "parts", "prob_rows",
         "choices", "picks", "tokens", "rows", "accepted", "failed", "seen_begins", "seen_ids", "seen_counts",
         "bias_begins", "bias_ids", "forbidden_begins", "forbidden_ids"), "*i32",
    ) | dict.fromkeys(("entry_values", "bias_values", "probs"), "*fp32")  # fmt: skip
    types |= {"sums": "*i64", "places": "*i64", "tallies": "*i64", "joints": "*fp64", "peaks": "*i16"}
    types |= dict.fromkeys(("capacity", "sequences", "count", "splits", "pick_splits", "steps"), "i32")
    types |= {"own": "*fp32", "top_ids": "*i32", "top_values": "*fp32"}
    for kind, everything, dtype in (("bf16", False, torch.bfloat16), ("fp32", True, torch.float32)):
        pointers = types | {"logits": f"*{kind}", "entry_raw": f"*{kind}"}
        row = {"V": 128256, "STRIDE": 128256}
        has = {"HAS_EDITS": everything, "HAS_MASKS": everything}
        dense = {"HAS_PROBS": everything}
        read = row | has | {"BLOCK": BLOCK}
        group = {"GROUP": group_of(row["V"])}
        scan = row | has | group | {name: size for name, size in _scan(dtype).items() if name != "warps"}
        kernels: list[tuple[Any, dict[str, int | bool]]] = [
            (scan_kernel, scan | {"SAMPLED": True}),
            (collect_kernel, read | group | {"BLOCK": COLLECT["BLOCK"]}),
            (narrow_kernel, read | {"BLOCK": NARROW["BLOCK"]}),
            (settle_kernel, read | {"BLOCK": SETTLE["BLOCK"]}),
            (measure_kernel, read | {"TOGETHER": _together(dtype)}),
            (walk_kernel, row | has | dense),
            (pick_kernel, read | dense),
        ]
        if not everything:
            yield _compilation("greedy scan", scan_kernel, pointers, scan | {"SAMPLED": False})
        if everything:
            kernels += [
                (prepare_kernel, {}),
                (edit_kernel, row | {"HAS_LISTS": True}),
                (put_back_kernel, row),
                (joint_kernel, row | has),
                (rest_kernel, read),
                (finish_kernel, {}),
            ]
        kernels.append((logprobs_kernel, row | _columns(row["V"])))
        for kernel, constants in kernels:
            given = pointers | ({"rows": "i32"} if kernel is prepare_kernel else {})
            yield _compilation(f"{kernel.__name__} {kind}", kernel, given, constants)


def _compilation(name: str, kernel: Any, types: dict[str, str], constants: dict[str, int | bool]) -> Compilation:
    sizes = {scan_kernel: SCAN, collect_kernel: COLLECT, narrow_kernel: NARROW, settle_kernel: SETTLE}
    warps = sizes.get(kernel, {"warps": 4})["warps"]
    return Compilation(name, kernel, signature_of(kernel, types, constants), constants, warps, fp_fusion=False)
