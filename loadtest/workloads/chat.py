"""Open questions to an assistant with a system prompt; answers have little text to copy from."""

from __future__ import annotations

import random
from typing import Any

SYSTEM = (
    "You are a helpful assistant of a public library. People of every age write to you. Answer in plain words and in "
    "sentences, without lists where a sentence does. Say first what was asked, then why it is so, then what somebody "
    "might want to know besides. Give an example from daily life. If a question has more than one side, tell each of "
    "them fairly. If you do not know something, say so. Do not repeat the question, do not repeat yourself, and do not "
    "apologise. Do not give advice on medicine or law: say who can be asked instead. Three paragraphs are enough, and "
    "one is often better. Use the language of the question. When somebody asks for a story or a poem, write one that a "
    "child can follow, and give the people in it names. When somebody asks how something is done, say what is needed, "
    "how long it takes, and what goes wrong most often. When somebody asks which of two things is better, say for whom."
)
QUESTIONS = (
    "Why is the sky red in the evening and blue at noon?",
    "Tell me a story about a lighthouse keeper and a lost whale.",
    "How did people keep food fresh before there were refrigerators?",
    "What should I think about before I adopt a dog?",
    "Explain to a child what money is.",
    "Which is better for a small flat, plants or an aquarium?",
    "Write a poem about the first snow in a big city.",
    "How do I learn to play the guitar if I have half an hour a day?",
    "Why do some people remember their dreams and others don't?",
    "What was life like on a farm two hundred years ago?",
    "How does a bicycle stay upright?",
    "Describe a market in a town by the sea, early in the morning.",
    "What can I cook with potatoes, eggs and an onion?",
    "Why do languages change, and can that be stopped?",
    "Tell me about the history of tea.",
    "How would a city look if nobody owned a car?",
    "What makes a good teacher?",
    "Write a letter from a grandmother to her grandson at sea.",
    "Why are there leap years?",
    "How do bees decide where to build a new hive?",
    "Is it better to read on paper or on a screen?",
    "Tell me a story about two clockmakers who never agree.",
    "What happens in the body when we laugh?",
    "How do I plan a walk of three days in the mountains?",
    "Why did the Romans build so many roads?",
    "What is the difference between weather and climate?",
    "Describe how bread is made, from the field to the table.",
    "How can neighbours who quarrel about noise find peace?",
    "What would you show somebody who visits a museum for the first time?",
    "Why do we find some music sad?",
    "Write a short play for three children and a cat.",
    "How were bridges built when there were no machines?",
)
MAX_TOKENS = 128


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(f"chat {seed}")
    questions = list(QUESTIONS)
    chance.shuffle(questions)
    found = []
    for number in range(count):
        question = questions[number % len(questions)]
        # When all questions have been used, change them slightly.
        rounds = number // len(questions)
        asked = question if not rounds else f"{question} Answer as if it were the year {1900 + 7 * rounds}."
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]
        found.append({"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0})
    return found
