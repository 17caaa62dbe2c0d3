"""Prose that comes with Python: the paragraphs of its language reference, as `help()` shows them."""

from __future__ import annotations

from pydoc_data import topics

# Topics that consist mostly of sentences.
_WANTED = (
    "assert", "assignment", "attribute-access", "binary", "booleans", "break", "class", "comparisons", "compound",
    "context-managers", "continue", "conversions", "customization", "debugger", "del", "dynamic-features", "else",
    "exceptions", "execmodel", "exprlists", "for", "formatstrings", "function", "global", "id-classes", "identifiers",
    "if", "import", "integers", "lambda", "naming", "nonlocal", "objects", "pass", "raise", "return",
    "sequence-types", "slicings", "specialattrs", "specialnames", "string-methods", "strings", "try", "types",
    "typesmethods", "typesseq", "while", "with", "yield",
)  # fmt: skip
_LEAST, _MOST = 160, 700  # characters of a paragraph


def paragraphs(topic: str, characters: int) -> list[str]:
    """The paragraphs of a topic that are sentences, one per line, up to about the given number of characters."""
    found: list[str] = []
    for block in topics.topics[topic].split("\n\n"):
        text = " ".join(block.split())
        if _LEAST <= len(text) <= _MOST and "::=" not in text and text[0].isupper() and text.endswith("."):
            found.append(text)
        if sum(map(len, found)) >= characters:
            break
    return found


TOPICS = tuple(name for name in _WANTED if name in topics.topics and len(paragraphs(name, 1200)) >= 3)
