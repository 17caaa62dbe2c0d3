"""GpuExecutor: a network as Triton kernels. Steps of few rows are replayed as CUDA graphs, larger ones run as they are.

    embed, then per layer:  add+norm  qkv  norm+rotate+store  attend (+ join)  output  add+norm  gate·up  silu  down
    then:                   add+norm of the wanted rows, head

and behind each layer that is a tap, residual + delta to the features.

The residual stream is float32, what linears read has the dtype of the options, logits are float32 and stay on the
device. Within a step nothing waits for the device: inputs travel with one copy from pinned memory.

Where there is no GPU, the same runs in Triton's interpreter on device "cpu": for tests alone, without graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from kernels import dispatch, interpreter
from kernels.gemm import fused as gemm
from kernels.norm_rope_act.fused import add_norm, embed, norm_wanted, tap
from kernels.paged_attention.plan import Sizes
from models.batch import Batch
from models.executor import Options, Output
from models.gpu.attention import GpuAttention
from models.gpu.entry import GpuEntry, add_norm_or_cast
from models.gpu.graphs import BUCKETS, Graphs, bucket_of
from models.gpu.inputs import Step, StepInputs
from models.gpu.latent_attention import GpuLatentAttention
from models.gpu.mlp import GpuExperts, GpuMlp
from models.gpu.pages import Pages
from models.gpu.place import DTYPES, Place, kept_dtype
from models.gpu.scratch import Scratch
from models.parameters import parameter_count
from models.projection import torch_projection
from models.sources import ModelError
from models.spec import Attention, Experts, LatentAttention, Layer, Mlp, Network
from models.taps import FINAL, Tap, check_taps
from models.weights import Weights

_ATTENTION: dict[type, Any] = {Attention: GpuAttention, LatentAttention: GpuLatentAttention}
_MLP: dict[type, Any] = {Mlp: GpuMlp, Experts: GpuExperts}
MAX_ROWS = 2048
# Partial results of attention that there is memory for: how many splits of long contexts, times rows, run apart.
SLOTS = 1024


@dataclass(slots=True)
class _GpuLayer:
    attention_norm: torch.Tensor | None  # [H] float32
    attention_epsilon: float
    attention: Any
    mlp_norm: torch.Tensor
    mlp_epsilon: float
    mlp: Any


class GpuExecutor:
    """models/executor.py's Executor."""

    max_rows = MAX_ROWS
    branches = True

    def __init__(
        self, network: Network, weights: Weights, options: Options, device: str = "cuda", graphs: bool = True
    ) -> None:
        if why := self.why_not(network, options.dtype):
            raise ModelError(f"dtype is {options.dtype}", why)
        check_taps(options.taps, len(network.layers))
        self._device = torch.device(device)
        self._where = _can_run(self._device)
        self._network, self._dtype, self._taps = network, DTYPES[options.dtype], options.taps
        self.strict, self.parameters = options.strict, parameter_count(network)
        place = Place(weights, options, self._device)
        self._take_weights(place)
        self._make_memory(place)
        self._graphs: Graphs | None = None
        if graphs and self._device.type == "cuda":
            self._small.empty(BUCKETS[-1])
            self._graphs = Graphs(self._run_fixed, self._device)
        # How many steps ran which way.
        self.steps: Counter[str] = Counter()
        self.path = self._told()

    projection = staticmethod(torch_projection)

    @staticmethod
    def why_not(network: Network, dtype: str) -> str:
        """Why the network can't be run in this dtype, or ""."""
        return "" if dtype in DTYPES else f"the GPU path computes in {', '.join(DTYPES)}"

    @staticmethod
    def page_bytes(network: Network, options: Options) -> int:
        """Bytes that one page takes in all layers."""
        shapes = (_ATTENTION[type(x.attention)].page_shape(x.attention, options) for x in network.layers)
        return sum(torch.Size(shape).numel() for shape in shapes) * kept_dtype(options).itemsize

    # Loading ------------------------------------------------------------------------------------------

    def _take_weights(self, place: Place) -> None:
        network = self._network
        table = place.weights.take(network.embedding, network.vocab_size, network.hidden_size)
        self._embedding = table.to(self._device).contiguous()
        self._layers = [self._layer(layer, place) for layer in network.layers]
        self._entry = GpuEntry(network.entry, place) if network.entry else None
        self._norm = place.norm(network.norm) if network.norm else None
        self._epsilon = network.norm.epsilon if network.norm else 0.0
        # Always ours, and its sums stay in float32: rounded logits tie.
        assert not network.head.bias
        names = [f"{part.name}.weight" for part in network.head.parts]
        tied = names == [network.embedding] and self._embedding.dtype == self._dtype
        self._head = self._embedding if tied else place.dense(network.head) if names else None

    def _layer(self, spec: Layer, place: Place) -> _GpuLayer:
        return _GpuLayer(
            attention_norm=place.norm(spec.attention_norm) if spec.attention_norm else None,
            attention_epsilon=spec.attention_norm.epsilon if spec.attention_norm else 0.0,
            attention=_ATTENTION[type(spec.attention)](spec.attention, place),
            mlp_norm=place.norm(spec.mlp_norm),
            mlp_epsilon=spec.mlp_norm.epsilon,
            mlp=_MLP[type(spec.mlp)](spec.mlp, place),
        )

    def _make_memory(self, place: Place) -> None:
        options, specs = place.options, [layer.attention for layer in self._network.layers]
        shapes = [_ATTENTION[type(spec)].page_shape(spec, options) for spec in specs]
        self._pages = Pages(shapes, options.pages + options.branch_pages, kept_dtype(options), self._device)
        kinds: list[Sizes] = []
        scratch = Scratch(MAX_ROWS, SLOTS, self._dtype, self._device)
        for index, (spec, layer) in enumerate(zip(specs, self._layers, strict=True)):
            needed = replace(type(layer.attention).sizes(spec, place), slots=SLOTS)
            if needed not in kinds:
                kinds.append(needed)
            layer.attention.own(self._pages.of_layer[index], kinds.index(needed), scratch)
        width = -(-options.max_context // options.page_tokens)
        make = partial(
            StepInputs, kinds=kinds, page_tokens=options.page_tokens, width_limit=width, device=self._device,
            branch_pages=options.branch_pages,
        )  # fmt: skip
        # Small steps read from fixed addresses, and send little.
        self._small, self._large = make(BUCKETS[-1], fixed=True), make(MAX_ROWS, fixed=False)
        shape = (BUCKETS[-1], self._network.head.outputs)
        self._logits = torch.empty(shape, dtype=torch.float32, device=self._device)
        self._features = self._empty_features(BUCKETS[-1])
        # Of a network with an entry: where a graph finds what the rows come with.
        self._hidden = torch.zeros(BUCKETS[-1], self._network.hidden_size, device=self._device) if self._entry else None

    def _told(self) -> str:
        linears = Counter(linear.how for layer in self._layers for part in (layer.attention, layer.mlp)
                          for linear in part.linears)  # fmt: skip
        ways = ", ".join(f"{count} linears {how}" for how, count in linears.items())
        graphs = f"CUDA graphs up to {BUCKETS[-1]} rows" if self._graphs else "no CUDA graphs"
        return f"Triton {self._where}, {graphs}, {ways}{', strict' if self.strict else ''}"

    # Running ------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def forward(self, batch: Batch, hidden: torch.Tensor | None = None) -> Output:
        rows = len(batch.tokens)
        assert 1 <= rows <= self.max_rows and (hidden is None) == (self._entry is None)
        bucket = bucket_of(rows) if self._graphs else 0
        if self._graphs and bucket:
            self.steps["triton, cuda graph"] += 1
            self._fork(self._small.put(batch, bucket))
            if hidden is not None and self._hidden is not None:
                self._hidden[:rows].copy_(hidden)
            self._graphs.replay(bucket)
            features = None if self._features is None else self._features[:rows]
            return Output(self._logits[: len(batch.wanted)], features)
        self.steps[f"triton, {'interpreted' if interpreter.in_use() else 'eager'}"] += 1
        inputs = self._small if rows <= BUCKETS[-1] else self._large
        step, features = inputs.put(batch, rows), self._empty_features(rows)
        self._fork(step)
        given = None if hidden is None else hidden.to(self._device, torch.float32)
        return Output(self._run(step, len(batch.wanted), features, given), features)

    def _fork(self, step: Step) -> None:
        """Before the step, and outside of its graph: most steps have no trees."""
        if len(step.forks[0]):
            self._pages.fork(*step.forks)

    def _run_fixed(self, rows: int) -> None:
        with torch.inference_mode():
            given = None if self._hidden is None else self._hidden[:rows]
            self._run(self._small.fixed_step(rows), rows, self._features, given, self._logits[:rows])

    def _empty_features(self, rows: int) -> torch.Tensor | None:
        if not self._taps:
            return None
        width = len(self._taps) * self._network.hidden_size
        return torch.empty(rows, width, dtype=self._dtype, device=self._device)

    def _run(
        self,
        step: Step,
        wanted: int,
        features: torch.Tensor | None,
        hidden: torch.Tensor | None,
        logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        residual, delta, beside = embed(step.tokens, self._embedding), None, None
        if self._entry is not None and hidden is not None:
            residual, beside = self._entry(residual, hidden[step.feature_rows])
        for index, layer in enumerate(self._layers):
            x = add_norm_or_cast(residual, delta, layer.attention_norm, layer.attention_epsilon, self._dtype)
            delta = layer.attention(x if beside is None else torch.cat([beside, x], dim=1), step)
            beside = None
            _, x = add_norm(residual, delta, layer.mlp_norm, layer.mlp_epsilon, self._dtype)
            delta = layer.mlp(x)
            self._keep(index, residual, delta, step, features)
        self._keep(FINAL, residual, delta, step, features)
        rows = step.wanted[:wanted]
        if self._head is None:
            return residual.new_empty(len(rows), 0)
        if self._norm is None:
            x = (residual[rows] + delta[rows].float()).to(self._dtype)
        else:
            x = norm_wanted(residual, delta, rows, self._norm, self._epsilon, self._dtype)
        return gemm.linear(x, self._head, out_dtype=torch.float32, out=logits)

    def _keep(
        self, place: Tap, residual: torch.Tensor, delta: torch.Tensor, step: Step, features: torch.Tensor | None
    ) -> None:
        """Residual + delta go to the columns of this tap, if it is one."""
        if features is None or place not in self._taps:
            return
        width = self._network.hidden_size
        out = features[:, self._taps.index(place) * width :]
        if place == FINAL:
            tap(residual, delta, step.feature_rows, out, self._norm, self._epsilon)
        else:
            tap(residual, delta, step.feature_rows, out)

    @torch.inference_mode()
    def copy_page(self, source: int, target: int) -> None:
        self._pages.copy(source, target)

    @torch.inference_mode()
    def move(self, slots: Sequence[tuple[int, int]]) -> None:
        if slots:
            pairs = torch.tensor(slots, dtype=torch.int64, pin_memory=self._device.type == "cuda")
            self._pages.move(*pairs.to(self._device, non_blocking=True).unbind(1))


def _can_run(device: torch.device) -> str:
    """Where the kernels run, for people. Raises `ModelError`."""
    try:
        return dispatch.choose(device, "fused").why.removeprefix("Triton ").removesuffix(", as asked")
    except dispatch.CannotRun as error:
        raise ModelError(str(error), "use executor compiled or plain") from error
