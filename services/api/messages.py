"""Every message between the services, in the order in which a request meets them.

This file is the table of contents of the system. A message is a frozen struct; its kind on the wire is the
struct's tag; `KINDS` is the whole table of what may be decoded. Nothing here knows sockets or torch.
Field order is wire order (structs travel as arrays): append, never reorder (docs/protocol.md, "Versions").
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Base of everything that crosses a process boundary as the body of an envelope."""


# 1. streamer -> tokenizer ------------------------------------------------------------------------------


class ChatTurn(Message, frozen=True):
    role: str
    content: str
    name: str | None = None


class Encode(Message, frozen=True):
    """Turn text or a conversation into token ids. Exactly one of `turns` and `text` is set."""

    turns: list[ChatTurn] | None = None
    text: str | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = True
    # A prompt longer than this is answered with an error: the count is known here first.
    max_tokens: int = 0


class Encoded(Message, frozen=True):
    token_ids: list[int]


class EncodeWords(Message, frozen=True):
    """Turn words that are forbidden into token ids."""

    words: list[str]


class EncodedWords(Message, frozen=True):
    """Of each word its spellings: as it begins a text and, where that is another, as it follows a space."""

    spellings: list[list[list[int]]]


class Decode(Message, frozen=True):
    token_ids: list[int]
    skip_special_tokens: bool = True


class Decoded(Message, frozen=True):
    text: str


# 2. streamer -> target, one stream per choice -----------------------------------------------------------


class Sampling(Message, frozen=True):
    """What the next token may be, with one meaning under every strategy. Defaults: greedy, no filter."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    logprobs: int = -1  # -1: none; 0: of the chosen token; k: and of the k most likely
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    bad_words: list[list[int]] = []  # the last id of one may not follow the others
    allowed_token_ids: list[int] = []  # nothing else may be chosen; empty: all may


class Speculation(Message, frozen=True):
    """What the request asks of the proposers; the server's settings bound it."""

    method: str = ""  # "": the server's choice; "naive": no drafts
    num_speculative_tokens: int = -1  # -1: the server's choice
    verify_strategy: str = ""  # "": the server's choice
    accept_policy: str = ""  # "": the server's choice
    # Of the strategies topp and typical; -1: the server's choice.
    max_candidate_len: int = -1
    verify_window: int = -1
    typical_epsilon: float = -1.0
    typical_delta: float = -1.0
    # Corpora drafts may come from; None: all of the request's namespace.
    corpora: list[str] | None = None
    # Whether later requests of the namespace may be drafted from this one's output.
    learn: bool = True
    # Whether tokens that were drafted and don't stand are told, too (Run.rejected).
    return_drafts: bool = False
    # Whether drafts may be trees; None: the server's choice.
    trees: bool | None = None


# Bounds of Generate.priority, on both sides of 0, and of Generate.cache_salt, in characters.
MOST_PRIORITY = 100
LONGEST_SALT = 1024


class Generate(Message, frozen=True):
    """Continue `token_ids`. On a later attempt they hold the tokens already delivered, too: the first
    `prompt_tokens` of them are the prompt, the rest was generated and counts against max_tokens. A lower
    `priority` goes first; computed text is shared only between requests with the same `cache_salt`. What is learned
    from the answer, and what drafts come from, stays within `namespace` (empty: nothing is learned or shared);
    `prediction` is what the caller expects the answer to be like. With `timeline` the answer comes with `spans`."""

    request_id: str
    attempt: int
    token_ids: list[int]
    prompt_tokens: int
    sampling: Sampling
    speculation: Speculation = Speculation()
    priority: int = 0
    cache_salt: str = ""
    namespace: str = ""
    prediction: list[int] = []
    timeline: bool = False


# 3. target -> proposer, one for the whole batch of a step -----------------------------------------------


