"""Valid names of namespaces and corpora."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
NAME_RULE = "must have 1..64 characters of A-Z, a-z, 0-9, '.', '_' and '-'"


# The corpus of the model's answers that come with specmesh. No caller can give this name: names have no spaces.
MODEL_ANSWERS = "model answers"


def is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None
