"""Ids of calls, by which the results of tools name the calls."""

from __future__ import annotations

import secrets
import string

_ALPHABET = string.ascii_letters + string.digits


def long_id() -> str:
    return "call_" + secrets.token_hex(12)


def short_id() -> str:
    """As templates of Mistral want it: nine letters and digits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))
