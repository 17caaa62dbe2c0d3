"""Loading a TorchModel: which executor, how many pages, which drafter, and what is compiled before it is used."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kernels.cpu_vectors import HAS_BFLOAT16_DOT, HAS_FMA
from kernels.verify.questions import Asked, Rule, gather
from models.batch import Stretch
from models.check import check_context
from models.choose import ExecutorChoice, check_kv_dtype, choose
from models.config import read_network
from models.executor import Executor, Options
from models.memory import NUMBER_BYTES, kept_by, stacks_stay, weight_bytes
from models.parameters import parameter_count
from models.pooling import read_pooling
from models.quantized.at_load import CodedWeights, weights_of
from models.sources import ModelError, check_folder
from models.spec import Network
from models.taps import Tap, check_taps
from models.weights import Weights
from services.worker.parallel.executor import ParallelExecutor
from services.worker.parallel.ranks import Ranks, end_process
from services.worker.parallel.shares import shares_in_memory, shares_of
from services.worker.running.head import OpenedHead, OpenedResidual, open_head
from services.worker.running.memory_plan import MemoryPlan, MemorySizes, card_of, plan_memory
from services.worker.running.runner import Facts
from services.worker.running.torch_model import TorchModel
from services.worker.running.verifier import verifier
from specmesh import rooms

if TYPE_CHECKING:
    from services.worker.parallel.nodes import Nodes

log = logging.getLogger("specmesh.worker")


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
    # The same bits on every CPU that has fused multiply-adds.
    same_bits: bool = False
    amx: bool = True
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
    prefix_cache: bool = True
    # The most rows that a step verifies of one sequence; steps of drafts alone should be graphs on a GPU.
    rows_a_sequence: int = 4
    # The longest draft that a request may have.
    longest_draft: int = 48
    # Processes that the model is split over, and how long one may keep the others waiting, in seconds.
    ranks: int = 1
    rank_timeout: float = 10.0
    # The other machines that they are on; None: all are here.
    nodes: Nodes | None = None

    @property
    def ranks_here(self) -> int:
        return self.ranks if self.nodes is None else self.ranks // self.nodes.count


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
    choice, dtype = _chosen(wanted, network)
    options = _options(wanted, network, dtype, taps if opened is None else opened.taps)
    check_kv_dtype(choice, network, options.kv_dtype)
    drafting = replace(options, dtype=_draft_dtype(wanted, choice, network, dtype))
    torch.set_num_threads(options.threads)
    shares = shares_of(network, wanted.ranks, wanted.ranks_here, choice, dtype)
    counted = shares_in_memory(shares, wanted.ranks_here, choice)
    weights = weights_of(folder, network, wanted.quantization)
    if isinstance(weights, Weights) and _made_dense(weights.format, choice.name, dtype):
        log.warning("the model is in %s, and made dense: it takes as much memory as in %s", weights.format, dtype)
    plan = _plan(wanted, choice, counted, weights, opened, options, drafting)
    options, drafting = (_planned(each, plan, wanted) for each in (options, drafting))
    # In a process of its own: the first start compiles for long, and another core is idle.
    ahead = _compile_verifier() if choice.name == "compiled" else None
    device = torch.device("cuda" if choice.name == "triton" and torch.cuda.is_available() else "cpu")
    others = None
    if wanted.ranks > 1:
        on_gpu = device.type == "cuda"
        others = Ranks(folder, wanted.ranks, choice.name, wanted.quantization, options, on_gpu, lost, wanted.nodes)
        options = replace(options, group=others.group)
    own: Executor = choice.executor(shares[0], weights, options)
    executor = own if others is None else others.executor(own)
    made = None if opened is None else opened.load(choice.executor, drafting, device)
    if network.recurrent:
        states = f"{plan.snapshots} more are kept for prefixes" if plan.snapshots else "prefixes aren't cached"
        log.info("sequences of this model have a state beside their pages: %s, drafts are chains", states)
    facts = _facts(folder, network, choice, options, plan, executor)
    model = TorchModel(executor, facts, verifier(choice.name), choice.name == "triton", made)
    _compile(model, ahead)
    _prepare(model, own, wanted.rank_timeout)
    return model


def _made_dense(form: str, executor: str, dtype: str) -> bool:
    return form.startswith("nvfp4") or (form.startswith("mxfp4") and not stacks_stay(executor, dtype))


def _chosen(wanted: Wanted, network: Network) -> tuple[ExecutorChoice, str]:
    """The executor and the dtype it computes in."""
    dtype = _dtype(wanted.dtype)
    choice = choose(wanted.executor, network, dtype)
    if wanted.dtype == "auto" and choice.name == "plain" and not (torch.cuda.is_available() or HAS_BFLOAT16_DOT):
        # torch's products of bfloat16 are slow there. The compiled loops multiply such weights in float32.
        dtype = "float32"
        choice = choose(wanted.executor, network, dtype)
    if wanted.quantization == "wint8" and dtype == "bfloat16" and choice.name == "compiled":
        # The loops that multiply int8 take their inputs in int8, too.
        dtype = "int8"
        choice = choose(wanted.executor, network, dtype)
    if wanted.same_bits and not (choice.name == "compiled" and HAS_FMA):
        why = f"is run by {choice.name}" if HAS_FMA else "is on a CPU without fused multiply-adds"
        raise ModelError(
            f"determinism is portable, and this model {why}", "use the compiled loops of a CPU, or determinism strict"
        )
    return choice, dtype


def _options(wanted: Wanted, network: Network, dtype: str, taps: Sequence[Tap]) -> Options:
    """All but what the memory plan decides."""
    try:
        check_taps(taps, len(network.layers))
    except ValueError as error:
        raise ModelError(str(error), "use a head that was made for this model") from error
    return Options(
        dtype=dtype,
        pages=0,
        page_tokens=wanted.page_tokens,
        max_context=check_context(network, wanted.max_context),
        threads=max(1, (wanted.threads or len(os.sched_getaffinity(0))) // wanted.ranks_here),
        strict=wanted.strict,
        amx=wanted.amx,
        same_bits=wanted.same_bits,
        taps=tuple(taps),
        kv_dtype="fp8" if wanted.kv_cache_dtype == "fp8" else "",
        longest_draft=wanted.longest_draft,
    )


def _draft_dtype(wanted: Wanted, choice: ExecutorChoice, network: Network, dtype: str) -> str:
    if wanted.draft_dtype == "auto":
        return choice.drafting_dtype(dtype)
    asked = _dtype(wanted.draft_dtype)
    if why := choice.executor.why_not(network, asked):
        log.warning("draft_dtype %s: %s; the drafter computes in %s", asked, why, dtype)
        return dtype
    return asked


def _plan(
    wanted: Wanted,
    choice: ExecutorChoice,
    shares: Sequence[Network],
    weights: Weights | CodedWeights,
    opened: OpenedHead | OpenedResidual | None,
    options: Options,
    drafting: Options,
) -> MemoryPlan:
    """`shares`: the parts of the model that are in this machine's memory."""
    networks = [(share, options) for share in shares]
    if opened is not None and opened.network is not None:
        networks.append((opened.network, opened.options(drafting)))
    codes_stay, coded_stacks = choice.name == "triton", stacks_stay(choice.name, options.dtype)
    kept = [kept_by(share, weights, options.dtype, codes_stay, coded_stacks) for share in shares]
    size = sum(map(weight_bytes, shares, kept))
    size += 0 if opened is None else opened.weight_bytes(drafting, codes_stay)
    sizes = MemorySizes(
        wanted.kv_cache_mb, wanted.gpu_memory_utilization, wanted.max_sequences, wanted.max_step_tokens,
        wanted.prefix_cache,
    )  # fmt: skip
    return plan_memory(sizes, networks, size, choice, card_of(choice))


