"""Every message between the services, in the order in which a request meets them.

This file is the table of contents of the system. A message is a frozen struct; its kind on the wire is the
struct's tag; `KINDS` is the whole table of what may be decoded. Nothing here knows sockets or torch.
Field order is wire order (structs travel as arrays): append, never reorder (docs/internals/mesh.md, "Versions").
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mesh.codec import RawFrame
from services.api.pooling import LAST
from services.api.prompt_columns import PromptColumns
from services.api.sampling import Sampling


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Base of everything that crosses a process boundary as the body of an envelope."""


# 1. streamer -> tokenizer ------------------------------------------------------------------------------


class ToolCall(Message, frozen=True):
    """A call that the model has made. `arguments` is the text of a JSON object."""

    id: str | None
    name: str
    arguments: str


class ChatTurn(Message, frozen=True):
    """`tool_call_id`: of a tool's result, the call that it answers."""

    role: str
    content: str | None
    name: str | None = None
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None
    reasoning: str | None = None


class Encode(Message, frozen=True):
    """Turn text or a conversation into token ids. Exactly one of `turns` and `text` is set. `tools`, a list, and
    `template_kwargs`, an object, are JSON for the chat template; empty: none."""

    turns: list[ChatTurn] | None = None
    text: str | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = True
    # A longer prompt is answered with an error. The tokenizer is the first to know the length.
    max_tokens: int = 0
    tools: str = ""
    template_kwargs: str = ""


class Encoded(Message, frozen=True):
    token_ids: list[int]


class EncodeWords(Message, frozen=True):
    """Turn forbidden words into token ids."""

    words: list[str]


class EncodedWords(Message, frozen=True):
    """The spellings of each word: at the beginning of a text and, if different, after a space."""

    spellings: list[list[list[int]]]


class CheckGrammar(Message, frozen=True):
    """Ask whether a grammar (Sampling.grammar) can be compiled, and holds any text. Those of one `caller` are checked
    one after the other."""

    grammar: str
    caller: str = ""


class GrammarChecked(Message, frozen=True):
    """`problem`: why it can't be used; empty: it can."""

    problem: str


class Decode(Message, frozen=True):
    token_ids: list[int]
    skip_special_tokens: bool = True


class Decoded(Message, frozen=True):
    text: str


# 2. streamer -> worker, one stream per choice -----------------------------------------------------------


class Speculation(Message, frozen=True):
    """The request's speculation parameters; the server's settings bound them."""

    method: str = ""  # "": the server's choice; "naive": no drafts
    num_speculative_tokens: int = -1  # -1: the server's choice
    verify_strategy: str = ""  # "": the server's choice
    accept_policy: str = ""  # "": the server's choice
    # For the strategies topp and typical; -1: the server's choice.
    max_candidate_len: int = -1
    verify_window: int = -1
    typical_epsilon: float = -1.0
    typical_delta: float = -1.0
    # Corpora to draft from; None: all of the request's namespace.
    corpora: list[str] | None = None
    # Whether other requests of the namespace may be drafted from this one's output.
    learn: bool = True
    # Whether rejected draft tokens are returned (Run.rejected).
    return_drafts: bool = False
    # Whether drafts may be trees; None: the server's choice.
    trees: bool | None = None


# Bounds of Generate.priority, on both sides of 0, and of Generate.cache_salt and Generate.caller, in characters.
MOST_PRIORITY = 100
LONGEST_SALT = 1024
LONGEST_CALLER = 64


class Generate(Message, frozen=True):
    """Continue `token_ids`. The first `prompt_tokens` of them are the prompt; on a later attempt the rest are tokens
    already delivered, which count against max_tokens. Pages are shared within one `cache_salt`, text and drafts within
    one `namespace` (empty: none). Waiting requests are admitted in turn by `caller`, an id of the API key. `pages_from`
    is a worker that may have pages of this text, or is to compute them. With `pooling` the answer is the embedding of
    the prompt, in Finished, and there are no tokens."""

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
    caller: str = ""
    pages_from: str = ""
    pooling: str = ""


