"""What a network consists of: values that a family's file fills in, and that executors run. No torch.

A family reads config.json and says which parts its layers have and what their tensors are called; it computes
nothing. An executor (models/plain/ in plain torch, models/cpu/ as compiled loops, models/gpu/ as Triton
kernels) runs whatever these values can say, so a family is one file and one line of models/registry.py.

Linears are y = x·Wᵀ + b. Several that read the same input are one `Linear` with several parts, in the order
in which their outputs stand side by side.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a rank's share of an axis begins, and how long the axis is (models/shards.py). What has a cut counts only
    the share: a linear with 32 `inputs` and Cut(64, 128) has columns 64 to 95 of the 128 that are stored."""

    first: int
    whole: int


@dataclass(frozen=True, slots=True)
class Stack:
    """Where an expert's part stands in a tensor with those of `count` experts (models/stacks.py): at `index`, and there
    each `step`th output from `first` on. `whole`: the tensor's outputs, where it is [experts, outputs, inputs] and a
    folder may have a matrix for each expert instead."""

    name: str
    index: int
    count: int
    first: int = 0
    step: int = 1
    whole: int = 0


@dataclass(frozen=True, slots=True)
class Stripes:
    """Where a part's outputs stand in matrix `name`, which has `outputs` of several parts in turns: `wide` neighbours
    from `first` on, and again each `step` further."""

    name: str
    outputs: int
    first: int
    wide: int
    step: int

    @property
    def rows(self) -> list[int]:
        return [begin + row for begin in range(self.first, self.outputs, self.step) for row in range(self.wide)]


@dataclass(frozen=True, slots=True)
class Part:
    """`name`.weight is [outputs, inputs], `name`.bias [outputs], if they aren't in a `stack` or in `stripes`."""

    name: str
    outputs: int
    cut: Cut | None = None  # of the outputs
    stack: Stack | None = None
    stripes: Stripes | None = None