def _planned(options: Options, plan: MemoryPlan, wanted: Wanted) -> Options:
    graph_rows = min(plan.max_sequences * wanted.rows_a_sequence, plan.max_step_tokens)
    return replace(
        options, pages=plan.pages, branch_pages=plan.branch_pages, max_context=plan.context, graph_rows=graph_rows,
        states=plan.max_sequences + plan.snapshots,
    )  # fmt: skip


def _facts(
    folder: Path, network: Network, choice: ExecutorChoice, options: Options, plan: MemoryPlan, executor: Executor
) -> Facts:
    return Facts(
        vocab_size=network.vocab_size,
        max_context=options.max_context,
        eos_token_ids=network.eos_token_ids,
        page_tokens=options.page_tokens,
        pages=options.pages,
        dtype=options.dtype,
        parameters=parameter_count(network),
        path_name=folder.name,
        path=_path(executor.path, choice),
        strict=executor.strict,
        vocabulary=vocabulary_of(folder),
        branch_pages=options.branch_pages,
        states=plan.max_sequences if network.recurrent else 0,
        snapshots=plan.snapshots,
        max_sequences=plan.max_sequences,
        max_step_tokens=plan.max_step_tokens,
        hidden_size=network.hidden_size,
        pooling=read_pooling(folder),
    )


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
        logits = model.forward([Stretch([0], 0, [0], 0)]).logits
        if ahead is not None:
            ahead.wait()
        for rule in (Rule(), Rule(temperature=1.0), Rule(temperature=1.0, top_p=0.9)):
            model.verifier.verify(logits, gather([Asked(rule)], model.facts.vocab_size))
        first = torch.zeros(1, dtype=torch.int32)
        model.verifier.logprobs(logits, first, first, 1)


def _path(told: str, choice: ExecutorChoice) -> str:
    return f"{told} ({choice.because})" if choice.because else told


def _dtype(name: str) -> str:
    if name != "auto":
        if name not in NUMBER_BYTES:
            raise ModelError(f"dtype is {name!r}", f"use auto, {', '.join(NUMBER_BYTES)}")
        return name
    return "bfloat16"
