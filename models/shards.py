"""A rank's share of a network: which rows, columns, heads and experts it computes. Values in, values out; no torch.

    qkv, gate·up    rows: heads, columns of the MLP          output, down   the same as columns: summed over the ranks
    experts         whole experts; the router is everybody's
    embedding, head rows of the vocabulary: summed, and put side by side
    norms, latents  everybody's

Query heads are cut by the key heads that they read: three key heads over two ranks are two and one. Where there are
more ranks than key heads, ranks share a key head's queries, and each keeps its keys and values.
"""

from __future__ import annotations

from dataclasses import replace

from models.errors import ModelError
from models.spec import Attention, Cut, Experts, LatentAttention, Layer, Linear, Mlp, Network

# Columns of an MLP are cut at multiples of the largest of these that leaves as much for everyone: codes of 4 bits come
# in groups of 128, or in words of 8.
_STEPS = (128, 64, 32, 16, 8)


def shard(network: Network, rank: int, ranks: int) -> Network:
    """What rank `rank` of `ranks` computes. Raises `ModelError` where there isn't something for everyone."""
    assert 0 <= rank < ranks and network.entry is None
    if ranks == 1:
        return network
    if network.recurrent:
        raise ModelError(f"tensor_parallel_size is {ranks}, and gated delta nets aren't split", "set it to 1")
    share = -(-network.vocab_size // ranks)
    first = rank * share
    rows = min(share, network.vocab_size - first)
    if rows < 1:
        raise _refused("tokens of its vocabulary", network.vocab_size, ranks)
    return replace(
        network,
        layers=tuple(_layer(layer, rank, ranks) for layer in network.layers),
        head=_rows(network.head, [(first, rows)]),
        cut=Cut(first, network.vocab_size),
        share=share,
    )


def _layer(layer: Layer, rank: int, ranks: int) -> Layer:
    attention, mlp = layer.attention, layer.mlp
    cut = _latent_attention if isinstance(attention, LatentAttention) else _attention
    return replace(
        layer,
        attention=cut(attention, rank, ranks),  # type: ignore[arg-type]
        mlp=_experts(mlp, rank, ranks) if isinstance(mlp, Experts) else _mlp(mlp, rank, ranks),
    )


def _attention(one: Attention, rank: int, ranks: int) -> Attention:
    if ranks > one.heads:
        raise _refused("query heads", one.heads, ranks)
    (key, keys), (query, queries) = _heads(one, rank, ranks)
    dim, q, kv = one.head_dim, one.heads * one.head_dim, one.kv_heads * one.head_dim
    assert [part.outputs for part in one.qkv.parts] == [q, kv, kv]
    places = [(query * dim, queries * dim), (key * dim, keys * dim), (key * dim, keys * dim)]
    return replace(
        one,
        heads=queries,
        kv_heads=keys,
        qkv=_rows(one.qkv, places),
        output=_columns(one.output, query * dim, queries * dim),
    )


def _heads(one: Attention, rank: int, ranks: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """First and number of the key heads, and of the query heads, of a rank."""
    group = one.heads // one.kv_heads
    key, keys = key_heads(one.kv_heads, rank, ranks)
    if ranks <= one.kv_heads:
        return (key, keys), (key * group, keys * group)
    first, sharers = part_of(ranks, key, one.kv_heads)
    query, queries = part_of(group, rank - first, sharers)
    return (key, 1), (key * group + query, queries)


def key_heads(heads: int, rank: int, ranks: int) -> tuple[int, int]:
    """First and number of a rank's key heads, of `heads`. Where there are more ranks, neighbours have one together, and
    cut its queries among them."""
    if ranks <= heads:
        return part_of(heads, rank, ranks)
    for key in range(heads):
        first, sharers = part_of(ranks, key, heads)
        if first <= rank < first + sharers:
            return key, 1
    raise AssertionError("every rank has a key head")


def _latent_attention(one: LatentAttention, rank: int, ranks: int) -> LatentAttention:
    if ranks > one.heads:
        raise _refused("heads", one.heads, ranks)
    first, heads = part_of(one.heads, rank, ranks)

    def of_heads(linear: Linear, width: int) -> Linear:
        return _rows(linear, [(first * width, heads * width)])

    return replace(
        one,
        heads=heads,
        q=of_heads(one.q, one.nope_dim + one.rope_dim),
        kv_up=of_heads(one.kv_up, one.nope_dim + one.value_dim),
        output=_columns(one.output, first * one.value_dim, heads * one.value_dim),
    )


def _mlp(one: Mlp, rank: int, ranks: int) -> Mlp:
    wide = one.down.inputs
    step = next((step for step in _STEPS if wide % (step * ranks) == 0), 0)
    step = step or next((step for step in _STEPS if wide % step == 0 and wide // step >= ranks), 1)
    if wide // step < ranks:
        raise _refused("columns of an MLP", wide, ranks)
    first, count = (step * each for each in part_of(wide // step, rank, ranks))
    return replace(one, gate_up=_rows(one.gate_up, [(first, count)] * 2), down=_columns(one.down, first, count))


def _experts(one: Experts, rank: int, ranks: int) -> Experts:
    if ranks > len(one.experts):
        raise _refused("experts", len(one.experts), ranks)
    first, count = part_of(len(one.experts), rank, ranks)
    shared = None if one.shared is None else _mlp(one.shared, rank, ranks)
    return replace(one, experts=one.experts[first : first + count], shared=shared, first=first)


def part_of(count: int, rank: int, ranks: int) -> tuple[int, int]:
    """First and number of a rank's things, of `count`: as many for everyone, and one more for the first ranks."""
    each, more = divmod(count, ranks)
    return rank * each + min(rank, more), each + (rank < more)


def _rows(linear: Linear, places: list[tuple[int, int]]) -> Linear:
    """Some outputs of each part: first and number."""
    parts = tuple(
        replace(part, outputs=count, cut=Cut(first, part.outputs))
        for part, (first, count) in zip(linear.parts, places, strict=True)
    )
    return replace(linear, parts=parts)


def _columns(linear: Linear, first: int, count: int) -> Linear:
    return replace(linear, inputs=count, bias=linear.bias and first == 0, cut=Cut(first, linear.inputs))


def _refused(what: str, count: int, ranks: int) -> ModelError:
    return ModelError(
        f"tensor_parallel_size is {ranks}, and the model has {count} {what} to share out",
        f"set tensor_parallel_size to 1 to {count}",
    )