# 2b. worker -> worker: pages of a text (docs/operate/split.md) ----------------------------------------------------


class FetchPages(Message, frozen=True):
    """Ask for the pages with these `names` (NAME_BYTES each, in the order of the text): a stream of LentPage. With
    `generate` the other worker computes what it lacks, and also sends the Tokens and Finished of this request. If its
    `layout` of pages or `secret` of names differs, it answers Failed. With `transport` nixl it may say where pages are:
    LentMemory, then LentPlace for each."""

    request_id: str
    names: bytes
    layout: str
    secret: str
    generate: Generate | None = None
    transport: str = ""


class LentPage(Message, frozen=True):
    """The keys and values of the `index`-th of the names asked for, a drafter's layers among them."""

    index: int
    name: bytes
    frames: list[RawFrame]


class LentMemory(Message, frozen=True):
    """Where the pages of this stream are: NIXL's agent and how to reach it, the lender's `sequence_id` for them, and
    for each part of a page its address in page 0 and the distance to page 1."""

    agent: str
    metadata: bytes
    sequence_id: int
    addresses: list[int]
    strides: list[int]


class LentPlace(Message, frozen=True):
    """The `index`-th of the names asked for is this page of that memory, until PagesRead."""

    index: int
    name: bytes
    page: int


class PagesRead(Message, frozen=True):
    """The `count` pages of this sequence from the `first` on have been read: the next ones, in order."""

    agent: str
    sequence_id: int
    first: int
    count: int


class PagesHeld(Message, frozen=True):
    """The answer: the first `count` of them were held until now, so what was read is theirs."""

    count: int


# 2c. worker -> worker-node: its ranks on another machine (docs/operate/parallel.md) ----------------------------------


class JoinWorker(Message, frozen=True):
    """Ask a node whether it belongs to the worker that has this `port` as master_port. It compares version, numbers of
    nodes and ranks, and model (models/fingerprint.py: name, config, tensors, values); if they differ it says so, and
    ends."""

    port: int
    version: str
    nodes: int
    ranks: int
    model: tuple[str, str, str, str]


class NodeJoined(Message, frozen=True):
    """The answer, and the first item of a RunRanks stream."""

    node: int


class RunRanks(Message, frozen=True):
    """Start the node's ranks, which meet the others at `store` and `port` under the name `generation`. The stream ends
    with the worker or one of the ranks. `options` are models/executor.py's."""

    executor: Literal["triton", "compiled", "plain"]
    quantization: Literal["none", "wint8", "wint4"]
    gpu: bool
    store: str
    port: int
    generation: str
    options: dict[str, str | int | float | bool]


# 3. worker -> proposer, one for the whole batch of a step -----------------------------------------------


class ProposeItem(Message, frozen=True):
    """One sequence of the step. `tokens` are those committed since the last Propose that this proposer answered for it
    (all if `first` is set); `committed` is the length after them. `ahead` are tokens that are being verified; the draft
    follows them, as if all were accepted. namespace, prediction, corpora and learn are sent with `first`."""

    sequence_id: int
    committed: int
    tokens: list[int]
    first: bool = False
    prompt_tokens: int = 0
    budget: int = 0  # longest draft; 0: no draft, only follow the text
    method: str = ""
    ahead: list[int] = []
    namespace: str = ""
    prediction: list[int] = []
    corpora: list[str] | None = None
    learn: bool = True


class Ended(Message, frozen=True):
    """A sequence is complete. `tokens` are those since the last answered Propose, to learn from; all tokens if `first`
    is set. The proposer forgets the sequence."""

    sequence_id: int
    committed: int
    tokens: list[int]
    first: bool = False
    prompt_tokens: int = 0
    namespace: str = ""


class EngineCounts(Message, frozen=True):
    """What another server's engine has counted since it started. Seconds are of its own thread; `missed` answers came
    late or never; `gave_up`: times that it stopped waiting for its proposer."""

    steps: int
    drafted: int
    accepted: int
    answered: int
    missed: int
    gave_up: int
    seconds: float
    waited_seconds: float


