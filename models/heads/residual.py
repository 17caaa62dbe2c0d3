"""Medusa and Hydra: one small network for each of the next tokens, without attention.

    Medusa    head i:  hidden ─▶ blocks ─▶ linear ─▶ token i
    Hydra     head i:  [hidden, embedding of the text's last token, embeddings of tokens 1 .. i - 1] ─▶ the same
    Hydra++            hidden ─▶ prefix: a layer over the whole text ─▶ hidden of Hydra's heads

A block is x = skip(x) + silu(linear(x)); skip is a linear where the block makes x narrower.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from models.config import Fields
from models.errors import ModelError
from models.heads.fields import FOR_ANOTHER
from models.heads.head import Head
from models.spec import Linear, Network, Part
from models.taps import FINAL, Tap


@dataclass(frozen=True, slots=True)
class ResidualBlock:
    linear: Linear
    skip: Linear | None = None


@dataclass(frozen=True, slots=True)
class ResidualHead:
    blocks: tuple[ResidualBlock, ...]
    head: Linear


@dataclass(frozen=True, slots=True)
class ResidualHeads:
    taps: ClassVar[tuple[Tap, ...]] = (FINAL,)

    heads: tuple[ResidualHead, ...]
    # Whether a head also reads the tokens before its own.
    reads_tokens: bool
    # The int64 tensor of the target's ids of its tokens; "": the same ids.
    token_ids: str = ""
    # Its tensors that are the target's: names there.
    shared: Mapping[str, str] = field(default_factory=dict)
    # The network whose final values the heads read in place of the target's; it gives no logits.
    prefix: Head | None = None

    @property
    def output(self) -> Linear:
        """Of a head's logits."""
        return self.heads[0].head

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Each once; heads may share them."""
        blocks = (block for head in self.heads for block in head.blocks)
        inner = [one for block in blocks for one in (block.linear, block.skip) if one]
        return tuple(dict.fromkeys([*(head.head for head in self.heads), *inner]))


def shared_head(
    one_head: bool, heads: Sequence[ResidualHead], names: Collection[str], target: Network
) -> dict[str, str]:
    """Where all heads have one linear, and the folder lacks it, it is the target's."""
    (part,), (theirs,) = heads[0].head.parts, target.head.parts
    lacking = one_head and f"{part.name}.weight" not in names
    return {f"{part.name}.weight": f"{theirs.name}.weight"} if lacking else {}


def vocabulary_of(fields: Fields, names: Collection[str], target: Network) -> tuple[int, str]:
    """Its size, and the name of the target's ids of it: "" for the target's own."""
    size = fields.count("truncated_vocab_size", target.vocab_size, limit=1 << 24)
    if size == target.vocab_size:
        return size, ""
    if "token_map" not in names:
        said = f"the head's vocabulary has {size} of {target.vocab_size} tokens, and no token_map"
        raise ModelError(said, FOR_ANOTHER)
    return size, "token_map"


def linear_named(name: str, outputs: int, inputs: int, names: Collection[str]) -> Linear:
    """With a bias if the folder has one."""
    return Linear((Part(name, outputs),), inputs, bias=f"{name}.bias" in names)
