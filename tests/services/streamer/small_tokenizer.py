"""Tokenizers small enough for tests, of the kinds the door knows."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.streamer.choice.detokenize import byte_of_character

END_OF_TEXT = "<|end|>"
WORDS = ("Ġthe", "Ġquick", "Ġfox", "hello", "Ġworld", "th", "Ġth", "stop", "ST", "OP")


def byte_level_tokenizer() -> Tokenizer:
    """Every byte is a token (ids 0..255 in byte order), then a few words, then a special and an added token."""
    characters = sorted(byte_of_character().items(), key=lambda item: item[1])
    vocab = dict(characters)
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        for length in range(2, len(word) + 1):
            if word[:length] not in vocab:
                vocab[word[:length]] = len(vocab)
                merges.append((word[: length - 1], word[length - 1]))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    tokenizer.add_tokens([AddedToken("<added one>", special=False)])
    return tokenizer


def byte_fallback_tokenizer() -> Tokenizer:
    """Words that begin with a mark for the space, and a token for each byte: the older kind."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for word in ("▁the", "▁fox", "hello", "▁", "a", "b", "é"):
        vocab[word] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return tokenizer


def marking_tokenizer() -> Tokenizer:
    """Writes a mark for each space, and one before a text's first word, too."""
    words = ("▁hello", "hello", "▁the", "the", "▁fox", "fox", "▁")
    pieces = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -20.0) for byte in range(256)), *((word, -1.0) for word in words)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer
