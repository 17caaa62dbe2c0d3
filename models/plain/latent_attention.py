"""Multi-head latent attention over pages of latents, in absorbed form. Knows nothing of the rest of the layer."""

from __future__ import annotations

import torch

from kernels.mla_attention.reference import absorb, attend, expand, split_up, store
from models.batch import Batch
from models.executor import Options, PageTensor
from models.plain.attention import kept, sequences
from models.plain.parts import PlainLinear, PlainNorm, dtype_of, rotated, shared_tables
from models.spec import LatentAttention
from models.weights import Weights


class PlainLatentAttention:
    """Owns the pages of one layer."""

    def __init__(self, spec: LatentAttention, weights: Weights, options: Options, device: str) -> None:
        self._spec = spec
        self._q_down = PlainLinear(spec.q_down, weights, options, device) if spec.q_down else None
        self._q_norm = PlainNorm(spec.q_norm, weights, options, device) if spec.q_norm else None
        self._q = PlainLinear(spec.q, weights, options, device)
        self._kv_down = PlainLinear(spec.kv_down, weights, options, device)
        self._kv_norm = PlainNorm(spec.kv_norm, weights, options, device)
        kv_up = PlainLinear(spec.kv_up, weights, options, device).weight
        self._key_up, self._value_up = split_up(kv_up, spec.heads, spec.nope_dim)
        self._output = PlainLinear(spec.output, weights, options, device)
        self._cos, self._sin = shared_tables(spec.rope, options.max_context, device)
        shape = (options.pages + options.branch_pages, options.page_tokens, spec.latent_dim + spec.rope_dim)
        self._latents = torch.empty(shape, dtype=dtype_of(options), device=device)

    @staticmethod
    def page_bytes(spec: LatentAttention, options: Options) -> int:
        return options.page_tokens * (spec.latent_dim + spec.rope_dim) * dtype_of(options).itemsize

    def copy_page(self, source: int, target: int) -> None:
        self._latents[target] = self._latents[source]

    def copy_state(self, source: int, target: int) -> None: ...

    def page_memory(self) -> list[PageTensor]:
        return [PageTensor(self._latents)]

    def move(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        latents = self._latents.flatten(0, 1)
        latents[targets] = latents[sources]

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """x [R, hidden] -> [R, hidden]; latents and rotated keys of all rows go to their slots first."""
        spec = self._spec
        at, tables = (
            torch.from_numpy(array).to(x.device)
            for array in (batch.positions, batch.tables.reshape(-1, batch.table_width))
        )
        rows, slots = kept(batch, x.device)
        starts = torch.tensor([rows.start for rows, _ in sequences(batch)] + [len(at)], dtype=torch.int32)
        latent, key = self._kv_down(x).split([spec.latent_dim, spec.rope_dim], dim=-1)
        made = torch.cat([self._kv_norm(latent), self._turned(key[:, None], at)[:, 0]], dim=-1)
        store(made[rows], self._latents, slots)
        seen = attend(absorb(self._queries(x, at), self._key_up), self._latents, tables, starts, at, spec.scale,
                      spec.latent_dim)  # fmt: skip
        return self._output(expand(seen, self._value_up).to(x.dtype))

    def _queries(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """[R, heads, nope + rope], float32, the last `rope` dimensions rotated."""
        spec = self._spec
        if self._q_down and self._q_norm:
            x = self._q_norm(self._q_down(x))
        q = self._q(x).unflatten(-1, (spec.heads, -1))
        return torch.cat([q[..., : spec.nope_dim].float(), self._turned(q[..., spec.nope_dim :], at)], dim=-1)

    def _turned(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return rotated(x, self._cos[at], self._sin[at], self._spec.rope)
