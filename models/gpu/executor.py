"""GpuExecutor: a network as Triton kernels. Steps of few rows are replayed as CUDA graphs, larger ones run as they are.

    embed, then per layer:  add+norm  qkv  norm+rotate+store  attend  output  add+norm  silu(gate)·up  down
    or with a delta net:    add+norm  mixed  delta rule  keep rows  norm+gate  output  add+norm  silu(gate)·up  down
    then:                   add+norm of the wanted rows, head

each a kernel (coded linears leave the activation to one more); and behind each layer that is a tap, residual + delta to
the features. Where a linear's K is cut in ranges, the kernel behind it adds them as it reads.

The residual stream is float32, what linears read has the dtype of the options, logits are float32 and stay on the
device. Within a step nothing waits for the device: inputs travel with one copy from pinned memory.

Where there is no GPU, the same runs in Triton's interpreter on device "cpu", for tests alone. Graphs are checked there,
not replayed (kernels/interpreted_device.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from kernels import interpreter
from kernels.device import device_of
from kernels.gemm import fused as gemm
from kernels.gemm.ending import whole
from kernels.gemm.ranges import Product
from kernels.launch import computes, listed, only_compiling
from kernels.norm_rope_act.fused import add_norm, embed, feed, norm, norm_wanted, tap
from kernels.paged_attention.plan import Sizes
from models.batch import Batch, Stretch, make_batch
from models.executor import Options, Output, PageTensor
from models.gpu.attention import GpuAttention
from models.gpu.can_run import can_run
from models.gpu.chain import Chain
from models.gpu.delta_net import GpuDeltaNet
from models.gpu.entry import GpuEntry, add_norm_or_cast
from models.gpu.graphs import FEW, ROOM, Graphs, GraphSizes, choose_buckets, row_bytes
from models.gpu.inputs import Step, StepInputs
from models.gpu.latent_attention import GpuLatentAttention
from models.gpu.mlp import GpuExperts, GpuMlp
from models.gpu.pages import GpuPages
from models.gpu.place import DTYPES, Place, kept_dtype
from models.gpu.scratch import Scratch
from models.group import Group
from models.parameters import parameter_count
from models.projection import torch_projection
from models.sources import ModelError
from models.spec import Attention, DeltaNet, Experts, LatentAttention, Layer, Mlp, Network, Norm
from models.states import States
from models.taps import FINAL, Tap, check_taps
from models.weights import Weights, embedding_of

_ATTENTION: dict[type, Any] = {Attention: GpuAttention, LatentAttention: GpuLatentAttention, DeltaNet: GpuDeltaNet}
_MLP: dict[type, Any] = {Mlp: GpuMlp, Experts: GpuExperts}
MAX_ROWS = 2048
# Kernels follow the number of rows in a few steps, all of which lie at powers of two (tiles, blocks, ranges).
PREPARED_ROWS = tuple(1 << power for power in range(MAX_ROWS.bit_length()))
# Partial results of attention that there is memory for: how many positions of long contexts, times rows, run apart.
APART = 1024 * 512


@dataclass(slots=True)
class _GpuLayer:
    attention_norm: torch.Tensor | None  # [H] float32
    attention_epsilon: float
    attention: Any
    mlp_norm: torch.Tensor
    mlp_epsilon: float
    mlp: Any
    # Of what is added: weight and epsilon.
    attention_end: tuple[torch.Tensor, float] | None
    mlp_end: tuple[torch.Tensor, float] | None


class GpuExecutor:
    """models/executor.py's Executor, its Chains, and Fed."""

    max_rows = MAX_ROWS
    branches = True

    def __init__(
        self, network: Network, weights: Weights, options: Options, device: str = "", graphs: bool = True
    ) -> None:
        """`device` "": the GPU, or the interpreter's where that is in use."""
        if why := self.why_not(network, options.dtype):
            raise ModelError(f"dtype is {options.dtype}", why)
        check_taps(options.taps, len(network.layers))
        self._device = torch.device(device or ("cpu" if interpreter.in_use() else "cuda"))
        self._where = "listed" if listed() else can_run(self._device)
        self._network, self._dtype, self._taps = network, DTYPES[options.dtype], options.taps
        self._page_tokens = options.page_tokens
        self.strict, self.parameters = options.strict, parameter_count(network)
        place = Place(weights, options, self._device)
        self._on = device_of(self._device)
        self._take_weights(place)
        self._group = options.group
        # A graph would hold the exchange with the other ranks, too, which has not been run on GPUs.
        self._make_memory(place, self._buckets(options) if graphs and self._group is None else ())
        self._graphs: Graphs | None = None
        if self._fixed_rows:
            self._small.empty(self._fixed_rows)
            self._graphs = Graphs(self._run_fixed, self._taken, self._on, FEW)
        # Not of other ranks' tokens; and a state would have followed a token that the text doesn't have.
        self.feeds = self._group is None and self._entry is None and not network.recurrent
        # The inputs of a chain's pass that is too large for a graph.
        self._following: Step | None = None
        # How many steps ran which way: as a "graph", or "eager" because no graph was large enough.
        self.steps: Counter[str] = Counter()
        self.path = self._told()
        self.computed_by = f"Triton {self._where}{', strict' if self.strict else ''}"

    projection = staticmethod(torch_projection)

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def replayed_logits(self) -> tuple[torch.Tensor, tuple[int, ...]]:
        """Where graphs leave the logits of their steps, and the numbers of rows that there are graphs for."""
        return self._logits, self._taken

    @staticmethod
    def why_not(network: Network, dtype: str) -> str:
        """Why the network can't be run in this dtype, or ""."""
        return "" if dtype in DTYPES else f"the GPU path computes in {', '.join(DTYPES)}"

    @staticmethod
    def page_bytes(network: Network, options: Options) -> int:
        """Bytes that one page takes in all layers."""
        shapes = (_ATTENTION[type(one)].page_shape(one, options) for one in network.paged)
        return sum(torch.Size(shape).numel() for shape in shapes) * kept_dtype(options).itemsize

    # Loading ------------------------------------------------------------------------------------------

    def _take_weights(self, place: Place) -> None:
        network = self._network
        table = embedding_of(network, place.weights)
        self._embedding = table.to(self._device).contiguous()
        self._layers = [self._layer(layer, place) for layer in network.layers]
        self._entry = GpuEntry(network.entry, place) if network.entry else None
        self._norm = place.norm(network.norm) if network.norm else None
        self._epsilon = network.norm.epsilon if network.norm else 0.0
        self._context = _end_norm(network.context, place)
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
            attention_end=_end_norm(spec.attention_end_norm, place),
            mlp_end=_end_norm(spec.mlp_end_norm, place),
        )

    def _buckets(self, options: Options) -> tuple[int, ...]:
        width = -(-options.max_context // options.page_tokens)
        room = ROOM
        if self._device.type == "cuda":
            # Pages come after this: they have their own share.
            room = min(room, torch.cuda.mem_get_info(self._device)[0] // 2)
        return choose_buckets(options.graph_rows, row_bytes(self._network, len(options.taps), width), room)

    def _make_memory(self, place: Place, buckets: tuple[int, ...]) -> None:
        options, specs = place.options, self._network.paged
        own = [layer.attention for layer in self._layers]
        paged = [one for one in own if not isinstance(one, GpuDeltaNet)]
        shapes = [_ATTENTION[type(spec)].page_shape(spec, options) for spec in specs]
        heads = [spec.all_kv_heads if isinstance(spec, Attention) else 0 for spec in specs]
        self._pages = GpuPages(shapes, heads, options.pages + options.branch_pages, kept_dtype(options), self._device)
        kinds: list[Sizes] = []
        sizes = [type(one).sizes(spec, place) for spec, one in zip(specs, paged, strict=True)]
        slots = max((APART // min(needed.split, 512) for needed in sizes), default=0)
        scratch = Scratch(MAX_ROWS, slots, self._dtype, self._device)
        for index, one in enumerate(paged):
            needed = replace(sizes[index], slots=slots)
            if needed not in kinds:
                kinds.append(needed)
            one.own(self._pages.of_layer[index], kinds.index(needed), scratch)
        for one in own:
            if isinstance(one, GpuDeltaNet):
                one.share(scratch)
        self._states = States(options.states, options.longest_draft) if self._network.recurrent else None
        width = -(-options.max_context // options.page_tokens)
        make = partial(
            StepInputs, kinds=kinds, page_tokens=options.page_tokens, width_limit=width, device=self._on,
            branch_pages=options.branch_pages, blocks=self._network.context is not None, states=self._states,
        )  # fmt: skip
        # Small steps read from fixed addresses, and send little.
        self._taken, self._fixed_rows = buckets, max(buckets, default=0)
        self._small, self._large = make(self._fixed_rows, fixed=True), make(MAX_ROWS, fixed=False)
        shape = (self._fixed_rows, self._network.head.outputs)
        self._logits = torch.empty(shape, dtype=torch.float32, device=self._device)
        self._features = self._empty_features(self._fixed_rows)
        self._final = self._empty_final(self._fixed_rows)
        # Of a network with an entry: where a graph finds what the rows come with.
        shape = (self._fixed_rows, self._network.hidden_size)
        self._hidden = torch.zeros(shape, device=self._device) if self._entry else None
        # Two words for each slot of a pair.
        self._moves = self._on.stage(4 * MAX_ROWS)

    def _told(self) -> str:
        linears = Counter(linear.how for layer in self._layers for part in (layer.attention, layer.mlp)
                          for linear in part.linears)  # fmt: skip
        ways = ", ".join(f"{count} linears {how}" for how, count in linears.items())
        graphs = f"CUDA graphs up to {self._fixed_rows} rows" if self._graphs else "no CUDA graphs"
        return f"Triton {self._where}, {graphs}, {ways}{', strict' if self.strict else ''}"

    # Running ------------------------------------------------------------------------------------------

    def forward_fed(self, batch: Batch, given: torch.Tensor, fed: int) -> Output:
        assert self.feeds
        return self.forward(batch, given=given, fed=fed)

    @torch.inference_mode()
    def forward(
        self, batch: Batch, hidden: torch.Tensor | None = None, given: torch.Tensor | None = None, fed: int = 0
    ) -> Output:
        """`given`, `fed`: as in `forward_fed`."""
        rows, wanted = len(batch.tokens), len(batch.wanted)
        assert 1 <= rows <= self.max_rows and (hidden is None) == (self._entry is None)
        if self._graphs and (sizes := self._graphs.sizes_of(rows, wanted)):
            self.steps["graph"] += 1
            self._begin(self._small.put(batch, sizes.rows), given, fed)
            if hidden is not None and self._hidden is not None:
                self._hidden[:rows].copy_(hidden)
            # With the head of all rows that it has.
            self._graphs.replay(sizes)
            features = None if self._features is None else self._features[:rows]
            final = None if self._final is None else self._final[:wanted]
            return Output(self._logits[: batch.with_logits], features, final)
        self.steps["eager"] += 1
        step, features = self._large.put(batch, rows), self._empty_features(rows)
        self._begin(step, given, fed)
        entered = None if hidden is None else hidden.to(self._device, torch.float32)
        final = self._empty_final(wanted)
        logits = self._run(step, wanted, features, entered, final=final, with_logits=batch.with_logits)
        return Output(logits, features, final)

    @torch.inference_mode()
    def prepare(self) -> None:
        """Compile every kernel that a step without a graph can need; nothing is computed. Graphs have theirs."""
        # Preparing more would only need memory for logits.
        most_wanted = gemm.rows_with_all_kernels(self._network.head.outputs)
        with only_compiling():
            for rows in PREPARED_ROWS:
                wanted = min(rows, most_wanted)
                rest = [Stretch([0], 0, [0], 1)] * (rows - wanted)
                batch = make_batch([Stretch([0], 0, [0], 0)] * wanted + rest, self._page_tokens)
                hidden = torch.zeros(rows, self._network.hidden_size, device=self._device) if self._entry else None
                step, features = self._large.put(batch, rows), self._empty_features(rows)
                self._run(step, wanted, features, hidden)
                if self.feeds:
                    feed(step.tokens, step.tokens.clone(), self._network.vocab_size)
                if self._context is not None:
                    self._store(step, torch.zeros(rows, self._network.hidden_size, device=self._device))

    @torch.inference_mode()
    def store(self, batch: Batch, hidden: torch.Tensor) -> None:
        rows = len(batch.tokens)
        assert 1 <= rows <= self.max_rows and len(hidden) == rows
        self._store(self._large.put(batch, rows), hidden.to(self._device, torch.float32))

    def _store(self, step: Step, hidden: torch.Tensor) -> None:
        assert self._context is not None
        _, x = add_norm(hidden.contiguous(), None, *self._context, self._dtype)
        for layer in self._layers:
            layer.attention.store(x, step)

    # Chains of a drafter's passes ---------------------------------------------------------------------

    @torch.inference_mode()
    def prepare_chain(self, ids: torch.Tensor | None) -> None:
        hidden_size = self._network.hidden_size if self._entry else 0
        self._chain = Chain(self._follow, MAX_ROWS, hidden_size, ids, self._device)
        run = self._chain.run
        self._chain_graphs = Graphs(lambda sizes: run(sizes.rows), self._taken, self._on) if self._graphs else None

    def start_chain(self, logits: torch.Tensor, hidden: torch.Tensor | None) -> None:
        self._chain.start(logits, hidden)

    @torch.inference_mode()
    def follow_chain(self, batch: Batch) -> None:
        rows = len(batch.tokens)
        if self._chain_graphs and (sizes := self._chain_graphs.sizes_of(rows, rows)):
            self.steps["graph"] += 1
            self._small.put(batch, sizes.rows)
            self._chain_graphs.replay(sizes)
        else:
            self.steps["eager"] += 1
            self._following = self._large.put(batch, rows)
            self._chain.run(rows)

    def fetch_chain(self, passes: int, rows: int) -> list[list[tuple[int, float]]]:
        return self._chain.fetched(passes, rows)

    def _follow(
        self, rows: int, tokens: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        fixed = rows <= self._fixed_rows
        step = self._small.fixed_step(rows) if fixed else self._following
        assert step is not None
        step.tokens.copy_(tokens)
        features = self._features if fixed else self._empty_features(rows)
        logits = self._run(step, rows, features, hidden, self._logits[:rows] if fixed else None)
        return logits, None if features is None else features[:rows]

    def _begin(self, step: Step, given: torch.Tensor | None, fed: int) -> None:
        """Before the step, and outside of its graph."""
        self._fork(step)
        if given is not None:
            feed(step.tokens[:fed], given, self._network.vocab_size)

    def _fork(self, step: Step) -> None:
        """Most steps have no trees."""
        if len(step.forks[0]):
            self._pages.fork(*step.forks)

    def _run_fixed(self, sizes: GraphSizes) -> None:
        rows, wanted = sizes
        with torch.inference_mode():
            given = None if self._hidden is None else self._hidden[:rows]
            final = None if self._final is None else self._final[:wanted]
            step = self._small.fixed_step(rows)
            self._run(step, wanted, self._features, given, self._logits[:wanted], final)

    def _empty_features(self, rows: int) -> torch.Tensor | None:
        if not self._taps:
            return None
        width = len(self._taps) * self._network.hidden_size
        return torch.empty(rows, width, dtype=self._dtype, device=self._device)

    def _empty_final(self, rows: int) -> torch.Tensor | None:
        if self._head is None:
            return None
        return torch.empty(rows, self._network.hidden_size, dtype=self._dtype, device=self._device)

    def _run(
        self,
        step: Step,
        wanted: int,
        features: torch.Tensor | None,
        hidden: torch.Tensor | None,
        logits: torch.Tensor | None = None,
        final: torch.Tensor | None = None,
        with_logits: int | None = None,
    ) -> torch.Tensor:
        """Logits of the wanted rows, or of the first `with_logits` of them, written to `logits` if that is given, as
        what the head reads is to `final`."""
        residual, beside = self._embedded(step.tokens), None
        delta: Product | None = None
        if self._entry is not None and hidden is not None:
            residual, beside = self._entry(residual, hidden[step.feature_rows])
        for index, layer in enumerate(self._layers):
            x = add_norm_or_cast(residual, delta, layer.attention_norm, layer.attention_epsilon, self._dtype)
            delta = self._summed(layer.attention(x if beside is None else torch.cat([beside, x], dim=1), step))
            delta, beside = _ended(delta, layer.attention_end), None
            _, x = add_norm(residual, delta, layer.mlp_norm, layer.mlp_epsilon, self._dtype)
            delta = _ended(self._summed(layer.mlp(x)), layer.mlp_end)
            self._keep(index, residual, delta, step, features)
        self._keep(FINAL, residual, delta, step, features)
        rows = step.wanted[:wanted]
        if self._head is None:
            return residual.new_empty(len(rows), 0)
        if self._norm is None:
            x = (residual[rows] + whole(delta)[rows].float()).to(self._dtype)
            x = x if final is None else final.copy_(x)
        else:
            x = norm_wanted(residual, delta, rows, self._norm, self._epsilon, self._dtype, final)
        if with_logits is not None:
            x = x[:with_logits]
        own = gemm.linear(x, self._head, out_dtype=torch.float32, out=logits)
        return own if self._group is None else self._side_by_side(self._group, own)

    # With other ranks ---------------------------------------------------------------------------------

    def _summed(self, delta: Product) -> Product:
        return delta if self._group is None or not computes() else self._group.sum(whole(delta))

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """A rank has some tokens' rows, and zeros for the others."""
        cut, scale = self._network.cut, self._network.embedding_scale
        if cut is None:
            rows = embed(tokens, self._embedding)
            return rows if scale == 1.0 else rows.mul_(scale)
        own = tokens - cut.first
        inside = (own >= 0) & (own < len(self._embedding))
        found = embed(own.clamp(0, len(self._embedding) - 1), self._embedding)
        return whole(self._summed(found * (inside[:, None] * scale)))

    def _side_by_side(self, group: Group, own: torch.Tensor) -> torch.Tensor:
        network = self._network
        if not computes():
            return own.new_empty(len(own), network.vocab_size)
        filled = torch.nn.functional.pad(own, (0, network.share - own.shape[1]))
        return group.side_by_side(filled, network.vocab_size)

    def _keep(
        self, place: Tap, residual: torch.Tensor, delta: Product, step: Step, features: torch.Tensor | None
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
    def copy_state(self, source: int, target: int) -> None:
        assert self._states is not None
        self._states.copy(source, target)
        for layer in self._layers:
            if isinstance(layer.attention, GpuDeltaNet):
                layer.attention.copy_state(source, target)

    def page_memory(self) -> Sequence[PageTensor]:
        return self._pages.by_page()

    @torch.inference_mode()
    def move(self, slots: Sequence[tuple[int, int]]) -> None:
        if slots:
            self._moves.wait()
            words = 4 * len(slots)
            self._moves.numbers[:words].view(np.int64).reshape(-1, 2)[:] = slots
            self._moves.send(words)
            self._pages.move(*self._moves.there[:words].view(torch.int64).view(-1, 2).unbind(1))


def _end_norm(spec: Norm | None, place: Place) -> tuple[torch.Tensor, float] | None:
    return None if spec is None else (place.norm(spec), spec.epsilon)


def _ended(delta: Product, end: tuple[torch.Tensor, float] | None) -> Product:
    """What a layer's part gives, normed where the layer says so."""
    return delta if end is None else norm(delta, *end)
