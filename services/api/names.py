"""Valid names of namespaces and corpora."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
NAME_RULE = "must have 1..64 characters of A-Z, a-z, 0-9, '.', '_' and '-'"


def is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None
