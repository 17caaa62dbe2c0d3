"""`specmesh corpus --proposer ADDRESS`: corpora at a proposer alone, beside another server (docs/use/vllm.md).

There is no HTTP API there, and no tokenizer: texts are encoded here, and go over the socket on which that server's
engine asks for drafts.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from services.api.messages import AddCorpus, Corpora, ListCorpora, Message, RemoveCorpus
from services.cli.corpus_server import CorpusError
from specmesh.vllm.options import vocabulary_of
from specmesh.vllm.wire import Connection, load_keys

ANSWER_S = 30.0
# Of the keys, as the engine has them.
KEY_NAME = "vllm"


class ProposerCorpora:
    """What services/cli/corpus.py asks of a server."""

    def __init__(self, address: str, namespace: str, tokenizer: str, keys_dir: str) -> None:
        """`tokenizer`: the model's folder. Raises CorpusError."""
        file = Path(tokenizer).expanduser() / "tokenizer.json"
        if not namespace or not file.is_file():
            raise CorpusError("--proposer needs --namespace (the served model's name) and --tokenizer (its folder)")
        self._tokenizer: Any = Tokenizer.from_file(str(file))
        self._namespace, self._vocabulary = namespace, vocabulary_of(str(file.parent), "")
        try:
            keys = load_keys(keys_dir, KEY_NAME) if keys_dir else None
            self._connection = Connection(address, f"corpus-{os.getpid()}", time.time_ns() // 1000, keys)
        except ValueError as error:
            raise CorpusError(str(error)) from None

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        yield

    async def add_part(self, http: None, name: str, texts: list[str], part: int, last: bool) -> dict[str, Any]:
        tokens = [each.ids for each in self._tokenizer.encode_batch(texts, add_special_tokens=False)]
        message = AddCorpus(
            namespace=self._namespace, name=name, vocabulary=self._vocabulary, part=part,
            texts=[ids for ids in tokens if ids], last=last,
        )  # fmt: skip
        return next(card for card in self._ask("add_corpus", message) if card["name"] == name)

    async def cards(self, http: None) -> list[dict[str, Any]]:
        return self._ask("list_corpora", ListCorpora(namespace=self._namespace, vocabulary=self._vocabulary))

    async def remove(self, http: None, name: str) -> list[dict[str, Any]]:
        message = RemoveCorpus(namespace=self._namespace, name=name, vocabulary=self._vocabulary)
        return self._ask("remove_corpus", message)

    def _ask(self, kind: str, message: Message) -> list[dict[str, Any]]:
        number = self._connection.ask(msgspec.msgpack.encode(message), round(1000 * ANSWER_S), kind)
        until = time.monotonic() + ANSWER_S
        # The first to arrive may be its greeting.
        while number and (left := until - time.monotonic()) > 0 and self._connection.wait(round(1000 * left)):
            if (answer := self._connection.receive()) is None:
                continue
            if answer.fields is None:
                raise CorpusError(f"the proposer refused it: {answer.reason}")
            return [msgspec.structs.asdict(card) for card in msgspec.convert(answer.fields, Corpora).corpora]
        raise CorpusError(f"no proposer answers at {self._connection.address}")