class Propose(Message, frozen=True):
    step: int
    epoch: int  # the worker's: with a new one the proposer forgets its sequences
    worker: str
    items: list[ProposeItem]
    forget: list[int] = []
    ended: list[Ended] = []
    # Identifies the vocabulary of the token ids: texts of different vocabularies are kept apart.
    vocabulary: str = ""
    # Another server asks (specmesh/vllm): no directory says whether it lives, so it is forgotten when it is silent.
    guest: bool = False
    counts: EngineCounts | None = None  # a guest's, shown with the proposer's metrics


class DraftColumns(Message, frozen=True):
    """Drafts of several sequences, in columns with an entry for each draft. A draft follows position `committed`, which
    includes `ahead`. `tokens` (int32) and `chances` (float64: the probability of acceptance if all before are accepted;
    -1: none) hold all drafts in sequence. `parents` is empty if all are chains. `probs` (float32) has a row for each
    token of drafts with probabilities, `vocabularies` the width of these. Little-endian."""

    sequence_ids: list[int] = []
    committed: list[int] = []
    lengths: list[int] = []
    sources: list[str] = []
    match_lengths: list[int] = []
    parents: list[list[int]] = []
    tokens: bytes = b""
    chances: bytes = b""
    vocabularies: list[int] = []
    probs: bytes = b""


NO_DRAFTS = DraftColumns()


class Proposed(Message, frozen=True):
    step: int
    drafts: DraftColumns = NO_DRAFTS
    # Sequences whose text this proposer doesn't know (it restarted): the next Propose sends the whole text.
    unknown: list[int] = []
    # Seconds that the proposer took, by its own clock.
    seconds: float = 0.0


# 4. worker -> streamer, items of the Generate stream ------------------------------------------------------


# Answers with logprobs have hundreds of thousands of both. They are in no cycle; looked at by the garbage collector,
# they cost pauses of 300 ms.
class TopToken(Message, frozen=True, gc=False):
    id: int
    logprob: float


class TokenLogprob(Message, frozen=True, gc=False):
    logprob: float
    top: list[TopToken] = []


class Run(Message, frozen=True):
    """The tokens of one verify step within `Tokens.ids`: `source` drafted the first `accepted` of them, the next one is
    the model's own. `rejected` is the rest of the draft."""

    length: int
    drafted: int
    accepted: int
    source: str = ""
    match_length: int = 0
    rejected: list[int] = []


class Span(Message, frozen=True):
    """A phase of a request at the worker, in seconds since its Generate arrived, by the worker's clock. `tokens`:
    computed (prefill), drafted (propose) or emitted (verify). `step` counts the verify steps from 1; 0 before."""

    what: str  # queue | prefill | propose | verify
    begin: float
    end: float
    tokens: int = 0
    step: int = 0


class Tokens(Message, frozen=True):
    """`seq` is the index of ids[0] among the generated tokens of the request (all attempts): a receiver drops tokens
    that it already has, and detects a gap. Messages with `prompt_logprobs` have no ids, and come before all that do."""

    request_id: str
    attempt: int
    seq: int
    ids: list[int]
    runs: list[Run] = []
    logprobs: list[TokenLogprob] | None = None
    # Phases since the previous message; the last one ends when this message was handed over.
    spans: list[Span] = []
    prompt_logprobs: PromptColumns | None = None


class SpeculationStats(Message, frozen=True):
    """Figures of one attempt. `accepted` counts draft tokens only, never the recovered or bonus token."""

    method: str = "naive"
    verify_strategy: str = "greedy"
    steps: int = 0  # verify steps, with or without a draft
    empty: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = []
    drafted_per_position: list[int] = []
    # Whether the text (if sampled, its distribution) is the same as without speculation.
    lossless: bool = True


FinishReason = Literal["stop", "length"]


