"""Sentences to convert to JSON: keys repeat from line to line, values come from the sentences.

No `response_format` is sent, because not every server supports it; an example shows the format.
"""

from __future__ import annotations

import json
import random
from typing import Any

NAMES = ("Ana", "Boris", "Chiara", "David", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Katya", "Luis")
FAMILIES = ("Almeida", "Berger", "Costa", "Dvorak", "Eriksen", "Fuchs", "Greco", "Horvat", "Ito", "Jansen", "Keller")
TOWNS = ("Bergen", "Cork", "Delft", "Evora", "Ghent", "Graz", "Lucca", "Malmo", "Nantes", "Porto", "Siena", "Tartu")
TRADES = ("baker", "carpenter", "dentist", "gardener", "nurse", "pilot", "potter", "tailor", "teacher", "welder")
PEOPLE = 8
MAX_TOKENS = 280


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(f"json {seed}")
    return [_request([_person(chance) for _ in range(PEOPLE + 2)]) for _ in range(count)]


def _person(chance: random.Random) -> dict[str, Any]:
    return {
        "name": f"{chance.choice(NAMES)} {chance.choice(FAMILIES)}",
        "age": chance.randrange(18, 90),
        "town": chance.choice(TOWNS),
        "trade": chance.choice(TRADES),
        "number": chance.randrange(10_000, 99_999),
    }


def _request(people: list[dict[str, Any]]) -> dict[str, Any]:
    shown, asked = people[:2], people[2:]
    prompt = (
        "Sentences, and what they say as lines of JSON.\n\n"
        f"Sentences:\n{_sentences(shown)}\n\nJSON:\n{_lines(shown)}\n\n"
        f"Sentences:\n{_sentences(asked)}\n\nJSON:\n"
    )
    return {"prompt": prompt, "max_tokens": MAX_TOKENS, "stop": ["\n\n"], "temperature": 0}


def _sentences(people: list[dict[str, Any]]) -> str:
    return "\n".join(
        f"{each['name']}, {each['age']} years old, is a {each['trade']} in {each['town']} (member {each['number']})."
        for each in people
    )


def _lines(people: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(each) for each in people)
