from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import END_OF_TEXT, byte_fallback_tokenizer, byte_level_tokenizer
from tokenizers import Tokenizer

from services.streamer.choice.detokenize import ByteDetokenizer, Vocabulary, WindowDetokenizer

BYTE_LEVEL = byte_level_tokenizer()
FALLBACK = byte_fallback_tokenizer()
TOKENIZERS = {"byte level": BYTE_LEVEL, "byte fallback": FALLBACK}


def in_pieces(vocabulary: Vocabulary, ids: list[int], sizes: list[int]) -> list[str]:
    detokenizer = vocabulary.detokenizer([])
    pieces, start = [], 0
    for size in [*sizes, len(ids)]:
        pieces.append(detokenizer.feed(ids[start : start + size]))
        start += size
    return [*pieces, detokenizer.flush()]


def test_each_kind_of_tokenizer_gets_its_detokenizer() -> None:
    assert isinstance(Vocabulary(BYTE_LEVEL).detokenizer([]), ByteDetokenizer)
    assert isinstance(Vocabulary(FALLBACK).detokenizer([]), WindowDetokenizer)


@given(
    st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=40),
    st.lists(st.integers(1, 4), max_size=20),
)
@settings(max_examples=300, deadline=None)
def test_the_pieces_joined_are_one_decode_of_all_ids(ids: list[int], sizes: list[int]) -> None:
    assert "".join(in_pieces(Vocabulary(BYTE_LEVEL), ids, sizes)) == BYTE_LEVEL.decode(ids)


# A malformed run of byte tokens is replaced byte by byte only when it is decoded at once, so texts are drawn.
WORDS = [["▁the"], ["▁fox"], ["hello"], ["▁"], *([f"<0x{byte:02X}>" for byte in c.encode()] for c in "🦊é中\n")]


@given(st.lists(st.sampled_from(WORDS), max_size=20), st.lists(st.integers(1, 4), max_size=20))
@settings(max_examples=300, deadline=None)
def test_the_pieces_of_the_older_kind_are_one_decode_too(words: list[list[str]], sizes: list[int]) -> None:
    ids = [FALLBACK.token_to_id(token) for word in words for token in word]
    assert "".join(in_pieces(Vocabulary(FALLBACK), ids, sizes)) == FALLBACK.decode(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_character_split_over_tokens_comes_whole(name: str) -> None:
    detokenizer = Vocabulary(TOKENIZERS[name]).detokenizer([])
    pieces = [detokenizer.feed([byte]) for byte in "🦊é".encode()]
    assert pieces == ["", "", "", "🦊", "", "é"]
    assert not detokenizer.unfinished


@pytest.mark.parametrize("name", TOKENIZERS)
def test_half_a_character_is_held_until_the_end(name: str) -> None:
    detokenizer = Vocabulary(TOKENIZERS[name]).detokenizer([])
    assert detokenizer.feed([0xF0, 0x9F]) == ""
    assert detokenizer.unfinished
    assert set(detokenizer.flush()) == {"\ufffd"}


def test_special_tokens_are_left_out_and_added_ones_are_text() -> None:
    special = BYTE_LEVEL.token_to_id(END_OF_TEXT)
    added = BYTE_LEVEL.token_to_id("<added one>")
    assert Vocabulary(BYTE_LEVEL).detokenizer([]).feed([104, special, added, 105]) == "h<added one>i"


def test_an_id_outside_the_vocabulary_stands_for_nothing() -> None:
    assert Vocabulary(BYTE_LEVEL).detokenizer([]).feed([104, 10**6, 105]) == "hi"


def test_a_special_token_has_a_name_in_logprobs() -> None:
    vocabulary = Vocabulary(BYTE_LEVEL)
    assert vocabulary.bytes_of(BYTE_LEVEL.token_to_id(END_OF_TEXT)) == END_OF_TEXT.encode()
    assert vocabulary.bytes_of(0xF0) == b"\xf0"
    assert vocabulary.text_of(0xF0) == "\ufffd"


def test_the_first_word_after_a_prompt_keeps_its_space() -> None:
    the, fox = FALLBACK.token_to_id("▁the"), FALLBACK.token_to_id("▁fox")
    assert Vocabulary(FALLBACK).detokenizer([the]).feed([fox]) == " fox"
    assert Vocabulary(FALLBACK).detokenizer([]).feed([fox]) == "fox"


def test_a_window_that_never_ends_is_let_go() -> None:
    detokenizer = Vocabulary(FALLBACK).detokenizer([])
    fed = "".join(detokenizer.feed([0xFF]) for _ in range(1000))
    assert len(fed) >= 900


@pytest.mark.model
def test_smollm2_text_in_pieces_is_one_decode(model_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    vocabulary = Vocabulary(tokenizer)
    assert vocabulary.byte_level
    draw = random.Random(0)
    for _ in range(200):
        ids = [draw.randrange(tokenizer.get_vocab_size()) for _ in range(100)]
        sizes = [draw.randint(1, 5) for _ in range(30)]
        assert "".join(in_pieces(vocabulary, ids, sizes)) == tokenizer.decode(ids)


@pytest.mark.model
def test_smollm2_costs_at_most_ten_microseconds_a_token(model_folder: Path) -> None:
    vocabulary = Vocabulary.load(model_folder)
    detokenizer = vocabulary.detokenizer([])
    ids = [random.Random(1).randrange(40000) for _ in range(20000)]
    best = 1.0
    for _ in range(5):
        # Of this thread: what else the machine does takes none of it.
        began = time.thread_time()
        for token in ids:
            detokenizer.feed([token])
        best = min(best, (time.thread_time() - began) / len(ids))
    assert best < 10e-6