class Finished(Message, frozen=True):
    """The request is complete. `stop_token` is the EOS or stop id that ended it; Tokens don't include it. `embedding`
    (float32, little-endian, as pooled: not normalised) is there if the request has `pooling`."""

    request_id: str
    attempt: int
    reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    stop_token: int | None = None
    speculation: SpeculationStats = SpeculationStats()
    spans: list[Span] = []  # as in Tokens
    embedding: bytes = b""


class Failed(Message, frozen=True):
    """The request has failed. `retryable`: another attempt elsewhere or later may succeed."""

    request_id: str
    attempt: int
    reason: str  # draining | overloaded | too_long | deadline | engine | invalid | grammar
    message: str
    retryable: bool = False


# 5. streamer -> proposer: texts to draft from ------------------------------------------------------------


class AddCorpus(Message, frozen=True):
    """A part of a corpus; parts come in order, from 0. After the `last` one it replaces a corpus of the same name."""

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
    """The answer to each of the three: the corpora of the namespace."""

    corpora: list[CorpusCard]


# 6. anyone -> anyone: facts about a process ----------------------------------------------------------------


class Describe(Message, frozen=True):
    """Streamers send it to a worker before they admit requests, and when no tokens have come for a while. The answer
    comes from the thread that computes."""


class ModelCard(Message, frozen=True):
    model: str
    max_context: int
    vocab_size: int
    eos_token_ids: list[int]
    methods: list[str]
    verify_strategies: list[str]
    max_speculative_tokens: int
    engine: str
    # How the model is run, and whether a row has the same bits in any batch.
    path: str = ""
    strict: bool = True
    # Values that a request may set as speculation.accept_policy.
    accept_policies: list[str] = []
    # The parameters of a request that sets none.
    speculation: Speculation = Speculation()
    # Identifies the vocabulary: text learned for one model is used for others with the same one.
    vocabulary: str = ""
    # Numbers of an embedding, and how rows are pooled for a request that doesn't say.
    embedding_size: int = 0
    pooling: str = LAST


# 7. streamer -> introspection of any process -----------------------------------------------------------------


class Look(Message, frozen=True):
    """Asks a process for its figures; services/runtime/introspection.py answers."""


class LinkCard(Message, frozen=True):
    """A connection of this process to another. `round_trip`: the last one, in seconds; 0: unknown."""

    endpoint: str
    role: str
    round_trip: float = 0.0
    open: bool = True


class Seen(Message, frozen=True):
    """`figures` are current values. `totals` only grow; `earlier` are the totals `span` seconds ago. `pid` is the
    answering process, which may be a child of the started one."""

    figures: dict[str, float] = {}
    totals: dict[str, float] = {}
    earlier: dict[str, float] = {}
    span: float = 0.0
    links: list[LinkCard] = []
    pid: int = 0


class ReadMetrics(Message, frozen=True):
    """Asks a process for what its /metrics serves, for the /metrics of the API port."""


class MetricsText(Message, frozen=True):
    """In the text format of Prometheus."""

    text: bytes


class Kill(Message, frozen=True):
    """End at once, as by kill -9. Refused unless the setting `demo` is on."""


class Dying(Message, frozen=True):
    pid: int


KINDS: dict[str, type[Message]] = {
    "encode": Encode,
    "encoded": Encoded,
    "encode_words": EncodeWords,
    "encoded_words": EncodedWords,
    "check_grammar": CheckGrammar,
    "grammar_checked": GrammarChecked,
    "decode": Decode,
    "decoded": Decoded,
    "generate": Generate,
    "fetch_pages": FetchPages,
    "lent_page": LentPage,
    "lent_memory": LentMemory,
    "lent_place": LentPlace,
    "pages_read": PagesRead,
    "pages_held": PagesHeld,
    "join_worker": JoinWorker,
    "node_joined": NodeJoined,
    "run_ranks": RunRanks,
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
    "read_metrics": ReadMetrics,
    "metrics_text": MetricsText,
    "kill": Kill,
    "dying": Dying,
}
