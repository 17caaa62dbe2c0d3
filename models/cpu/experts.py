"""A mixture of experts' ops: router, routing, experts (kernels/moe/cpu.py), and the MLP that all rows share.

    normed (widened to float32) -router-> logits -route-> routed;   normed, routed -experts(+)-> residual
    normed -shared(+)-> residual
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.cpu_program import Op
from kernels.linear.cpu import STORE, Rows, linear
from kernels.linear.packing import ORDINARY, PackedWeight, pack, pack_mxfp4
from kernels.moe.cpu import MOST_EXPERTS, Routed, expert_ops, route_ops, widen_op
from models.cpu import dense
from models.cpu.builder import ModelBuilder
from models.spec import ExpertRouter, Experts, Linear, Norm


def why_not(experts: Experts, end: Norm | None) -> str:
    """Why the compiled loops lack these, or ""."""
    if experts.router.experts > MOST_EXPERTS:
        return f"the compiled loops choose among at most {MOST_EXPERTS} experts"
    if end is not None:
        return "experts with a norm behind them aren't among the compiled loops"
    if experts.router.linear.inputs % 4:
        return f"the compiled loops gather rows of a multiple of 4 numbers, not of {experts.router.linear.inputs}"
    return ""


def experts(builder: ModelBuilder, mlp: Experts) -> list[Op]:
    """From the normed rows to the residual."""
    router, routed = mlp.router, builder.routed(mlp)
    plain, quantized = builder.normed
    source = quantized or plain
    rows = Rows(source.address, plain.width * source.dtype.itemsize, source.rows.scales)
    buffers = builder.places(router.top_k, mlp.experts[0].down.inputs)
    return [
        *_route(builder, router, routed),
        *expert_ops(
            _pack(builder, [one.gate_up for one in mlp.experts], gated=True),
            _pack(builder, [one.down for one in mlp.experts]),
            routed, rows, buffers, builder.residual.address, threads=builder.threads,
            activation=mlp.experts[0].activation, limit=mlp.experts[0].limit, use=builder.use,
        ),
        *(dense.mlp(builder, mlp.shared, share=mlp.shared_gate) if mlp.shared else ()),
    ]  # fmt: skip


def _route(builder: ModelBuilder, router: ExpertRouter, routed: Routed) -> list[Op]:
    """In float32 whatever the model's dtype: a rounded score changes which experts a row gets."""
    plain, hidden = builder.normed[0], router.linear.inputs
    ops, address = [], plain.address
    if plain.dtype == torch.bfloat16:
        address = builder.shared("widened", hidden, torch.float32).address
        ops = [widen_op(plain.rows, hidden, address)]
    stored = builder.weights.linear(router.linear)
    weight = pack(stored.dense(torch.float32), "float32", stored.bias(torch.float32), memory=builder.memory)
    logits = builder.shared("router", router.experts, torch.float32)
    bias = None
    if router.bias:
        bias = builder.weights.take(router.bias, *(router.bias_shape or (router.experts,))).float().flatten()
    threads = builder.threads
    ops.append(linear(weight, Rows(address, hidden * 4), logits.rows, torch.float32, STORE, threads=threads))
    return ops + route_ops(
        logits.address, bias, routed, among=router.experts,
        scoring=router.scoring, normalize=router.normalize, epsilon=router.epsilon,
        normalize_floor=router.normalize_floor, scale=router.scale, groups=router.groups,
        top_groups=router.top_groups, group_by_best=router.group_by_best,
    )  # fmt: skip


def _pack(builder: ModelBuilder, linears: Sequence[Linear], gated: bool = False) -> PackedWeight:
    biases = [builder.weights.linear(one).bias(torch.float32) for one in linears if one.bias] or None
    coded = _coded(builder, linears) if builder.kind == "bfloat16" else None
    if coded is not None:
        return pack_mxfp4(*coded, biases, gated, builder.memory)  # type: ignore[arg-type]
    sources = [builder.source(one) for one in linears]
    scales = [scale for _, scale in sources]
    return pack(
        [weight for weight, _ in sources],
        builder.kind,
        biases,  # type: ignore[arg-type]
        scales=None if scales[0] is None else scales,
        gated=gated,
        memory=builder.memory,
    )


def _coded(
    builder: ModelBuilder, linears: Sequence[Linear]
) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:  # fmt: skip
    """Codes and scales of all of them, where they are in mxfp4, with no scale at the ends of what bfloat16 can say."""
    codes, scales = [], []
    for one in linears:
        parts = builder.weights.linear(one).parts
        if any(part.kind != "mxfp4" for part in parts):
            return None
        codes.append(torch.cat([part.codes for part in parts]))
        scales.append(torch.cat([part.scales for part in parts if part.scales is not None]))
        if bool(((scales[-1] < ORDINARY.start) | (scales[-1] >= ORDINARY.stop)).any()):
            return None
    return codes, scales
