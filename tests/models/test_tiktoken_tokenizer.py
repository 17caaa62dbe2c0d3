"""Kimi's tokenizer from tiktoken.model: the ids are those of tiktoken's own rule, written down here once more."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
import regex
from tiny_folder import write_tiny_model
from tokenizers import Tokenizer

from models.check import check_model
from models.sources import ModelError, ensure_model
from models.tiktoken_tokenizer import tokenizer_json

# Cut into words as Kimi's own code says.
CUT = regex.compile(
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    regex.V1,
)
AUTO_MAP = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
ABOUT: dict[str, Any] = {
    "auto_map": AUTO_MAP,
    "added_tokens_decoder": {
        "700": {"content": "[BOS]", "special": True}, "702": {"content": "<|im_end|>", "special": True},
        "703": {"content": "<|tool_calls_section_begin|>", "special": False},
    },
}  # fmt: skip
PARTS = (
    "a", "b", "ab", "Ab", "aba", " ", "  ", "\n", "'s", "'LL", "12", "3456", "中", "文字", "é", "🙂", ".", "->",
    "か", "İ",
)  # fmt: skip


def ranks_of(seed: int, count: int = 700) -> list[bytes]:
    """All bytes, in no order, then joins of what is there, many of which can be cut in several ways, and tokens whose
    parts are none."""
    source = random.Random(seed)
    tokens = [bytes([byte]) for byte in range(256)]
    source.shuffle(tokens)
    pool = [bytes([byte]) for byte in b"aabb 1." + "中é".encode()]
    while len(tokens) < count:
        made = source.choice(pool) + source.choice(pool)
        if source.random() < 0.05:
            made = "".join(source.choices(PARTS, k=3)).encode()
        if made not in tokens and len(made) < 20:
            tokens.append(made)
            pool.append(made)
    return tokens


def ids_of(tokens: list[bytes], text: str) -> list[int]:
    """tiktoken's rule: a word that is a token is one; else neighbours are joined that have the lowest rank together."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    found = []
    for word in CUT.findall(text):
        parts = [word.encode()] if word.encode() in ranks else [bytes([byte]) for byte in word.encode()]
        while len(parts) > 1:
            joined = [ranks.get(parts[at] + parts[at + 1], len(ranks)) for at in range(len(parts) - 1)]
            best = joined.index(min(joined))
            if joined[best] == len(ranks):
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        found += [ranks[part] for part in parts]
    return found


def write(folder: Path, tokens: list[bytes], about: dict[str, Any], size: int = 720) -> None:
    folder.mkdir(exist_ok=True)
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "config.json").write_text(json.dumps({"vocab_size": size}))


def made(folder: Path, tokens: list[bytes], about: dict[str, Any] = ABOUT) -> Tokenizer:
    write(folder, tokens, about)
    return Tokenizer.from_str(json.dumps(tokenizer_json(folder, {"vocab_size": 720}, about)))


@pytest.mark.parametrize("seed", range(4))
def test_ids_are_those_of_tiktokens_rule(seed: int, tmp_path: Path) -> None:
    tokens, source = ranks_of(seed), random.Random(seed + 10)
    tokenizer = made(tmp_path, tokens)
    for _ in range(150):
        text = "".join(source.choices(PARTS, k=source.randrange(1, 16)))
        ids = tokenizer.encode(text).ids
        assert ids == ids_of(tokens, text), text
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(("first", "parts"), [(b"ba", ["a", "ba"]), (b"ab", ["ab", "a"])])
def test_a_token_of_several_cuts_is_joined_of_what_its_bytes_become(
    first: bytes, parts: list[str], tmp_path: Path
) -> None:
    """`aba` could be ab + a or a + ba: what of them has the lower rank comes to be, and the other never beside it."""
    tokens = [*(bytes([byte]) for byte in range(256)), first, *({b"ab", b"ba"} - {first}), b"aba"]
    assert tokenizer_json(*_as_given(tmp_path, tokens))["model"]["merges"][-1] == parts
    words = "xabay abab babab aba"
    assert made(tmp_path, tokens).encode(words).ids == ids_of(tokens, words)


def test_tokens_behind_the_ranks_have_the_configs_names_or_their_own(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, ranks_of(0))
    assert tokenizer.get_vocab_size() == 720
    said = tokenizer.encode("ab<|im_end|>[BOS]<|tool_calls_section_begin|><|reserved_token_701|>")
    assert said.ids[-4:] == [702, 700, 703, 701]
    assert tokenizer.decode(said.ids, skip_special_tokens=True).endswith(
        "ab<|tool_calls_section_begin|><|reserved_token_701|>"
    )


def _as_given(folder: Path, tokens: list[bytes], **about: Any) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    write(folder, tokens, ABOUT | about)
    return folder, {"text_config": {"vocab_size": len(tokens) + 8}}, ABOUT | about


@pytest.mark.parametrize(
    ("about", "text", "said"),
    [
        ({"auto_map": {"AutoTokenizer": "tokenization_other.Own"}}, None, "tokenization_other.Own"),
        ({"auto_map": None}, None, "no class"),
        ({}, "IQ== 0\n!! 1\n", "cannot be read"),
        ({}, "IQ== zero\n", "cannot be read"),
        ({}, "IQ== 0\nIQ== 1\n", "twice"),
        ({}, "IQ== 0\nIg== 2\n", "twice, or leaves one out"),
        ({}, "IQ== 0\nIg== 1\n", "no tokens for some bytes"),
        ({"added_tokens_decoder": {"700": {"content": "x"}, "701": {"content": "x"}}}, None, "two tokens alike"),
    ],
)
def test_what_is_wrong_is_named(about: dict[str, Any], text: str | None, said: str, tmp_path: Path) -> None:
    given = _as_given(tmp_path, ranks_of(0), **about)
    if text is not None:
        (tmp_path / "tiktoken.model").write_text(text)
    with pytest.raises(ModelError, match=said):
        tokenizer_json(*given)


def test_a_folder_with_ranks_becomes_one_of_links_with_a_tokenizer(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "Kimi")
    (folder / "tokenizer.json").unlink()
    config = (folder / "config.json").read_text()
    write(folder, ranks_of(0, 256), ABOUT)
    (folder / "config.json").write_text(config)
    before = sorted(path.name for path in folder.iterdir())

    assert check_model(folder).architecture == "LlamaForCausalLM"
    made = ensure_model(str(folder), tmp_path / "cache")

    assert made.parent == tmp_path / "cache" / "models" and made.name.startswith("kimi-")
    assert Tokenizer.from_file(str(made / "tokenizer.json")).get_vocab_size() == 304
    assert (made / "model.safetensors").resolve() == (folder / "model.safetensors").resolve()
    assert sorted(path.name for path in folder.iterdir()) == before
    assert ensure_model(str(folder), tmp_path / "cache") == made
    # With other names of its tokens it is another one.
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": AUTO_MAP, "padding_side": "left"}))
    assert ensure_model(str(folder), tmp_path / "cache") != made


def test_a_folder_whose_ranks_are_cut_by_unknown_code_is_refused_whole(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "other")
    (folder / "tokenizer.json").unlink()
    (folder / "tiktoken.model").write_text("IQ== 0\n")
    for act in (lambda: check_model(folder), lambda: ensure_model(str(folder), tmp_path / "cache")):
        with pytest.raises(ModelError, match="isn't run"):
            act()
    assert list((tmp_path / "cache" / "models").iterdir()) == []