class ProposeItem(Message, frozen=True):
    """One sequence of the step. `tokens` are those committed since the last Propose this proposer answered
    for it (all of them when `first` is set); `committed` is the length after them. `ahead` are tokens that are being
    verified: the draft is wanted behind them, as if they all stood. namespace, prediction, corpora and learn are the
    request's, and come with `first`."""

    sequence_id: int
    committed: int
    tokens: list[int]
    first: bool = False
    prompt_tokens: int = 0
    budget: int = 0  # drafts longer than this are cut by the target; 0: none is wanted, only follow
    method: str = ""
    ahead: list[int] = []
    namespace: str = ""
    prediction: list[int] = []
    corpora: list[str] | None = None
    learn: bool = True
    trees: bool = False  # the draft may be one


class Ended(Message, frozen=True):
    """A sequence has come to its end: the tokens since the last Propose that was answered, to learn from; all of them
    when `first` is set. The proposer forgets it."""

    sequence_id: int
    committed: int
    tokens: list[int]
    first: bool = False
    prompt_tokens: int = 0
    namespace: str = ""


class Propose(Message, frozen=True):
    step: int
    epoch: int  # the target's: a new one empties what is known of its sequences
    target: str
    items: list[ProposeItem]
    forget: list[int] = []
    ended: list[Ended] = []
    # Of the tokens: what was learned under another one means something else.
    vocabulary: str = ""
    # The drafts are compared with another proposer's, and not used.
    shadow: bool = False
    # Asked once more, for the sake of caches: nothing is counted, and nothing comes of the answer.
    rehearsed: bool = False


class DraftColumns(Message, frozen=True):
    """Drafts for several sequences, each a guess for what follows position `committed` (with `ahead` counted in, where
    the question had it), in columns of one length. `tokens` has those of all drafts, one behind the other, four bytes
    each; `chances` eight bytes for each of them: how probable the proposer thinks it is that it stands when all before
    it do, -1 where it doesn't say. `parents` is empty where all are chains. Numbers are little-endian."""

    sequence_ids: list[int] = []
    committed: list[int] = []
    lengths: list[int] = []
    sources: list[str] = []
    match_lengths: list[int] = []
    parents: list[list[int]] = []
    tokens: bytes = b""
    chances: bytes = b""


NO_DRAFTS = DraftColumns()


class Proposed(Message, frozen=True):
    step: int
    drafts: DraftColumns = NO_DRAFTS
    # Sequences this proposer has no text for (it restarted): the next Propose sends them whole.
    unknown: list[int] = []
    # How long the proposer was busy with it, by its own clock.
    seconds: float = 0.0


# 4. target -> streamer, items of the Generate stream ------------------------------------------------------


class TopToken(Message, frozen=True):
    id: int
    logprob: float


class TokenLogprob(Message, frozen=True):
    logprob: float
    top: list[TopToken] = []


class Run(Message, frozen=True):
    """One verify step's tokens within `Tokens.ids`: `accepted` of them were drafted by `source`, and
    the one after them is the target's own. `rejected` is the rest of the draft, for requests that want to know it."""

    length: int
    drafted: int
    accepted: int
    source: str = ""
    match_length: int = 0
    rejected: list[int] = []


class Span(Message, frozen=True):
    """What a request was in at the target: from when to when, in seconds since its Generate arrived there, by the
    target's own clock. `tokens`: computed (prefill), drafted (propose), given (verify); `step` counts its verify
    steps from 1, 0 before."""

    what: str  # queue | prefill | propose | verify
    begin: float
    end: float
    tokens: int = 0
    step: int = 0


class Tokens(Message, frozen=True):
    """`seq` is the index of ids[0] among the generated tokens of the request (all attempts): a receiver
    that holds more drops what it has, one that holds less knows of a gap."""

    request_id: str
    attempt: int
    seq: int
    ids: list[int]
    runs: list[Run] = []
    logprobs: list[TokenLogprob] | None = None
    # What the request was in since the message before this one; the last of them ends when this one was handed over.
    spans: list[Span] = []


class SpeculationStats(Message, frozen=True):
    """Of one attempt. `accepted` counts draft tokens only, never the recovered or bonus token."""

    method: str = "naive"
    verify_strategy: str = "greedy"
    steps: int = 0  # verify steps, those with an empty draft among them
    empty: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = []
    drafted_per_position: list[int] = []
    # Whether the text, or for a sampled one its distribution, is what it would be without speculation.
    lossless: bool = True


