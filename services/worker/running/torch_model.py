"""TorchModel: a network, its KV pages and its facts, for the runner. Knows no scheduler and no sockets.

`forward` takes rows of any sequences at once: prefill chunks, drafts to verify and single decode steps are all
tokens at positions, whose keys and values go to given pages. Rejected drafts need no undoing: the next call
overwrites their positions, and no row looks past its own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kernels.cpu_vectors import HAS_BFLOAT16_DOT
from kernels.verify.questions import Asked, Rule, gather
from models.batch import Stretch, tree_slots
from models.branches import own_pages
from models.check import check_context
from models.choose import Choice, check_kv_dtype, choose
from models.config import read_network
from models.executor import Executor, Options, Output
from models.memory import NUMBER_BYTES, kept_by, weight_bytes
from models.parameters import parameter_count
from models.passes import forward
from models.sources import ModelError, check_folder
from models.taps import Tap, check_taps
from services.api.draft_tree import depths
from services.worker.parallel.executor import ParallelExecutor
from services.worker.parallel.meeting import Meeting
from services.worker.parallel.ranks import Ranks, end_process
from services.worker.parallel.shares import shares_in_memory, shares_of
from services.worker.running.head import HeadModel, ResidualModel, open_head
from services.worker.running.memory_plan import Sizes, card_of, plan_memory
from services.worker.running.page_memory import PageMemory, TorchPages
from services.worker.running.verifier import Verifier, verifier
from services.worker.running.weights import weights_of
from specmesh import rooms

log = logging.getLogger("specmesh.worker")



@dataclass(slots=True)
class ForwardRows:
    """Tokens of one sequence at positions start..start+len-1. `pages` covers all positions up to the last
    of them; logits are wanted for tokens logits_from.. (== len(tokens): none). With `parents` the first token is
    followed by a tree (models/batch.py), and `pages` covers as many positions as its longest path has."""

    tokens: list[int]
    start: int
    pages: list[int]
    logits_from: int
    parents: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Properties of a loaded model."""

    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    page_tokens: int
    pages: int
    dtype: str
    parameters: int
    path_name: str
    # Which executor runs, and how, in a few words.
    path: str = ""
    # Whether a row's bits are independent of its batch and of how its prompt was split into chunks.
    strict: bool = True
    # Identifies the vocabulary: the same for all models with this tokenizer.
    vocabulary: str = ""
    # Pages for branches of drafts; their ids follow those of `pages`.
    branch_pages: int = 0
    # The layers whose output `features` has (models/executor.py).
    taps: tuple[Tap, ...] = ()
    # As set, or by the device.
    max_sequences: int = 64
    max_step_tokens: int = 512


