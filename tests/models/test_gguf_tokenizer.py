"""The tokenizer made from a GGUF file."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import gguf_writer as writer
import pytest
from tokenizers import Tokenizer

from models.gguf import GgufError, GgufFile
from models.gguf_tokenizer import tokenizer_json


def tiny(tmp_path: Path, **changes: object) -> Tokenizer:
    writer.write_tiny_gguf(tmp_path / "tiny.gguf", **changes)
    return Tokenizer.from_str(json.dumps(tokenizer_json(GgufFile(tmp_path / "tiny.gguf"))))


def test_merges_join_in_their_order(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    assert tokenizer.encode("hello hello").tokens == ["hello", "Ġhello"]


def test_special_tokens_are_one_token_and_left_out_on_request(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    ids = tokenizer.encode("<|im_start|>hello<|im_end|>").ids
    assert ids[0] == 1 and ids[-1] == 2 and len(ids) == 3
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>hello<|im_end|>"


def test_bos_goes_first_where_the_file_asks_for_it(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, **{"tokenizer.ggml.add_bos_token": True})
    assert tokenizer.encode("hello").ids[0] == 1
    assert tokenizer.encode("hello", add_special_tokens=False).tokens == ["hello"]


TEXTS = [
    "Hello world",
    "  two  spaces\n\nand\tmore ",
    "naïve café — “quotes” … 中文字符 日本語 한국어 العربية",
    "🙂👩‍👩‍👧‍👦 e\u0301 \u200b",
    "def f(x):\n    return x**2  # 3.14159 and 1,000,000\n",
    "It's we'll they'd I'm",
    "\x00\x01\x7f",
    "",
]


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_gives_back_the_text(smollm2: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.model
def test_smollm2_gives_the_ids_it_is_known_for(smollm2: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 49152
    assert tokenizer.token_to_id("<|endoftext|>") == 0
    assert tokenizer.token_to_id("<|im_start|>") == 1
    assert tokenizer.token_to_id("<|im_end|>") == 2
    assert tokenizer.encode("Hello world").ids == [19556, 905]
    assert tokenizer.encode("<|im_start|>user\nHello<|im_end|>\n").ids == [1, 4093, 198, 19556, 2, 198]
    # Digits are always alone.
    assert tokenizer.encode("2024").tokens == ["2", "0", "2", "4"]
    # Text is cut as GPT-2 cuts it: the space goes with the word, contractions stand alone.
    assert tokenizer.encode("It's  ok").tokens == ["It", "'s", "Ġ", "Ġok"]


@pytest.mark.model
def test_smollm2_has_its_chat_template_and_ends(smollm2: Path) -> None:
    config = json.loads((smollm2 / "tokenizer_config.json").read_text())
    assert "<|im_start|>" in config["chat_template"] and config["eos_token"] == "<|im_end|>"
    assert json.loads((smollm2 / "generation_config.json").read_text())["eos_token_id"] == [2, 0]


def test_qwen2_cuts_and_composes_as_its_own_tokenizer_does(tmp_path: Path) -> None:
    from transformers import Qwen2Tokenizer

    tokenizer = tiny(tmp_path, **{"tokenizer.ggml.pre": "qwen2"})
    theirs = Qwen2Tokenizer().backend_tokenizer
    for text in [*TEXTS, "2024 e\u0301te\u0301", "I'LL  go\r\n\r\n x", "a_b=c;;\n"]:
        composed = tokenizer.normalizer.normalize_str(text)
        assert composed == theirs.normalizer.normalize_str(text)
        assert tokenizer.pre_tokenizer.pre_tokenize_str(composed) == theirs.pre_tokenizer.pre_tokenize_str(composed)


# SentencePiece -------------------------------------------------------------------------------------------

# Letters, then what they may join to; scores fall, so earlier joins win.
PIECES = [*"▁abcdeé", "ab", "▁a", "bc", "abc", "cd", "▁ab", "de", "▁▁", "bcd", "▁abc", "cde", "dé"]


def sentence_pieces() -> dict[str, object]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, "<tool>"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(PIECES), 4]
    scores = [0.0] * 259 + [-float(i) for i in range(len(PIECES))] + [0.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": None,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def pieces_of(text: str) -> list[str]:
    """What SentencePiece is defined to do: join the best pair, the first of equals, until none can be joined."""
    pieces = list("▁" + text.replace(" ", "▁")) if text else []
    rank = {piece: i for i, piece in enumerate(PIECES)}
    while True:
        joined = [(rank[a + b], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in rank]
        if not joined:
            break
        _, at = min(joined)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return [part for piece in pieces for part in ([piece] if piece in rank else bytes_of(piece))]


def bytes_of(character: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in character.encode()]


def test_sentence_pieces_join_by_score_and_unknown_characters_become_bytes(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, **sentence_pieces())
    source = random.Random(3)
    texts = ["", "abcde", "  a  b", "ü漢🙂", "a\nb"]
    texts += ["".join(source.choices("aabbccddeeé  xü\n", k=source.randrange(1, 30))) for _ in range(300)]
    for text in texts:
        encoded = tokenizer.encode(text, add_special_tokens=False)
        assert encoded.tokens == pieces_of(text), text
        assert tokenizer.decode(encoded.ids) == text


def test_merges_are_those_that_transformers_makes_of_the_scores(tmp_path: Path) -> None:
    from transformers.tokenization_utils_base import generate_merges

    metadata = sentence_pieces()
    tokens, kinds, scores = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "scores"))
    scores = [max(score, -12.0) for score in scores]  # some equal
    others = [token for token, kind in zip(tokens, kinds, strict=True) if kind != 1]
    expected = generate_merges({t: i for i, t in enumerate(tokens)}, dict(zip(tokens, scores, strict=True)), others)
    made = json.loads(tiny(tmp_path, **(metadata | {"tokenizer.ggml.scores": scores})).to_str())
    assert [tuple(merge) for merge in made["model"]["merges"]] == expected and len(expected) > 10


def test_sentence_pieces_begin_with_bos_unless_the_file_says_no(tmp_path: Path) -> None:
    assert tiny(tmp_path, **sentence_pieces()).encode("ab").tokens == ["<s>", "▁ab"]
    said_no = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_space_prefix": False}
    assert tiny(tmp_path, **sentence_pieces(), **said_no).encode("ab").tokens == ["ab"]


def test_special_tokens_stand_between_sentence_pieces(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, **sentence_pieces())
    encoded = tokenizer.encode("<s>ab</s><tool>", add_special_tokens=False)
    assert encoded.tokens == ["<s>", "▁ab", "</s>", "<tool>"]
    assert tokenizer.decode(encoded.ids) == "ab<tool>"


def test_a_token_of_a_megabyte_is_no_work(tmp_path: Path) -> None:
    metadata = sentence_pieces()
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"][:-1], "ab" * 500_000]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"][:-1], 1]
    assert tiny(tmp_path, **metadata).encode("ab", add_special_tokens=False).tokens == ["▁ab"]


@pytest.mark.parametrize("key", ["scores", "token_type"])
def test_sentence_pieces_without_their_numbers_are_refused(key: str, tmp_path: Path) -> None:
    for value in (None, [1.0, 2.0], ["a"]):
        with pytest.raises(GgufError, match=f"tokenizer.ggml.{key}"):
            tiny(tmp_path, **(sentence_pieces() | {f"tokenizer.ggml.{key}": value}))
