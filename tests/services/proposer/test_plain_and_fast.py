"""The plain drafters and the compiled ones give the same drafts: tokens, parents, confidence, source and match length,
for thousands of steps of texts that are learned, read, forgotten and drafted from in several namespaces at once."""

from __future__ import annotations

import gzip
import json
import random
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import index_of

from models.shipped_answers import FOLDER, answers_of
from services.api.drafter import NO_DRAFT, Draft, Drafter, DraftRequest, Text
from services.proposer.auto import AutoDrafter
from services.proposer.fast import namespaces as fast_namespaces
from services.proposer.fast import texts as fast
from services.proposer.ngram import NgramDrafter
from services.proposer.plain import texts as plain
from services.proposer.plain.guess import DraftRule
from services.proposer.plain.namespaces import Namespaces
from services.proposer.plain.texts import TextOptions
from services.proposer.prediction import PredictionDrafter
from services.proposer.segments.segment import Segment
from services.proposer.suffix import SuffixDrafter
from services.proposer.text_drafter import TextDrafter

pytestmark = pytest.mark.usefixtures("compiled")

METHODS: list[tuple[type[TextDrafter], DraftRule]] = [
    (NgramDrafter, DraftRule()),
    (SuffixDrafter, DraftRule()),
    (SuffixDrafter, DraftRule(4.0, 1.0, 0.02)),
    (PredictionDrafter, DraftRule()),
    (AutoDrafter, DraftRule(least=0.02)),
]


def shipped() -> list[list[int]]:
    """Answers of the default model, as its tokens."""
    file = min(FOLDER.glob("*.gz"))
    with gzip.open(file) as lines:
        vocabulary = json.loads(lines.readline())["vocabulary"]
    return [answer.tolist() for answer in answers_of(vocabulary)[:300]]


ANSWERS = shipped()


def edited(text: list[int], chance: random.Random) -> list[int]:
    """With tokens replaced, left out and put in."""
    found = list(text)
    for _ in range(len(text) // 20):
        at = chance.randrange(len(found))
        found[at : at + chance.randint(0, 3)] = [chance.randrange(49_000) for _ in range(chance.randint(0, 3))]
    return found


def repetitive(chance: random.Random) -> list[int]:
    phrases = [[chance.randrange(30) for _ in range(8)] for _ in range(5)]
    said = [token for _ in range(20) for token in chance.choice(phrases)]
    return [token if chance.random() < 0.9 else chance.randrange(30) for token in said]


class Pair:
    """The same texts in both forms."""

    def __init__(
        self, options: TextOptions, max_tokens: int, learns: bool, segments: list[Segment]
    ) -> None:
        sizes = options.depth, max_tokens, learns
        slow = plain.Texts(Namespaces(*sizes), options, taken_in_a_call=fast.SLICE)
        quick = fast.FastTexts(fast_namespaces.FastNamespaces(*sizes), options)
        self.indexes = index_of(slow), index_of(quick)
        for texts in (slow, quick):
            for name in ("a", "b"):
                namespace = texts.namespaces.get(name)
                assert namespace is not None
                namespace.set_segments(segments[:2])
                namespace.set_corpus("answers", segments[2:])
        self._drafters: dict[int, list[Drafter]] = {}

    def draft(self, method: int, requests: list[DraftRequest]) -> tuple[list[Draft], list[Draft]]:
        made, rule = METHODS[method]
        drafters = self._drafters.setdefault(method, [made(index, rule) for index in self.indexes])  # type: ignore[misc]
        slow, quick = (list(drafter.draft(requests)) for drafter in drafters)
        return slow, quick

    def forget(self, text: Text) -> None:
        for index in self.indexes:
            index.forget([text.text_id])


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Segment]]:
    folder = tmp_path_factory.mktemp("segments")
    parts = [ANSWERS[:40], ANSWERS[40:60], ANSWERS[60:120], [[5, 6, 7] * 40]]
    built = [Segment.build(part, Path(folder, str(number))) for number, part in enumerate(parts)]
    yield built
    for each in built:
        each.close()


class Speaker:
    """Says a text step by step."""

    def __init__(self, number: int, chance: random.Random) -> None:
        answer = edited(chance.choice(ANSWERS)[:150], chance)
        kind = chance.choice(("chat", "edit", "repeat"))
        prompt, prediction = chance.choice(ANSWERS)[:30], []
        if kind == "edit":
            prompt, prediction = answer, answer if chance.random() < 0.7 else answer[:2]
            answer = edited(answer, chance)
        elif kind == "repeat":
            answer = repetitive(chance)
        self.rest = answer
        self.text = Text(
            number, array("i", prompt), len(prompt), array("i", prediction), chance.choice(("", "a", "a", "b", "c")),
            chance.choice((None, None, [], ["answers", "unknown"])), chance.random() < 0.9,
        )  # fmt: skip

    def ask(self, chance: random.Random) -> DraftRequest:
        ahead = self.rest[: chance.choice((0, 0, 0, 1, 4))]
        if ahead and chance.random() < 0.2:
            ahead[-1] = chance.randrange(49_000)
        return DraftRequest(self.text, chance.choice((0, 1, 8, 16, 64)), ahead)

    def speak(self, chance: random.Random) -> None:
        count = chance.choice((0, 1, 1, 2, 5))
        self.text.tokens.extend(self.rest[:count])
        del self.rest[:count]


def test_what_is_not_drafted_within_the_time_of_a_batch_gets_no_draft_and_is_still_taken_in() -> None:
    texts = plain.Texts(Namespaces(64, 10**6), TextOptions(), within=0.0)
    index, text = index_of(texts), Text(1, array("i", [1, 2, 3, 1, 2]))
    assert SuffixDrafter(index).draft([DraftRequest(text, 4)]) == [NO_DRAFT]
    assert texts.is_taken_in(text)


@pytest.mark.parametrize(
    "options", [TextOptions(), TextOptions(8, 1, 3), TextOptions(4, 3, 6, learns_prompts=True)]
)
@pytest.mark.parametrize(("max_tokens", "learns"), [(10**6, True), (700, True), (90, True), (10**6, False)])
def test_the_same_texts_get_the_same_drafts(
    options: TextOptions, max_tokens: int, learns: bool, segments: list[Segment]
) -> None:
    chance = random.Random(f"{options} {max_tokens} {learns}")
    pair, speakers, begun, drafted = Pair(options, max_tokens, learns, segments), [], 0, 0
    for step in range(250):
        while len(speakers) < 5:
            begun += 1
            speakers.append(Speaker(begun, chance))
        # Mostly auto: it reads all sources.
        method = chance.choice((0, 1, 2, 3, 4, 4, 4, 4))
        requests = [speaker.ask(chance) for speaker in speakers]
        slow, quick = pair.draft(method, requests)
        assert slow == quick, (step, METHODS[method])
        drafted += sum(bool(draft.tokens) for draft in slow)
        for speaker in list(speakers):
            speaker.speak(chance)
            if not speaker.rest or chance.random() < 0.01:
                pair.forget(speaker.text)
                speakers.remove(speaker)
    assert drafted > 500
