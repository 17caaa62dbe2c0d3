"""tokenizer.json from a GGUF file's vocabulary and merges. Knows nothing of weights or folders."""

from __future__ import annotations

from itertools import islice
from typing import Any

from models.gguf import GgufError, GgufFile

# Values of tokenizer.ggml.token_type.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
# What stands for a space in SentencePiece's vocabularies.
_SPACE = "▁"
# Longer tokens are nothing that text is merged into, and looking at all their cuts would take for ever.
_MAX_MERGED = 512
# Llama 2 has 1.9 ways to join a token of two others, Gemma 2.3. Tokens that are all runs of one letter have hundreds.
_MERGES_A_TOKEN = 8

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# As Llama 3 cuts, but every digit stands alone.
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


# tokenizer.ggml.pre -> how text is cut before merging. All of them end in bytes.
_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [byte_level(True)],
    "default": [byte_level(True)],
    "smollm": [{"type": "Digits", "individual_digits": True}, byte_level(True)],
    "llama-bpe": [split(_LLAMA3_SPLIT), byte_level(False)],
    "llama3": [split(_LLAMA3_SPLIT), byte_level(False)],
    "qwen2": [split(_QWEN2_SPLIT), byte_level(False)],
}
# Whose text is composed (é as one character) before anything else.
_COMPOSED = ("qwen2",)


def tokenizer_json(gguf: GgufFile) -> dict[str, Any]:
    """The whole tokenizer.json, special tokens added."""
    model = gguf.metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model not in _MODELS:
        raise GgufError(f"{gguf.path}: tokenizer model {model!r} is not read; {' and '.join(_MODELS)} are")
    tokens = _strings(gguf, "tokenizer.ggml.tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise GgufError(f"{gguf.path}: tokenizer.ggml.tokens holds a token twice")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(gguf, tokens),
        **_MODELS[model](gguf, vocabulary),
    }


def _byte_pairs(gguf: GgufFile, vocabulary: dict[str, int]) -> dict[str, Any]:
    """BPE over bytes, as GPT-2 began it: the file has the merges, and the name of how text is cut."""
    entries = gguf.metadata
    pre = entries.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in _PRE_TOKENIZERS:
        raise GgufError(f"{gguf.path}: pre-tokenizer {pre!r} is unknown; known are {', '.join(_PRE_TOKENIZERS)}")
    merges = [merge.split(" ", 1) for merge in _strings(gguf, "tokenizer.ggml.merges")]
    for merge in merges:
        if len(merge) != 2 or not vocabulary.keys() >= {*merge, "".join(merge)}:
            raise GgufError(f"{gguf.path}: merge {' '.join(merge)!r} joins tokens outside the vocabulary")
    return {
        "normalizer": {"type": "NFC"} if pre in _COMPOSED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
        "post_processor": _begin_with(list(vocabulary), entries, by_default=False),
        "decoder": {**byte_level(True), "add_prefix_space": True},
        # Llama 3 keeps whole words of the vocabulary that its merges cannot reach.
        "model": bpe(vocabulary, merges, ignore_merges=pre in ("llama-bpe", "llama3")),
    }


def _sentence_pieces(gguf: GgufFile, vocabulary: dict[str, int]) -> dict[str, Any]:
    """SentencePiece's BPE: of all neighbours, those are joined first that make the token of the highest score.
    Characters outside the vocabulary become their bytes."""
    entries = gguf.metadata
    kinds = _numbers(gguf, "tokenizer.ggml.token_type", len(vocabulary))
    scores = _numbers(gguf, "tokenizer.ggml.scores", len(vocabulary))
    unknown = next((token for token, index in vocabulary.items() if kinds[index] == _UNKNOWN), None)
    starts_with_space = entries.get("tokenizer.ggml.add_space_prefix", True)
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if starts_with_space else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if starts_with_space else []
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    restore = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None,
        "post_processor": _begin_with(list(vocabulary), entries, by_default=True),
        "decoder": {
            "type": "Sequence",
            "decoders": [restore, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": bpe(
            vocabulary,
            _merges_by_score(gguf, vocabulary, scores, kinds),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=_BYTE in kinds,
        ),
    }


