"""tokenizer.json from tiktoken.model, as Kimi's models have it: a token and its rank a line. Runs none of the code that
comes with such models; how it cuts a text before merging is written down here.

    IQ== 0          the bytes "!" in base64, and their rank, which is the id

tiktoken joins, of all neighbours, those first whose bytes together have the lowest rank. tokenizer.json names pairs. A
token is only ever joined of one pair, whatever stands around it: of the two parts that its own bytes are in before the
last join. So one pair for each token, in the order of ranks, gives the same ids.

A run of 25 000 characters with or without spaces is one piece here; Kimi's own code cuts it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from models.errors import ModelError
from models.gguf_tokenizer import bpe, byte_level, split

NAME = "tiktoken.model"
# The class whose cutting is known; its repository names it in tokenizer_config.json.
_KNOWN = "tokenization_kimi."
_CAPITALS, _SMALL = (rf"[{kinds}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for kinds in (r"\p{Lu}\p{Lt}", r"\p{Ll}"))
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_SPLIT = "|".join((
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+{_SHORT}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*{_SHORT}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
))  # fmt: skip
# Ids behind the ranks that have a name, given or made.
_NAMED = 258
_MAX_BYTES = 64 << 20
# What all tokens' lengths, squared, may sum up to: Kimi K2's to 10 million.
_MAX_WORK = 1 << 28


def tokenizer_json(folder: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
    """The whole tokenizer.json of a model with as many ids as config.json says. Raises `ModelError`."""
    _check_known(folder, tokenizer_config)
    ranks = _ranks(folder / NAME)
    characters = _characters()

    def text(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    vocabulary = {text(token): rank for token, rank in ranks.items()}
    merges = [[text(first), text(second)] for first, second in _merges(ranks)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(folder, len(ranks), _ids(config), tokenizer_config),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(_SPLIT), byte_level(False)]},
        "post_processor": None,
        "decoder": byte_level(True),
        # A piece that is a token is never cut.
        "model": bpe(vocabulary, merges, ignore_merges=True),
    }


def _check_known(folder: Path, tokenizer_config: Mapping[str, Any]) -> None:
    auto_map = tokenizer_config.get("auto_map")
    named = str(auto_map.get("AutoTokenizer")) if isinstance(auto_map, dict) else "no class"
    if _KNOWN not in named:
        raise ModelError(
            f"{folder}: {NAME} is cut into words by code ({named[:100]}), which isn't run",
            f"supported: tokenizer.json, or {NAME} of a model whose tokenizer_config.json names {_KNOWN}*",
        )


def _ids(config: Mapping[str, Any]) -> int:
    text = config.get("text_config")
    found = (text if isinstance(text, dict) else config).get("vocab_size")
    return found if isinstance(found, int) else 0


def _ranks(path: Path) -> dict[bytes, int]:
    """The tokens in the order of their ranks, which are 0 and up without a gap."""
    try:
        raw = path.read_bytes() if path.stat().st_size <= _MAX_BYTES else b""
        lines = [line.split() for line in raw.splitlines() if line.strip()]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except (OSError, ValueError, binascii.Error) as error:
        raise ModelError(f"{path} cannot be read: {error}", "fetch the file again") from error
    ordered = dict(sorted(ranks.items(), key=lambda item: item[1]))
    if len(ranks) != len(lines) or list(ordered.values()) != list(range(len(ordered))):
        raise ModelError(f"{path} gives a token or a rank twice, or leaves one out", "fetch the file again")
    if not all(bytes([byte]) in ranks for byte in range(256)):
        raise ModelError(f"{path} has no tokens for some bytes", "fetch the file again")
    if sum(len(token) ** 2 for token in ranks) > _MAX_WORK:
        raise ModelError(f"{path} has tokens that are too long", "fetch the file again")
    return ordered


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    for token in ranks:
        cuts = [cut for cut in range(1, len(token)) if token[:cut] in ranks and token[cut:] in ranks]
        if len(cuts) == 1:
            yield token[: cuts[0]], token[cuts[0] :]
        elif cuts and (parts := _last_parts(token, ranks)):
            yield parts


def _last_parts(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes] | None:
    """What the token is joined of in the end; None: its bytes alone never become it."""
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        joined = [first + second for first, second in pairwise(parts)]
        best = min(range(len(joined)), key=lambda at: ranks.get(joined[at], len(ranks)))
        if joined[best] not in ranks:
            return None
        parts[best : best + 2] = [joined[best]]
    return parts[0], parts[1]


def _added(folder: Path, first: int, ids: int, tokenizer_config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tokens behind the ranks, by the names that the config gives them. Those without one are what no text has."""
    given = tokenizer_config.get("added_tokens_decoder")
    given = given if isinstance(given, dict) else {}
    found = []
    for token in range(first, min(first + _NAMED, ids)):
        entry = given.get(str(token))
        entry = entry if isinstance(entry, dict) and isinstance(entry.get("content"), str) else {"special": False}
        found.append({
            "id": token, "content": entry.get("content", f"<|reserved_token_{token}|>"), "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": False, "special": bool(entry.get("special", True)),
        })  # fmt: skip
    if len({each["content"] for each in found}) != len(found):
        raise ModelError(f"{folder}: tokenizer_config.json names two tokens alike", "fetch the file again")
    return found


def _characters() -> list[str]:
    """How byte-level vocabularies write the 256 bytes: as themselves where they are visible, else from 256 up."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (chr(256 + place) for place in range(256))
    return [chr(byte) if byte in visible else next(others) for byte in range(256)]
