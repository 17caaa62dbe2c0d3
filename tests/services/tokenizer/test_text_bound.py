"""Whatever a text is: it never has fewer tokens than its bound says."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_tokenizer import byte_fallback_tokenizer, byte_level_tokenizer, marking_tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from models.sources import ensure_model
from services.api.settings import Settings, cache_dir
from services.tokenizer.encode import Encoder
from services.tokenizer.text_bound import NFC_SHRINKS, TextBound, bound_of


def composing() -> Tokenizer:
    """Each byte is a token: one that is lost shows."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: token for token, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def without_some_bytes() -> Tokenizer:
    """As SmolLM2: some control characters and bytes have no token, and are left out."""
    vocabulary = byte_level_tokenizer().get_vocab(with_added_tokens=False)
    gone = {character for character, token in vocabulary.items() if token in (0x04, 0x06, 0xF1, 0xC0)}
    left = {token: place for place, token in enumerate(sorted(set(vocabulary) - gone, key=vocabulary.__getitem__))}
    tokenizer = Tokenizer(models.BPE(vocab=left, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


BOUNDED = {
    "byte level": byte_level_tokenizer(),
    "byte level, composing": composing(),
    "without some bytes": without_some_bytes(),
    "byte fallback": byte_fallback_tokenizer(),
}
TEXTS = st.text() | st.text("\x04\x06a the\u0301\U00050000\u1100\u1161\u11a8", max_size=200)


@pytest.mark.parametrize("name", BOUNDED)
@given(text=TEXTS)
@example(text="e\u0301" * 10)
def test_a_text_has_at_least_as_many_tokens(name: str, text: str) -> None:
    tokenizer = BOUNDED[name]
    bound = bound_of(tokenizer)
    assert bound is not None
    assert bound.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False).ids)


def test_bytes_that_have_no_token_do_not_count() -> None:
    tokenizer = without_some_bytes()
    assert bound_of(tokenizer) == TextBound(longest=6, ignored=b"\x04\x06\xf1")
    assert tokenizer.encode("\x04" * 1000).ids == []


def test_composing_characters_shrinks_no_text_more_than_is_reckoned_with() -> None:
    """Each composed character, written in the longest way that is composed to it."""
    apart = {chr(code): unicodedata.normalize("NFD", chr(code)) for code in range(0x110000) if code // 0x800 != 27}
    apart = {character: parts for character, parts in apart.items() if character != parts}
    longest: dict[str, int] = {}
    for character, parts in apart.items():
        if len(parts) == 1:
            longest[parts] = max(longest.get(parts, 0), len(character.encode()))
    for character, parts in apart.items():
        size = sum(max(longest.get(part, 0), len(part.encode())) for part in parts)
        assert size <= NFC_SHRINKS * len(unicodedata.normalize("NFC", character).encode())


def stripping() -> Tokenizer:
    tokenizer = byte_level_tokenizer()
    tokenizer.normalizer = normalizers.Strip()
    return tokenizer


def replacing() -> Tokenizer:
    tokenizer = byte_level_tokenizer()
    tokenizer.normalizer = normalizers.Replace(Regex(" +"), " ")
    return tokenizer


def removing() -> Tokenizer:
    tokenizer = byte_level_tokenizer()
    split = pre_tokenizers.Split(" ", "removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(use_regex=False)])
    return tokenizer


def taking_spaces() -> Tokenizer:
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return tokenizer


def unknown_characters() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab={"<unk>": 0, "a": 1}, merges=[], unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = None
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [stripping(), replacing(), removing(), taking_spaces(), unknown_characters(), marking_tokenizer()],
    ids=["strip", "replace", "remove", "lstrip", "unknown", "unigram"],
)
def test_a_tokenizer_that_may_drop_text_has_no_bound(tokenizer: Tokenizer) -> None:
    assert bound_of(tokenizer) is None
    Encoder(tokenizer).check_length("x" * 100_000, max_tokens=1)


@pytest.mark.model
def test_the_default_model_has_a_bound() -> None:
    folder = ensure_model("smollm2-135m-instruct", cache_dir(Settings.for_tests()))
    bound = bound_of(Tokenizer.from_file(str(folder / "tokenizer.json")))
    assert bound == TextBound(longest=81, ignored=b"\x04\x06\x13\x14\x16\x1d\xf1\xf2")
