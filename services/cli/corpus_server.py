"""What `specmesh corpus` asks of a server, or of a proposer alone."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from services.cli.chat_drafts import printable


class CorpusError(Exception):
    """The command failed; the message is for the user's terminal."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class CorpusServer(Protocol):
    """`http` is what `session` gave. Cards are those of the routes. All raise CorpusError."""

    def session(self) -> AbstractAsyncContextManager[Any]: ...
    async def add_part(self, http: Any, name: str, texts: list[str], part: int, last: bool) -> Any: ...
    async def cards(self, http: Any) -> list[dict[str, Any]]: ...
    async def remove(self, http: Any, name: str) -> Any: ...
