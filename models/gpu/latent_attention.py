"""Multi-head latent attention of a layer on a GPU, absorbed: queries are taken to the latents, not latents to keys.

    x → q [R, heads, nope + rope] ─ nope part · key_up[head] ─┐
    x → latent, key → normed, rotated, kept                   ├→ attend → [R, heads, latent] · value_up[head] → output
                     rope part, rotated ──────────────────────┘
"""

from __future__ import annotations

import torch

from kernels.gemm.ending import whole
from kernels.gemm.fused import linear_by_head
from kernels.gemm.ranges import Product
from kernels.kv_store.fused import rotate_and_store_latent
from kernels.mla_attention.fused import Waiting, attend_planned, sizes
from kernels.norm_rope_act.fused import norm
from kernels.paged_attention.plan import Sizes
from models.executor import Options
from models.gpu.inputs import Step
from models.gpu.linears import GpuLinear, make_linear
from models.gpu.place import Place
from models.gpu.scratch import Scratch
from models.spec import LatentAttention


class GpuLatentAttention:
    def __init__(self, spec: LatentAttention, place: Place) -> None:
        self._spec = spec
        self._q_down = make_linear(spec.q_down, place) if spec.q_down else None
        self._q_norm = place.norm(spec.q_norm) if spec.q_norm else None
        self._q, self._kv_down = make_linear(spec.q, place), make_linear(spec.kv_down, place)
        self._kv_norm = place.norm(spec.kv_norm)
        up = place.dense(spec.kv_up).view(spec.heads, spec.nope_dim + spec.value_dim, spec.latent_dim)
        self._key_up = up[:, : spec.nope_dim].transpose(1, 2).contiguous()  # [heads, latent, nope]
        self._value_up = up[:, spec.nope_dim :].contiguous()  # [heads, value, latent]
        self._output = make_linear(spec.output, place)
        self._cos, self._sin = place.rope(spec.rope)
        down = [self._q_down] if self._q_down else []
        self.linears: list[GpuLinear] = [*down, self._q, self._kv_down, self._output]

    @staticmethod
    def page_shape(spec: LatentAttention, options: Options) -> tuple[int, ...]:
        """Of one page."""
        return 1, options.page_tokens, spec.latent_dim + spec.rope_dim

    @staticmethod
    def sizes(spec: LatentAttention, place: Place) -> Sizes:
        kept = spec.latent_dim + spec.rope_dim
        queries = torch.empty(1, spec.heads, kept, dtype=place.dtype, device=place.device)
        return sizes(queries, spec.latent_dim, 0)

    def own(self, pages: torch.Tensor, kind: int, scratch: Scratch) -> None:
        """pages [1, pages, page_tokens, latent + rope] of this layer; `kind`: which of a step's plans is its."""
        self._latents, self._kind, self._scratch = pages[0], kind, scratch

    def __call__(self, x: torch.Tensor, step: Step) -> Product:
        """x [R, hidden] -> [R, hidden]; latents and rotated keys of all rows go to their slots first."""
        spec, rows = self._spec, step.rows
        q = self._queries(x).view(rows, spec.heads, spec.nope_dim + spec.rope_dim)
        queries = torch.empty(rows, spec.heads, spec.latent_dim + spec.rope_dim, dtype=x.dtype, device=x.device)
        linear_by_head(q[..., : spec.nope_dim], self._key_up, queries[..., : spec.latent_dim])
        rotate_and_store_latent(
            q, self._kv_down.product(x), self._kv_norm, spec.kv_norm.epsilon, self._latents, step.slots, step.positions,
            self._cos, self._sin, queries, spec.rope.interleaved, step.also,
        )  # fmt: skip
        attended = self._scratch.attended(rows, spec.heads * spec.latent_dim).view(rows, spec.heads, spec.latent_dim)
        attend_planned(
            queries, self._latents, step.tables, step.positions, spec.scale, spec.latent_dim, step.plans[self._kind],
            self._scratch.partials(spec.heads, spec.latent_dim),
            self._scratch.kept(("waiting", spec.heads, spec.latent_dim), lambda: self._waiting(queries)), attended,
        )  # fmt: skip
        values = torch.empty(rows, spec.heads, spec.value_dim, dtype=x.dtype, device=x.device)
        linear_by_head(attended, self._value_up, values)
        return self._output.product(values.flatten(1))

    def _queries(self, x: torch.Tensor) -> torch.Tensor:
        if self._q_down is None:
            return self._q(x)
        down = self._q_down.product(x)
        return self._q(norm(down, self._q_norm, self._spec.q_norm.epsilon) if self._spec.q_norm else whole(down))

    def _waiting(self, queries: torch.Tensor) -> Waiting:
        return Waiting.make(queries, self._spec.latent_dim)
