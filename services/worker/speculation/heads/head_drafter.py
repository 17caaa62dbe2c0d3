"""Heads whose network makes a token in each pass: draft model, MTP, EAGLE, EAGLE-3. A draft is a chain, a pass for each
token, or a tree, a pass for each level (tree_passes.py).

    text         . . . t u|                       u: the last token, not computed by the target yet
    commit       (t, hidden of .) (u, hidden of t)   ─▶ first draft token a, hidden
    draft        (a, that hidden) ─▶ b, hidden ─▶ ...

A network that reads hidden values has its row for a token where the value comes from, one position before the token.
What it computed for its own draft is computed again for accepted tokens, now with the target's values. A draft model
reads tokens alone: a token has its own position, and what it has read of accepted tokens stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch

from services.api.drafter import Committed, Draft, DraftRequest, Features, Needs
from services.api.tree_shape import Shape, read_shape
from services.worker.running.head import HeadModel, HeadRows
from services.worker.speculation.heads.choice import DraftChain, choose
from services.worker.speculation.heads.draft_tree import apart
from services.worker.speculation.heads.tree_passes import Root, draft_trees

if TYPE_CHECKING:
    from services.api.settings import Settings
    from services.worker.running.torch_model import TorchModel

# Rows of texts that no draft is asked for wait, because most of those that `auto` doesn't ask for end unread. With more
# than this many in all, the texts with the most of them are read, until an eighth of the room is free: one pass over
# many rows costs less than many over a few.
WAITING_ROWS = 8192


class Following:
    """A text that the network has read."""

    __slots__ = ("entered", "features", "hidden", "logits", "pages", "position", "read", "waiting", "waiting_from")

    def __init__(self) -> None:
        self.pages: Sequence[int] = ()
        # Position of the next row; logits and hidden value of the last one, and the hidden value that it read.
        self.position = 0
        self.logits: torch.Tensor | None = None
        self.hidden: torch.Tensor | None = None
        self.entered: torch.Tensor | None = None
        # The last tokens that it has read: the text's last one, then those of its own draft.
        self.read: list[int] = []
        # Tokens of the text that no draft needed yet, and the target's features of them.
        self.waiting: list[int] = []
        self.waiting_from = 0
        self.features: list[torch.Tensor] = []

    def wait(self, start: int, tokens: list[int], step: Features | None) -> None:
        if self.waiting_from + len(self.waiting) != start:
            self.waiting, self.features = [], []
        if not self.waiting:
            self.waiting_from = start
        self.waiting += tokens
        if step is not None:
            self.features.append(step.read())

    def rows(self, wanted: int) -> HeadRows:
        """All that waited."""
        tokens, self.waiting, self.features = self.waiting, [], []
        self.read, self.position = tokens[-1:], self.waiting_from + len(tokens)
        return HeadRows(tokens, self.waiting_from, self.pages, wanted)

    def next_row(self, token: int = 0) -> HeadRows:
        """The row of a draft token, which belongs into `read`, too."""
        row = HeadRows([token], self.position, self.pages, 1)
        self.position += 1
        return row

    def last_logits(self) -> torch.Tensor:
        assert self.logits is not None, "a draft is asked for behind the whole text"
        return self.logits

    def root(self) -> Root:
        return Root(self.read[-1], self.position - 1, self.pages, self.last_logits(), self.entered, self.hidden)

    def already_read(self, each: Committed, tokens: list[int]) -> int:
        """How many of these tokens of the text a draft model need not read again; the last one it always reads, for
        its logits."""
        if each.start != self.position - len(self.read) or each.pages[: len(self.pages)] != self.pages:
            return 0
        same = 0
        while same < min(len(self.read), len(tokens) - 1) and tokens[same] == self.read[same]:
            same += 1
        return same


def crowding(known: Mapping[int, Following], readable: Sequence[Committed]) -> set[int]:
    """The texts that are read because too many rows wait in all."""
    left = sum(len(each.waiting) for each in known.values())
    found: set[int] = set()
    if left <= WAITING_ROWS:
        return found
    for each in sorted(readable, key=lambda each: -len(known[each.text_id].waiting)):
        if left <= WAITING_ROWS - WAITING_ROWS // 8:
            break
        left -= len(known[each.text_id].waiting)
        found.add(each.text_id)
    return found


def read_now(
    known: dict[int, Following],
    results: Sequence[Committed],
    wait: Callable[[Committed, Following], None],
    asks: bool = True,
) -> tuple[dict[int, HeadRows], list[torch.Tensor]]:
    """Lets the tokens of all results wait. The rows, by text, of those that are read now, which are the texts that a
    draft is asked for, that are lent, or that have the most waiting rows where these are too many; and the features of
    these rows. `asks`: the last row of a text that a draft is asked for is wanted."""
    rows: dict[int, HeadRows] = {}
    features: list[torch.Tensor] = []
    for each in results:
        wait(each, known.setdefault(each.text_id, Following()))
    # Without pages a text's rows can't be read.
    crowds = crowding(known, [each for each in results if each.pages])
    for each in results:
        if each.asked or each.lent or (each.pages and each.text_id in crowds):
            following = known[each.text_id]
            features += following.features
            following.pages = each.pages
            rows[each.text_id] = following.rows(asks and each.asked)
    return rows, features


def wait_in_place(each: Committed, following: Following) -> None:
    """Each token where its value is."""
    following.wait(each.start, each.tokens, each.step)


class HeadDrafter:
    needs: ClassVar[Needs] = Needs.FEATURES
    gives_probs: ClassVar[bool] = True

    def __init__(self, name: str, settings: Settings | None, model: TorchModel) -> None:
        assert isinstance(model.head, HeadModel)
        self.name = name
        self._model = model.head
        self._reads_hidden = self._model.head.network.entry is not None
        self._vocab_size = model.facts.vocab_size
        self._max_context = model.facts.max_context
        self._branch_pages = range(model.facts.pages, model.facts.pages + model.facts.branch_pages)
        self._shape = read_shape(settings.draft_tree_shape) if settings else Shape()
        self._known: dict[int, Following] = {}

    def forget(self, text_ids: Sequence[int]) -> None:
        for text_id in text_ids:
            self._known.pop(text_id, None)

    # Text ------------------------------------------------------------------------------------------------

    def commit(self, results: Sequence[Committed]) -> None:
        rows, features = read_now(self._known, results, self._wait)
        if not rows:
            return
        hidden = self._model.hidden(torch.cat(features)) if features else None
        logits, values = self._model.forward([*rows.values()], hidden)
        wanted, last = 0, -1
        for index, (text_id, row) in enumerate(rows.items()):
            following = self._known[text_id]
            last += len(row.tokens)
            following.entered = None if hidden is None else hidden[last]
            following.hidden = None if values is None else values[index]
            following.logits = None
            if row.wanted:
                following.logits = logits[wanted]
                wanted += 1

    def _wait(self, each: Committed, following: Following) -> None:
        start, tokens = self._unread(each, following)
        following.wait(start, tokens, each.step if self._reads_hidden else None)

    def _unread(self, each: Committed, following: Following) -> tuple[int, list[int]]:
        """Position and tokens of the rows that a step added."""
        if self._reads_hidden:
            return each.start, [*each.tokens[1:], each.following]
        # There is room for the row of the next token only if a draft is asked for.
        tokens = [*each.tokens, each.following] if each.asked else each.tokens
        same = following.already_read(each, tokens)
        return each.start + same, tokens[same:]

    # Drafts ----------------------------------------------------------------------------------------------

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        if any(each.tree for each in requests):
            for each in requests:
                # The pass of the one kind would write over the logits of the other.
                following = self._known[each.text.text_id]
                following.logits = following.last_logits().clone()
        return apart(requests, self._draft_trees, self._draft_chains)

    def _draft_trees(self, requests: list[DraftRequest]) -> list[Draft]:
        known = [self._known[each.text.text_id] for each in requests]
        trees = draft_trees(self._model, self._branch_pages, requests, [each.root() for each in known], self._shape)
        return [tree.made(self.name) for tree in trees]

    def _draft_chains(self, requests: list[DraftRequest]) -> list[Draft]:
        chains = [DraftChain(each) for each in requests]
        known = [self._known[each.text.text_id] for each in requests]
        going = [pair for pair in zip(chains, known, strict=True) if not pair[0].full]
        if self._model.chains and going and not any(each.temperature for each in requests):
            self._draft_without_waits(going)
            return [chain.made(self.name) for chain in chains]
        logits = torch.stack([following.last_logits() for _, following in going]) if going else None
        while going:
            assert logits is not None
            choose([chain for chain, _ in going], logits, self._model.ids, self._vocab_size)
            going = [pair for pair in going if not pair[0].full]
            if going:
                rows = [following.next_row(chain.tokens[-1]) for chain, following in going]
                for chain, following in going:
                    following.read.append(chain.tokens[-1])
                before = [following.hidden for _, following in going if following.hidden is not None]
                logits, values = self._model.forward(rows, torch.stack(before) if before else None)
                for index, (_, following) in enumerate(going):
                    following.hidden = None if values is None else values[index]
        return [chain.made(self.name) for chain in chains]

    def _draft_without_waits(self, going: list[tuple[DraftChain, Following]]) -> None:
        """All passes, and only then a look at their tokens: a look waits for the device, which takes as long as the
        passes that a short draft wouldn't need."""
        going = sorted(going, key=lambda pair: -pair[0].request.budget)
        before = [following.hidden for _, following in going if following.hidden is not None]
        logits = torch.stack([following.last_logits() for _, following in going])
        self._model.start_chain(logits, torch.stack(before) if before else None)
        longest = going[0][0].request.budget
        for length in range(1, longest):
            self._model.follow_chain([f.next_row() for chain, f in going if chain.request.budget > length])
        assert self._model.chains is not None
        drafted = self._model.chains.fetch_chain(longest, len(going))
        for (chain, following), tokens in zip(going, drafted, strict=True):
            own = tokens[: chain.request.budget]
            following.read += [token for token, _ in own[:-1]]
            chain.take(own)
