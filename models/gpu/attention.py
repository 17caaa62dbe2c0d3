"""Attention of a layer on a GPU: its linears, and the kernels between them. Pages are given; plans are the step's."""

from __future__ import annotations

import torch

from kernels.gemm.ending import whole
from kernels.gemm.ranges import Product
from kernels.kv_store.fused import rotate_and_store
from kernels.norm_rope_act.fused import sigmoid_gated
from kernels.paged_attention.fused import LOG2_E, attend_planned, sizes
from kernels.paged_attention.plan import Sizes
from models.executor import Options
from models.gpu.inputs import Step
from models.gpu.linears import GpuLinear, make_linear
from models.gpu.place import Place
from models.gpu.scratch import Scratch
from models.spec import Attention
from models.weights import sinks_of


class GpuAttention:
    def __init__(self, spec: Attention, place: Place) -> None:
        self._spec = spec
        self._qkv, self._output = make_linear(spec.qkv, place), make_linear(spec.output, place)
        self._q_norm = place.norm(spec.q_norm) if spec.q_norm else None
        self._k_norm = place.norm(spec.k_norm) if spec.k_norm else None
        epsilons = {norm.epsilon for norm in (spec.q_norm, spec.k_norm) if norm}
        assert len(epsilons) <= 1
        self._epsilon = epsilons.pop() if epsilons else 0.0
        sinks = sinks_of(spec, place.weights)
        self._sinks = None if sinks is None else (sinks * LOG2_E).to(place.device)
        self._cos, self._sin = place.rope(spec.rope)
        self.linears: list[GpuLinear] = [self._qkv, self._output]

    @staticmethod
    def page_shape(spec: Attention, options: Options) -> tuple[int, ...]:
        """Of one page: keys, then values."""
        return 2, spec.kv_heads, options.page_tokens, spec.head_dim

    @staticmethod
    def sizes(spec: Attention, place: Place) -> Sizes:
        queries = torch.empty(1, spec.heads, spec.head_dim, dtype=place.dtype, device=place.device)
        keys = queries.new_empty(1, spec.kv_heads, place.options.page_tokens, spec.head_dim)
        return sizes(queries, keys, 0, spec.window)

    def own(self, pages: torch.Tensor, kind: int, scratch: Scratch) -> None:
        """pages [2, pages, kv_heads, page_tokens, D] of this layer; `kind`: which of a step's plans is its."""
        self._keys, self._values = pages[0], pages[1]
        self._kind, self._scratch = kind, scratch

    def __call__(self, x: torch.Tensor, step: Step) -> Product:
        """x [R, hidden] -> [R, hidden]; keys and values of all rows go to their slots first."""
        spec, (queries, gates) = self._spec, self.store(x, step)
        attended = self._scratch.attended(step.rows, spec.heads * spec.head_dim)
        attend_planned(
            queries, self._keys, self._values, step.tables, step.last, spec.scale, step.plans[self._kind],
            self._scratch.partials(spec.heads, spec.head_dim), attended.view(queries.shape), spec.window,
            sinks=self._sinks,
        )  # fmt: skip
        return self._output.product(attended if gates is None else sigmoid_gated(attended, gates))

    def store(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Keys and values of the rows, in their slots; the queries, and what their gates are made of, if they have
        some."""
        spec, qkv, gates = self._spec, self._qkv.product(x), None
        if spec.gated:
            qkv, gates = whole(qkv).tensor_split([(spec.heads + 2 * spec.kv_heads) * spec.head_dim], dim=1)
        queries = torch.empty(step.rows, spec.heads, spec.head_dim, dtype=x.dtype, device=x.device)
        rotate_and_store(
            qkv, self._keys, self._values, step.slots, step.positions, self._cos, self._sin, queries,
            self._q_norm, self._k_norm, self._epsilon, spec.rope.interleaved, step.also,
        )  # fmt: skip
        return queries, gates
