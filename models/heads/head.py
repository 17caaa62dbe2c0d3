"""A drafter's network and how it hangs together with the target model's. Values only; no torch.

    target model ─▶ features (taps) ─▶ combine ─▶ hidden ┐
                                                         ├─▶ network ─▶ logits of the next draft token
                                     the token behind it ┘      │
                                                                └─▶ `follows`: hidden of the pass after it

A draft model is a network without an entry: it reads tokens alone, and `taps` are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from models.spec import Linear, Network
from models.taps import Tap


@dataclass(frozen=True, slots=True)
class Mask:
    """What rows of a draft read whose token and hidden value aren't known yet."""

    token: int
    # The tensor [1, width of the taps] in place of the target's features; "": rows come without hidden values.
    features: str = ""
    # The longest draft that it was trained for; 0: not said.
    block: int = 0
    # Whether the row of the text's last token gives the first draft token; else the first mask does.
    by_last_token: bool = True


@dataclass(frozen=True, slots=True)
class Markov:
    """What is added to the logits behind a token: linear(row of the token)."""

    table: str  # tensor [vocab_size of the network, linear.inputs]
    linear: Linear


@dataclass(frozen=True, slots=True)
class Head:
    network: Network
    # What it reads of the target model, in this order.
    taps: tuple[Tap, ...] = ()
    # From the values of the taps side by side to `hidden`; None: they are `hidden`.
    combine: Linear | None = None
    # The value of its own that is `hidden` of the next pass.
    follows: Tap | None = None
    # The int64 tensor of offsets from its token ids to the target's; "": it has the target's ids.
    id_offsets: str = ""
    # Its tensors that are the target's: names there.
    shared: Mapping[str, str] = field(default_factory=dict)
    # For a head whose whole draft is one pass, over rows of this mask; it has no `follows`.
    mask: Mask | None = None
    markov: Markov | None = None
    # Blocks that draft the tokens after its own, each from what the one before it made.
    more: tuple[Head, ...] = ()

    @property
    def output(self) -> Linear:
        """Of its logits."""
        return self.network.head