class TorchModel:
    def __init__(
        self,
        executor: Executor,
        facts: ModelFacts,
        verifier: Verifier,
        elsewhere: bool = False,
        head: HeadModel | ResidualModel | None = None,
    ) -> None:
        """`elsewhere`: whether `forward` returns before anything is computed. `head`: what a drafter computes with."""
        self.head = head
        self.facts = facts
        self.verifier = verifier
        self.elsewhere = elsewhere
        self.executor = executor
        # Of a GPU's steps and of ranks, for metrics.
        self.counts: Callable[[], dict[str, int]] = dict
        # The trees of the last call, by their index in it.
        self._trees: dict[int, Stretch] = {}

    def forward(self, rows: Sequence[ForwardRows]) -> Output:
        """Logits of the wanted rows, float32 [wanted, vocab_size], and with taps the features of all rows, both in
        the given order. They are valid until the next call.

        With facts.strict a row's logits have the same bits in any batch and however its prompt was split.
        """
        for item in rows:
            self._assert_covered(item)
        if not rows:
            return Output(torch.empty(0, self.facts.vocab_size))
        self._trees = self._with_branches(rows)
        stretches = [
            self._trees.get(index) or Stretch(item.tokens, item.start, item.pages, item.logits_from)
            for index, item in enumerate(rows)
        ]
        return forward(self.executor, stretches, self.facts.page_tokens)

    def _with_branches(self, rows: Sequence[ForwardRows]) -> dict[int, Stretch]:
        found: dict[int, Stretch] = {}
        spare = self.facts.pages
        for index, item in enumerate(rows):
            if item.parents:
                needed = own_pages(item.parents, item.start, self.facts.page_tokens)
                own = range(spare, spare + needed)
                found[index] = Stretch(item.tokens, item.start, item.pages, item.logits_from, item.parents, own)
                spare += needed
        assert spare <= self.facts.pages + self.facts.branch_pages
        return found

    def keep(self, paths: Sequence[tuple[int, list[int]]]) -> None:
        """For trees of the last call, by their index in it: the rows of the accepted path, in order. Their keys and
        values move to the sequence's own pages, where those of a chain would be."""
        size = self.facts.page_tokens
        moves: list[tuple[int, int]] = []
        for index, path in paths:
            tree = self._trees[index]
            slots = tree_slots(tree, size)[path].tolist()
            places = range(tree.start + 1, tree.start + 1 + len(path))
            own = [tree.pages[place // size] * size + place % size for place in places]
            moves += [move for move in zip(slots, own, strict=True) if move[0] != move[1]]
        self.executor.move(moves)

    def copy_page(self, source: int, target: int) -> None:
        self.executor.copy_page(source, target)
        if self.head is not None:
            self.head.copy_page(source, target)

    def page_memory(self) -> PageMemory:
        """The pages' bytes, those of the drafter's layers among them, which rank 0 has alone."""
        facts, executor = self.facts, self.executor
        layers = [*executor.page_memory(), *(self.head.page_memory() if self.head is not None else ())]
        model = f"{facts.path_name} {executor.computed_by} {facts.dtype} {facts.parameters} {facts.vocabulary}"
        return TorchPages(layers, model, executor.other_ranks() if isinstance(executor, ParallelExecutor) else None)

    def _assert_covered(self, item: ForwardRows) -> None:
        end = item.start + (1 + max(depths(len(item.parents), item.parents)) if item.parents else len(item.tokens))
        assert item.tokens and item.start >= 0 and end <= self.facts.max_context
        assert len(item.pages) * self.facts.page_tokens >= end
        assert min(item.pages) >= 0 and max(item.pages) < self.facts.pages
        assert min(item.tokens) >= 0 and max(item.tokens) < self.facts.vocab_size
        assert 0 <= item.logits_from <= len(item.tokens)


@dataclass(frozen=True, slots=True)
class Wanted:
    """How to run a model. 0 means: one thread per core, the model's own context.

    dtype: bfloat16, float32, int8, or auto (bfloat16 where the CPU or GPU has it in hardware).
    draft_dtype: of a drafter's network; auto: int8 beside bfloat16 where compiled loops run it, else as `dtype`.
    """

    dtype: str = "auto"
    draft_dtype: str = "auto"
    # none, wint8 or wint4 (models/quantized/at_load.py).
    quantization: str = "none"
    # auto or fp8.
    kv_cache_dtype: str = "auto"
    executor: str = "auto"
    strict: bool = True
    threads: int = 0
    page_tokens: int = 32
    # 0: a share of free memory, at most what max_sequences of the longest context can use; -1: by the device.
    kv_cache_mb: int = 0
    # Of a GPU's memory, what the worker may use with kv_cache_mb -1.
    gpu_memory_utilization: float = 0.9
    # 0: by the device.
    max_sequences: int = 64
    max_step_tokens: int = 512
    max_context: int = 0
    # The most rows that a step verifies of one sequence; steps of drafts alone should be graphs on a GPU.
    rows_a_sequence: int = 4
    # Processes that the model is split over, and how long one may keep the others waiting, in seconds.
    ranks: int = 1
    rank_timeout: float = 10.0
    # Where the processes of other machines are met; None: all are here.
    meeting: Meeting | None = None

    @property
    def ranks_here(self) -> int:
        return self.ranks if self.meeting is None else self.ranks // self.meeting.nodes


def load_torch_model(
    folder: Path,
    wanted: Wanted,
    taps: Sequence[Tap] = (),
    head: tuple[str, Path] | None = None,
    lost: Callable[[str], Any] = end_process,
) -> TorchModel:
    """Load a checked Hugging Face folder. `taps`: the layers a drafter reads. `head`: method and folder of a drafter
    with a network of its own, which rank 0 has alone. `lost` is called when another rank fails. Raises `ModelError`."""
    check_folder(folder)
    network = read_network(folder)
    opened = None if head is None else open_head(*head, network, folder)
    taps = taps if opened is None else opened.taps
    try:
        check_taps(taps, len(network.layers))
    except ValueError as error:
        raise ModelError(str(error), "use a head that was made for this model") from error
    dtype = _dtype(wanted.dtype)
    choice = choose(wanted.executor, network, dtype)
    if wanted.quantization == "wint8" and dtype == "bfloat16" and choice.name == "compiled":
        # The loops that multiply int8 take their inputs in int8, too.
        dtype = "int8"
        choice = choose(wanted.executor, network, dtype)
    shares = shares_of(network, wanted.ranks, wanted.ranks_here, choice, dtype)
    options = Options(
        dtype=dtype,
        pages=0,
        page_tokens=wanted.page_tokens,
        max_context=check_context(network, wanted.max_context),
        threads=max(1, (wanted.threads or len(os.sched_getaffinity(0))) // wanted.ranks_here),
        strict=wanted.strict,
        taps=tuple(taps),
        kv_dtype="fp8" if wanted.kv_cache_dtype == "fp8" else "",
    )
    check_kv_dtype(choice, network, options.kv_dtype)
    draft_dtype = choice.drafting_dtype(dtype) if wanted.draft_dtype == "auto" else _dtype(wanted.draft_dtype)
    drafting = replace(options, dtype=draft_dtype)
    torch.set_num_threads(options.threads)
    counted = shares_in_memory(shares, wanted.ranks_here, choice)
    networks = [(share, options) for share in counted]
    if opened is not None and opened.network is not None:
        networks.append((opened.network, opened.options(drafting)))
    weights, codes_stay = weights_of(folder, network, wanted.quantization), choice.name == "triton"
    size = sum(weight_bytes(share, kept_by(share, weights, dtype, codes_stay)) for share in counted)
    size += 0 if opened is None else opened.weight_bytes(drafting, codes_stay)
    sizes = Sizes(wanted.kv_cache_mb, wanted.gpu_memory_utilization, wanted.max_sequences, wanted.max_step_tokens)
    plan = plan_memory(sizes, networks, size, choice, card_of(choice))
    graph_rows = min(plan.max_sequences * wanted.rows_a_sequence, plan.max_step_tokens)
    options = replace(
        options, pages=plan.pages, branch_pages=plan.branch_pages, max_context=plan.context, graph_rows=graph_rows
    )
    drafting = replace(options, dtype=drafting.dtype)
    # In a process of its own: the first start compiles for long, and another core is idle.
    ahead = _compile_verifier() if choice.name == "compiled" else None
    device = torch.device("cuda" if choice.name == "triton" and torch.cuda.is_available() else "cpu")
    others = None
    if wanted.ranks > 1:
        on_gpu = device.type == "cuda"
        others = Ranks(
            folder, wanted.ranks, choice.name, wanted.quantization, options, on_gpu, lost, wanted.meeting
        )
        options = replace(options, group=others.group)
    own: Executor = choice.executor(shares[0], weights, options)
    executor = own if others is None else others.executor(own)
    made = None if opened is None else opened.load(choice.executor, drafting, device)
    facts = ModelFacts(
        vocab_size=network.vocab_size,
        max_context=options.max_context,
        eos_token_ids=network.eos_token_ids,
        page_tokens=options.page_tokens,
        pages=options.pages,
        dtype=dtype,
        parameters=parameter_count(network),
        path_name=folder.name,
        path=_path(executor.path, choice),
        strict=executor.strict,
        vocabulary=vocabulary_of(folder),
        branch_pages=options.branch_pages,
        taps=options.taps,
        max_sequences=plan.max_sequences,
        max_step_tokens=plan.max_step_tokens,
    )
    model = TorchModel(executor, facts, verifier(choice.name), choice.name == "triton", made)
    _compile(model, ahead)
    _prepare(model, own, wanted.rank_timeout)
    return model


def _prepare(model: TorchModel, own: Executor, rank_timeout: float) -> None:
    """What comes last: all of a GPU's kernels, on every rank, and an end of patience with ranks. `own` is rank 0's
    share."""
    executor = model.executor
    if model.elsewhere:
        from services.worker.running.preparing import prepare

        if isinstance(executor, ParallelExecutor):
            executor.prepare()
        model.counts = prepare(own, model.head, model.verifier, model.facts.vocab_size)
    if isinstance(executor, ParallelExecutor):
        executor.hurry(rank_timeout)
        model.counts = executor.with_counts(model.counts)


def vocabulary_of(folder: Path) -> str:
    """The same for all models with this tokenizer; "" without one."""
    file = folder / "tokenizer.json"
    return hashlib.sha256(file.read_bytes()).hexdigest()[:32] if file.is_file() else ""


def _compile_verifier() -> subprocess.Popen[bytes] | None:
    """None: it is on disk already. Who waits for it compiles nothing afterwards; who finds that it failed compiles
    itself."""
    from kernels.verify import ahead

    if ahead.is_compiled():
        return None
    return subprocess.Popen(rooms.command("kernels.verify.ahead"), stdin=subprocess.DEVNULL)


def _compile(model: TorchModel, ahead: subprocess.Popen[bytes] | None) -> None:
    """Compile what is not in the cache on disk, so that no request waits for it. Page 0 is still free."""
    with torch.inference_mode():
        logits = model.forward([ForwardRows([0], 0, [0], 0)]).logits
        if ahead is not None:
            ahead.wait()
        for rule in (Rule(), Rule(temperature=1.0), Rule(temperature=1.0, top_p=0.9)):
            model.verifier.verify(logits, gather([Asked(rule)], model.facts.vocab_size))
        first = torch.zeros(1, dtype=torch.int32)
        model.verifier.logprobs(logits, first, first, 1)


def _path(told: str, choice: Choice) -> str:
    return f"{told} ({choice.because})" if choice.because else told


def _dtype(name: str) -> str:
    if name != "auto":
        if name not in NUMBER_BYTES:
            raise ModelError(f"dtype is {name!r}", f"use auto, {', '.join(NUMBER_BYTES)}")
        return name
    return "bfloat16" if torch.cuda.is_available() or HAS_BFLOAT16_DOT else "float32"
