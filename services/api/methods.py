"""The one table of methods: every way of drafting, by the name that settings, requests, metrics and docs use.

Choices of settings, the HTTP API's enum, the page, `chat`, docs/use/methods.md and the registries of drafters are made
from it. A new text drafter is one file with a Drafter (services/api/drafter.py) and one row here; heads have a table of
their own (models/heads/table.py). The class is named as text, so that reading the table imports no drafter.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from models.heads.row import HeadRow
from models.heads.table import HEADS

NAIVE = "naive"
AUTO = "auto"
PREDICTION = "prediction"
# Values of the setting proposer_index: the drafters in plain Python, or their compiled peers.
PLAIN, COMPILED = "plain", "compiled"
# Other servers' word for naive, which requests may use.
OFF = "off"


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    # "package.module:Class"
    drafter: str
    help: str
    # The process in which it drafts.
    runs: Literal["proposer", "worker"] = "proposer"
    # The settings that only this method reads.
    settings: tuple[str, ...] = ()
    # Whether it computes drafts with a network of its own, whose folder the setting draft_model names.
    has_network: bool = False
    # The longest draft where nothing is asked for.
    length: int = 8
    # Whether it drafts by asking other methods.
    combines: bool = False
    # Whether `auto` asks it besides its own sources.
    in_auto: bool = True
    # What other servers call it in their speculative config.
    aliases: tuple[str, ...] = ()

    def load(self) -> Any:
        """Its class, imported now."""
        module, _, name = self.drafter.partition(":")
        return getattr(import_module(module), name)


def _of_head(head: HeadRow) -> Method:
    return Method(
        head.name,
        f"services.worker.speculation.heads.{head.loop}",
        head.help,
        runs="worker",
        settings=("draft_model", "num_model_steps"),
        has_network=True,
        length=head.length,
        in_auto=False,
        aliases=head.aliases,
    )


METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method(
            NAIVE,
            "services.proposer.naive:NaiveDrafter",
            "No drafts: plain decoding, one token a step",
            in_auto=False,
            aliases=("autoregressive", "None"),
        ),
        Method(
            "ngram",
            "services.proposer.ngram:NgramDrafter",
            "Prompt lookup: what followed the last few tokens earlier in the request's own prompt and output",
            settings=("max_ngram_size", "min_ngram_size"),
            aliases=("inference_with_reference", "ngram_match", "[ngram]", "ngram_gpu", "ngram-simple", "ngram-map-k",
                     "ngram-map-k4v"),
        ),
        Method(
            "suffix",
            "services.proposer.suffix:SuffixDrafter",
            "Suffix decoding: what most often followed the text's last tokens, in the request's own text and in"
            " earlier text of its namespace",
            settings=(
                "suffix_decoding_max_tree_depth",
                "suffix_decoding_max_spec_factor",
                "suffix_decoding_max_spec_offset",
                "suffix_decoding_min_token_prob",
            ),
            aliases=("ngram-mod", "ngram-cache"),
        ),
        Method(
            PREDICTION,
            "services.proposer.prediction:PredictionDrafter",
            "Continues the text that came as the request's `prediction`",
        ),
        *map(_of_head, HEADS.values()),
        Method(
            "hybrid",
            "services.proposer.hybrid:HybridDrafter",
            "Two methods: the second continues the first one's draft, or the draft expected to bring more is used",
            settings=("hybrid_first", "hybrid_then", "hybrid_rule"),
            combines=True,
            in_auto=False,
        ),
        Method(
            AUTO,
            "services.proposer.auto:AutoDrafter",
            "All sources at once, token by token: the most probable one by measured acceptance, for as long as it pays",
            combines=True,
            in_auto=False,
        ),
    )
}  # fmt: skip


def lengths_of_heads() -> str:
    """For people: the longest draft of each head, the shortest ones first."""
    lengths = sorted({head.length for head in HEADS.values()})
    names = {each: ", ".join(head.name for head in HEADS.values() if head.length == each) for each in lengths}
    return ", ".join(f"{length} for {some}" for length, some in names.items())


def method_for(asked: str, own: str, has_prediction: bool) -> str:
    """The method of a request that asks for `asked` ("": for none) at a server whose method is `own`. A request that
    brings a prediction is drafted from it, unless the server's method looks at predictions anyway."""
    if asked:
        return NAIVE if asked == OFF else asked
    return PREDICTION if has_prediction and own != AUTO else own


# What `hybrid` can be made of, and what it is made of by default.
PARTS = tuple(
    row.name for row in METHODS.values() if not row.combines and row.name != NAIVE and row.runs == "proposer"
)
HYBRID_FIRST, HYBRID_THEN = "suffix", "ngram"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a draft's tokens came from, as `Run.source` names it. `label` is its name on a screen. `head`: a network in
    the worker made them; a server has one such source at most."""

    name: str
    label: str
    help: str
    head: bool = False


SOURCES: dict[str, Source] = {
    row.name: row
    for row in (
        Source("suffix", "suffix", "what most often followed these words, in this text"),
        Source("ngram", "n-gram", "what followed these words before, in this text"),
        Source("shared", "shared", "another answer of the same namespace"),
        Source("store", "store", "earlier answers, kept on disk"),
        Source("corpus", "corpus", "a corpus that was added"),
        Source(PREDICTION, "expected text", "the text that came with the request"),
        Source("grammar", "grammar", "all that the form asked for allowed"),
        *(Source(head.name, head.label, f"{head.what}, in the worker", head=True) for head in HEADS.values()),
    )
}
