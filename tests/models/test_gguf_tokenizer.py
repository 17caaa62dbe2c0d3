"""The tokenizer made from a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import gguf_writer as writer
import pytest
from tokenizers import Tokenizer

from models.gguf import GgufFile
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