@dataclass(frozen=True, slots=True)
class Linear:
    parts: tuple[Part, ...]
    inputs: int
    bias: bool = False
    # Of the inputs: the outputs are to be summed over the ranks, and the bias is the first rank's alone.
    cut: Cut | None = None

    @property
    def outputs(self) -> int:
        return sum(part.outputs for part in self.parts)


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm: `name`.weight is [width], or with `plus_one` that less one (Gemma)."""

    name: str
    width: int
    epsilon: float
    plus_one: bool = False


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """`kind` is linear, llama3 or yarn; models/layers/rope.py has the formulas."""

    kind: str
    factor: float
    original_context: int = 8192
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    # yarn: cos and sin are multiplied by it (Hugging Face's attention_scaling, worked out by the family).
    attention_factor: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotates the first `width` dimensions of a head. Pairs are (i, i + width/2), or (2i, 2i+1) if interleaved."""

    width: int
    theta: float
    scaling: RopeScaling | None = None
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention. q and k norms are over a head's dimensions, before the rotation."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv: Linear  # q heads, then k heads, then v heads; where `gated`, then a gate for each q head
    output: Linear
    rope: Rope
    scale: float
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    # A row sees the last `window` positions, its own among them; 0: all.
    window: int = 0
    # Tensor [heads] of scores, one a head, that the softmax has beside those of the positions, and that bring no value.
    sinks: str = ""
    # What is attended is multiplied by the sigmoid of the gates.
    gated: bool = False

    @property
    def all_kv_heads(self) -> int:
        """Of all ranks together."""
        cut = self.qkv.parts[-1].cut
        return cut.whole // self.head_dim if cut else self.kv_heads


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): what is kept of a token is one normed latent vector and one rotated
    key that all heads share; k and v of the heads are linear in the latent and need not be made."""

    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    latent_dim: int
    # q straight from the input, or through a low rank: then q_down and q_norm come before it.
    q: Linear  # heads · (nope_dim + rope_dim)
    q_down: Linear | None
    q_norm: Norm | None
    kv_down: Linear  # latent_dim + rope_dim
    kv_norm: Norm  # over the latent
    kv_up: Linear  # latent -> heads · (nope_dim + value_dim)
    output: Linear
    rope: Rope
    scale: float


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated delta net (Qwen3-Next): in place of keys and values a state of fixed size, a matrix [key_dim, value_dim]
    for each value head, that every row of a text changes in turn (kernels/delta_rule/reference.py)."""

    key_heads: int
    value_heads: int  # a multiple of key_heads: each key head serves as many
    key_dim: int
    value_dim: int
    # q heads, k heads, v heads; then of each value head b and a; then z, a gate as wide as v.
    mixed: Linear
    # q, k and v of a row are a convolution over those of the last `taps` rows: tensor [channels, 1, taps].
    convolution: str
    taps: int
    decay: str  # tensor [value_heads]: the logarithm of how fast a state fades
    decay_bias: str  # tensor [value_heads], added to a
    norm: Norm  # over value_dim, before the gate z
    output: Linear

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Those that are no linear and no norm, with their shapes."""
        heads = (self.value_heads,)
        return {self.convolution: (self.channels, 1, self.taps), self.decay: heads, self.decay_bias: heads}

    def rows_kept(self, longest_draft: int) -> int:
        """How many rows of a sequence are kept: those of a draft, and those that the first of them looks back to."""
        return longest_draft + self.taps - 1

    @property
    def kept(self) -> int:
        """Numbers of a row that decide how it changes the state: q, k, v, b and a."""
        return self.channels + 2 * self.value_heads


@dataclass(frozen=True, slots=True)
class Mlp:
    """down(f(gate) · up). `activation` f: silu, or gelu_tanh (GELU by the formula with tanh).

    clamped_swiglu (gpt-oss): down(gate · sigmoid(1.702 · gate) · (up + 1)), gate at most `limit`, up within ±limit.
    """

    gate_up: Linear
    down: Linear
    activation: str = "silu"
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class ExpertRouter:
    """Which experts a row goes to, and with what weights.

    scores = softmax or sigmoid of the linear's float32 output; chosen are the top_k of scores (+ correction bias),
    within the best `top_groups` of `groups` groups (a group counts as the sum of its two best, or its best where
    `group_by_best`); weights are the chosen scores without the bias, normalized if asked (+ `epsilon` below the line,
    or floored at it where `normalize_floor`), times `scale`.
    """

    linear: Linear
    experts: int
    top_k: int
    scoring: str  # softmax or sigmoid
    bias: str = ""  # tensor of the correction bias; "": none
    bias_shape: tuple[int, ...] = ()  # as it is stored; (): [experts]
    normalize: bool = True
    epsilon: float = 0.0
    normalize_floor: bool = False
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_by_best: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """The router chooses among all; `experts` are those from `first` on."""

    router: ExpertRouter
    experts: tuple[Mlp, ...]
    shared: Mlp | None = None
    first: int = 0
    # One output, whose sigmoid the shared MLP's output is multiplied with; None: it is added as it is.
    shared_gate: Linear | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: Norm | None  # None: attention reads the residual stream itself
    attention: Attention | LatentAttention | DeltaNet
    mlp_norm: Norm
    mlp: Mlp | Experts
    # Of what the attention or the MLP gives, before it is added.
    attention_end_norm: Norm | None = None
    mlp_end_norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class Fused:
    """x = linear([norm(embedding), norm(hidden)]), where each row comes with its `hidden`: how rows enter a network of
    MTP or EAGLE."""

    linear: Linear  # 2 · hidden_size -> hidden_size
    embedding_norm: Norm | None = None
    hidden_norm: Norm | None = None
    # The linear reads [norm(hidden), norm(embedding)].
    hidden_first: bool = False


@dataclass(frozen=True, slots=True)
class Beside:
    """x = norm(hidden), or hidden; the first layer's attention reads [norm(embedding), attention_norm(x)]: how rows
    enter a network of EAGLE-3."""

    embedding_norm: Norm
    hidden_norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """x = hidden, whatever the token: how rows enter the layer that Hydra's heads read."""


Entry = Fused | Beside | Given


@dataclass(frozen=True, slots=True)
class Network:
    """A whole decoder: x = embed; x += attention(norm x); x += mlp(norm x), for every layer; head(norm x).

    What is added may have been normed (Layer.attention_end_norm), and the embedding multiplied.

    With an `entry` it is a drafter's: its rows come with values that the target model, or it itself, computed before.
    """

    vocab_size: int
    hidden_size: int
    embedding: str  # tensor [vocab_size, hidden_size]
    layers: tuple[Layer, ...]
    norm: Norm | None
    # Tied: its part is named like the embedding's, without .weight. A drafter's may have fewer outputs than vocab_size,
    # or no part: then logits are [W, 0].
    head: Linear
    max_context: int
    eos_token_ids: tuple[int, ...]
    stored_dtype: str
    entry: Entry | None = None
    # What rows of the embedding are multiplied with as they are looked up; a head tied to it reads them as stored.
    embedding_scale: float = 1.0
    # Rows of the embedding, and outputs of the head, that a rank has: from cut.first on, at most `share`.
    cut: Cut | None = None
    share: int = 0
    # Of a drafter whose text is values of the target model (DFlash): every layer makes keys and values of norm(value).
    context: Norm | None = None

    @property
    def paged(self) -> list[Attention | LatentAttention]:
        """Of the layers that have pages."""
        return [layer.attention for layer in self.layers if not isinstance(layer.attention, DeltaNet)]

    @property
    def recurrent(self) -> bool:
        """Whether a sequence has a state beside its pages."""
        return len(self.paged) < len(self.layers)

    @property
    def rows(self) -> int:
        """Of the embedding."""
        return self.vocab_size if self.cut is None else min(self.share, self.cut.whole - self.cut.first)
