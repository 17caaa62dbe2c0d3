"""Numbered paragraphs and a question that one of them answers: the answer quotes the paragraph, then paraphrases it.

An example shows how. The prompt ends with the first words of the quote, as if a search had found them.
"""

from __future__ import annotations

import random
from typing import Any

from loadtest.workloads.prose import TOPICS, paragraphs

EXAMPLE = """<paragraphs>
[1] The library opens at nine in the morning and closes at six. On Sundays it stays closed all day.
[2] A book may be kept for three weeks, a film for one week. Who brings a book back late pays ten cents a day. Teachers
may keep both until the end of the school year, if they ask before it begins.
[3] A card costs nothing for children. Others pay twelve a year, or two for a month.
[4] Rooms on the second floor can be booked by groups of up to six people, for two hours at most.
</paragraphs>
<question>
What does paragraph 2 say about books, and what does that mean?
</question>
<quote>
[2] A book may be kept for three weeks, a film for one week. Who brings a book back late pays ten cents a day. Teachers
may keep both until the end of the school year, if they ask before it begins.
</quote>
<explanation>
There are three weeks to read a book and one to see a film, and every day after that costs a little. The rule is
gentler for teachers, who need books for longer than others.
</explanation>

"""
MAX_TOKENS = 300
_WORDS = 5


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(f"retrieval {seed}")
    topics = list(TOPICS)
    chance.shuffle(topics)
    return [_request(topics[at % len(topics)], at // len(topics)) for at in range(count)]


def _request(topic: str, asked: int) -> dict[str, Any]:
    """Asks about the longest paragraph of a topic, or the next longest if the topic was used before."""
    found = paragraphs(topic, 2400)[:6]
    by_length = sorted(range(len(found)), key=lambda at: -len(found[at]))
    wanted = by_length[asked % len(found)]
    numbered = "\n".join(f"[{number}] {text}" for number, text in enumerate(found, 1))
    prompt = (
        f"{EXAMPLE}<paragraphs>\n{numbered}\n</paragraphs>\n"
        f"<question>\nWhat does paragraph {wanted + 1} say about {topic}, and what does that mean?\n</question>\n"
        f"<quote>\n[{wanted + 1}] {' '.join(found[wanted].split()[:_WORDS])}"
    )
    return {"prompt": prompt, "max_tokens": MAX_TOKENS, "stop": ["</explanation>"], "temperature": 0}