FinishReason = Literal["stop", "length"]


class Finished(Message, frozen=True):
    """The good end. `stop_token` is the EOS or stop id that ended it; it is not among the Tokens."""

    request_id: str
    attempt: int
    reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    stop_token: int | None = None
    speculation: SpeculationStats = SpeculationStats()
    spans: list[Span] = []  # as in Tokens


class Failed(Message, frozen=True):
    """The other end. `retryable`: another attempt elsewhere or later may succeed."""

    request_id: str
    attempt: int
    reason: str  # draining | overloaded | too_long | deadline | engine | invalid
    message: str
    retryable: bool = False


# 5. streamer -> proposer: texts to draft from ------------------------------------------------------------


class AddCorpus(Message, frozen=True):
    """A part of a corpus; parts come in order, from 0. What was there under this name is replaced when `last` is in."""

    namespace: str
    name: str
    vocabulary: str
    part: int
    texts: list[list[int]]
    last: bool = True


class RemoveCorpus(Message, frozen=True):
    namespace: str
    name: str
    vocabulary: str


class ListCorpora(Message, frozen=True):
    namespace: str
    vocabulary: str


class CorpusCard(Message, frozen=True):
    name: str
    state: str  # receiving | building | ready | failed
    texts: int = 0
    tokens: int = 0
    progress: float = 0.0  # of the building, 0..1
    message: str = ""


class Corpora(Message, frozen=True):
    """The answer to each of the three: what there is now."""

    corpora: list[CorpusCard]


# 6. anyone -> anyone: what a role knows of itself ---------------------------------------------------------


class Describe(Message, frozen=True):
    """Asked of a target by streamers before they admit requests."""


class ModelCard(Message, frozen=True):
    model: str
    max_context: int
    vocab_size: int
    eos_token_ids: list[int]
    methods: list[str]
    verify_strategies: list[str]
    max_speculative_tokens: int
    engine: str
    # What really runs the model, in a few words, and whether its rows have the same bits in any batch.
    path: str = ""
    strict: bool = True
    # What a request may ask for, in speculation.accept_policy.
    accept_policies: list[str] = []
    # What a request gets that asks for nothing.
    speculation: Speculation = Speculation()
    # Names what token ids mean: two models with the same one may learn from each other.
    vocabulary: str = ""


# 7. streamer -> the window of any process -----------------------------------------------------------------


class Look(Message, frozen=True):
    """What does this process do just now? services/runtime/introspection.py answers, in every process."""


class LinkCard(Message, frozen=True):
    """Of a line this process keeps open to another. `round_trip`: the last one, in seconds; 0: not known."""

    endpoint: str
    role: str
    round_trip: float = 0.0
    open: bool = True


class Seen(Message, frozen=True):
    """`figures` are what is true now. `totals` only ever grow; `earlier` is what they were `span` seconds ago. `pid`:
    who answers; it may be another than the one that was started, which watches it."""

    figures: dict[str, float] = {}
    totals: dict[str, float] = {}
    earlier: dict[str, float] = {}
    span: float = 0.0
    links: list[LinkCard] = []
    pid: int = 0


class Kill(Message, frozen=True):
    """End at once, as by kill -9. Heeded where the setting `demo` is on, and refused anywhere else."""


class Dying(Message, frozen=True):
    pid: int


KINDS: dict[str, type[Message]] = {
    "encode": Encode,
    "encoded": Encoded,
    "encode_words": EncodeWords,
    "encoded_words": EncodedWords,
    "decode": Decode,
    "decoded": Decoded,
    "generate": Generate,
    "propose": Propose,
    "proposed": Proposed,
    "tokens": Tokens,
    "finished": Finished,
    "failed": Failed,
    "add_corpus": AddCorpus,
    "remove_corpus": RemoveCorpus,
    "list_corpora": ListCorpora,
    "corpora": Corpora,
    "describe": Describe,
    "model_card": ModelCard,
    "look": Look,
    "seen": Seen,
    "kill": Kill,
    "dying": Dying,
}
