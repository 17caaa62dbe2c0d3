"""The interface between the engine and what computes tokens: a model, or the mock. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.api.drafter import Draft
from services.worker.grammar.compiled import Grammars
from services.worker.running.work import Drafted, Result, Work


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of a loaded model."""

    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    page_tokens: int
    pages: int
    dtype: str = ""
    parameters: int = 0
    path_name: str = ""
    # Which executor runs, and how, in a few words.
    path: str = ""
    # Whether a row's bits are independent of its batch and of how its prompt was split into chunks.
    strict: bool = True
    # Identifies the vocabulary: text learned for one model is used for others with the same one. "": unknown.
    vocabulary: str = ""
    # Pages for the branches of all drafts of a step, whose ids follow those of `pages`; 0: drafts are chains.
    branch_pages: int = 0
    # Sequences that can have a state beside their pages; 0: those of this model have none.
    states: int = 0
    # More of them, which follow those: of texts that others may go on with.
    snapshots: int = 0
    # As set, or by the device.
    max_sequences: int = 64
    max_step_tokens: int = 512
    # Numbers of an embedding; 0: there are none.
    hidden_size: int = 0
    # How the model's folder says that hidden states are pooled; "": it says nothing.
    pooling: str = ""


class PageMemory(Protocol):
    """Pages as bytes. To be used between steps, from the thread that computes."""

    @property
    def layout(self) -> str:
        """Two workers with the same name of layout can read each other's pages."""
        ...

    @property
    def frame_bytes(self) -> tuple[int, ...]:
        """Sizes of the frames of a page."""
        ...

    def read(self, pages: Sequence[int]) -> list[list[bytes]]:
        """The frames of each."""
        ...

    def write(self, page: int, frames: Sequence[Any]) -> None:
        """The frames have these sizes: bytes, or tensors of bytes where pages are."""
        ...


class Runner(Protocol):
    """One step at a time: `launch`, then `finish`, then `draft`, all called from one thread. Where a step `feeds` the
    next one, that may be launched before it is finished."""

    @property
    def facts(self) -> Facts: ...

    @property
    def elsewhere(self) -> bool:
        """Whether a step runs once it is launched, as on a GPU; on a CPU it is computed in `finish`."""
        ...

    @property
    def drafters(self) -> tuple[str, ...]:
        """Methods of the drafters that run here, behind verification."""
        ...

    @property
    def grammars(self) -> Grammars | None:
        """Of the answers of sequences that have one; None: none are served."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Of a GPU, for metrics: steps that ran as a "graph" and "eager", and kernels "compiled_late", after the start.
        Of a worker that is split: its "ranks", and what the exchange with them took, "exchange_us". Empty else."""
        ...

    def page_memory(self) -> PageMemory:
        """The pages as bytes, to be handed to other workers."""
        ...

    def grammar_drafts(self, drafts: Mapping[int, Draft], longest: Mapping[int, int]) -> dict[int, Draft]:
        """The drafts of the sequences in `longest`, which have a grammar or a limit of their reasoning: cut where they
        leave it, or what it forces. `longest` has the most tokens of a draft."""
        ...

    def launch(self, work: Work) -> None:
        """Begin a step."""
        ...

    @property
    def feeds(self) -> bool:
        """Whether the step that was launched last may be followed by one that is fed (Work.fed)."""
        ...

    def finish(self) -> Result:
        """Wait for the launched step, the first of two. The failure of a single sequence is in its verdict; an
        exception means that the whole step failed. The same text gives the same token, whatever else is in the step,
        whatever was drafted and however often it is computed."""
        ...

    def draft(self) -> Drafted:
        """Let the worker's head read the finished step, and draft for the items that have a budget for it."""
        ...