def _merges_by_score(
    gguf: GgufFile, vocabulary: dict[str, int], scores: list[float], kinds: list[float]
) -> list[list[str]]:
    """Every way to make a token of two others, the best score first, then the longest first part. The file has no
    merges; this order gives those that Hugging Face's folders of the same models have."""
    ways = (
        (-scores[index], -cut, -len(token), index, [token[:cut], token[cut:]])
        for token, index in vocabulary.items()
        if kinds[index] == _NORMAL and len(token) <= _MAX_MERGED
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    )
    most = _MERGES_A_TOKEN * len(vocabulary)
    found = list(islice(ways, most + 1))
    if len(found) > most:
        raise GgufError(f"{gguf.path}: tokenizer.ggml.tokens can be joined in more than {most} ways")
    return [merge for *_, merge in sorted(found)]


_MODELS = {"gpt2": _byte_pairs, "llama": _sentence_pieces}


def bpe(vocabulary: dict[str, int], merges: list[list[str]], **changes: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **changes,
        "vocab": vocabulary,
        "merges": merges,
    }


def _numbers(gguf: GgufFile, key: str, count: int) -> list[float]:
    found = gguf.metadata.get(key)
    if not isinstance(found, list) or len(found) != count or not all(isinstance(x, int | float) for x in found):
        raise GgufError(f"{gguf.path}: {key} is not a list of {count} numbers")
    return found


def _kinds(gguf: GgufFile) -> list[Any]:
    """Of the tokens; a file may say nothing of them."""
    found = gguf.metadata.get("tokenizer.ggml.token_type", [])
    if not isinstance(found, list):
        raise GgufError(f"{gguf.path}: tokenizer.ggml.token_type is no list")
    return found


def _strings(gguf: GgufFile, key: str) -> list[str]:
    found = gguf.metadata.get(key)
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise GgufError(f"{gguf.path}: {key} is missing")
    return found


def _added_tokens(gguf: GgufFile, tokens: list[str]) -> list[dict[str, Any]]:
    kinds = _kinds(gguf)
    return [
        {
            "id": index,
            "content": tokens[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != _USER_DEFINED,
        }
        for index, kind in enumerate(kinds[: len(tokens)])
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]


def _begin_with(tokens: list[str], entries: dict[str, Any], *, by_default: bool) -> dict[str, Any] | None:
    """A post-processor that puts the bos token first, for models that want it."""
    bos = entries.get("tokenizer.ggml.bos_token_id")
    if not entries.get("tokenizer.ggml.add_bos_token", by_default):
        return None
    if not isinstance(bos, int) or not 0 <= bos < len(tokens):
        return None
    special, first, second = (
        {"SpecialToken": {"id": tokens[bos], "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 0}},
    )
    return {
        "type": "TemplateProcessing",
        "single": [special, first],
        "pair": [special, first, special, second],
        "special_tokens": {tokens[bos]: {"id": tokens[bos], "ids": [bos], "tokens": [tokens[bos]]}},
    }


def tokenizer_config(gguf: GgufFile) -> dict[str, Any]:
    """tokenizer_config.json: special tokens by role, and the chat template."""
    entries = gguf.metadata
    tokens = _strings(gguf, "tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": entries.get(f"{entries['general.architecture']}.context_length"),
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = entries.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            config[f"{role}_token"] = tokens[index]
    if isinstance(entries.get("tokenizer.chat_template"), str):
        config["chat_template"] = entries["tokenizer.chat_template"]
    return config


def end_token_ids(gguf: GgufFile) -> list[int]:
    """Tokens that end an answer: eos, end of turn, end of message, and <|endoftext|> where it is one."""
    entries = gguf.metadata
    tokens = _strings(gguf, "tokenizer.ggml.tokens")
    kinds = _kinds(gguf)
    ids = [entries.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    # GGUF names one eos; a chat model ends its documents and its turns with different tokens.
    for index, kind in enumerate(kinds[: len(tokens)]):
        if kind == _CONTROL and tokens[index] in ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>"):
            ids.append(index)
    return list(dict.fromkeys(i for i in ids if isinstance(i, int) and 0 <= i < len(tokens)))
