"""Text to token ids and back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from models.errors import ModelError
from services.tokenizer import encode
from services.tokenizer.encode import Encoder, TooLong


@pytest.fixture
def encoder(tiny_folder: Path) -> Encoder:
    return Encoder.from_folder(tiny_folder)


@pytest.mark.parametrize("text", ["", "the cat", "naïve 日本語 🙂\n\t", "a" * 5000])
def test_what_is_encoded_decodes_to_the_same_text(encoder: Encoder, text: str) -> None:
    token_ids = encoder.encode(text, add_special_tokens=False)
    assert encoder.decode(token_ids, skip_special_tokens=True) == text


def test_special_tokens_are_added_only_when_asked_for(encoder: Encoder) -> None:
    bare = encoder.encode("the cat", add_special_tokens=False)
    assert encoder.encode("the cat", add_special_tokens=True) == [0, *bare]


def test_a_prompt_of_exactly_the_limit_passes_and_one_token_more_does_not(encoder: Encoder) -> None:
    token_ids = encoder.encode("the cat sat", add_special_tokens=False)
    count = len(token_ids)
    assert encoder.encode("the cat sat", add_special_tokens=False, max_tokens=count) == token_ids
    with pytest.raises(TooLong, match=f"the prompt has {count} tokens, the limit is {count - 1}"):
        encoder.encode("the cat sat", add_special_tokens=False, max_tokens=count - 1)


def test_a_text_too_long_for_any_tokens_is_known_without_encoding_it(encoder: Encoder) -> None:
    longest = max(len(token) for token in encoder._tokenizer.get_vocab())
    encoder.check_length("x" * longest * 10, max_tokens=10)
    with pytest.raises(TooLong, match="the prompt has at least 11 tokens, the limit is 10"):
        encoder.check_length("x" * (longest * 10 + 1), max_tokens=10)


def test_without_a_limit_there_is_that_of_an_answer(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "MOST_TOKENS", 20)
    assert len(encoder.encode("x" * 20, add_special_tokens=False)) == 20
    with pytest.raises(TooLong, match="has 21 tokens, the limit is 20"):
        encoder.encode("x" * 21, add_special_tokens=False)
    with pytest.raises(TooLong, match="at least"):
        encoder.check_length("x" * 1000)


def test_of_a_text_that_is_too_long_no_more_is_encoded_than_shows_it(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "PIECE", 1000)
    monkeypatch.setattr(encode, "MORE_BY_CUT", 5)
    longest = 0
    whole = encoder._tokenizer

    class Counted:
        def encode_batch_fast(self, texts: list[str], **more: bool) -> object:
            nonlocal longest
            longest = max(longest, len(texts[0]))
            return whole.encode_batch_fast(texts, **more)

    text = "the cat sat on a mat, " * 1000
    tokens = len(encoder.encode(text, add_special_tokens=False))
    encoder._tokenizer = Counted()  # type: ignore[assignment]
    with pytest.raises(TooLong, match="at least") as caught:
        encoder.encode(text, add_special_tokens=False, max_tokens=tokens // 4)
    assert longest == 1000 and tokens // 4 < caught.value.tokens < tokens // 3
    assert len(encoder.encode(text, add_special_tokens=False, max_tokens=tokens)) == tokens
    assert longest == len(text)


def test_a_word_is_spelled_as_it_is_and_as_it_follows_a_space(encoder: Encoder) -> None:
    (spellings,) = encoder.encode_words(["cat"])
    plain, spaced = (encoder.encode(text, add_special_tokens=False) for text in ("cat", " cat"))
    assert plain != spaced and spaced[-len(plain) :] != plain
    assert spellings == [plain, spaced]


def test_a_spelling_that_another_forbids_already_is_left_out(encoder: Encoder) -> None:
    # No token of the small vocabulary begins with a space and goes on with a Z.
    z, space_z = (encoder.encode(text, add_special_tokens=False) for text in ("Z", " Z"))
    assert space_z[-1:] == z
    assert encoder.encode_words(["Z", "cat"])[0] == [z]


def test_a_word_of_several_tokens_is_forbidden_as_a_whole(encoder: Encoder) -> None:
    (spellings,) = encoder.encode_words(["cat sat"])
    assert [encoder.decode(ids, skip_special_tokens=True) for ids in spellings] == ["cat sat", " cat sat"]
    assert all(len(ids) > 1 for ids in spellings)


def test_a_special_token_is_a_word_too_and_what_has_no_tokens_is_none(encoder: Encoder) -> None:
    assert encoder.encode_words(["<|end|>", ""]) == [[[1]], []]
    assert encoder.encode_words([]) == []


def test_truncation_and_padding_left_in_the_file_are_ignored(tiny_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=64)
    encoder = Encoder(Tokenizer.from_str(tokenizer.to_str()))
    assert encoder.decode(
        encoder.encode("the cat sat on", add_special_tokens=False), skip_special_tokens=False
    ) == ("the cat sat on")


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**40])
def test_an_id_outside_the_vocabulary_is_an_error_not_a_gap(encoder: Encoder, token_id: int) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        encoder.decode([5, token_id], skip_special_tokens=True)


def test_special_tokens_are_skipped_only_when_asked(encoder: Encoder) -> None:
    token_ids = encoder.encode("the", add_special_tokens=True)
    assert encoder.decode(token_ids, skip_special_tokens=True) == "the"
    assert encoder.decode(token_ids, skip_special_tokens=False) == "<|start|>the"


def test_threads_share_an_encoder(encoder: Encoder) -> None:
    texts = [f"the cat {n} sat on mat {n * n}" for n in range(200)]
    alone = [encoder.encode(text, add_special_tokens=False) for text in texts]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda text: encoder.encode(text, add_special_tokens=False), texts))
    assert together == alone


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": {"type": "BPE"}}', "\0" * 100, '{"model": 7}'])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=r"tokenizer\.json holds no tokenizer"):
        Encoder.from_folder(tmp_path)
