"""`specmesh corpus`: texts that a running server drafts from are added, listed and removed, over its HTTP API.

Files are read here, with the caller's rights; the server gets their texts, in parts, never a path. Other files are
skipped and listed. Knows the routes under /v1/corpora and nothing of how corpora are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import aiohttp

from services.api.own_door import own_context
from services.api.settings import Settings
from services.api.texts import pieces
from services.cli.chat import server_url, untrusted
from services.cli.chat_drafts import in_one_line
from services.cli.corpus_server import CorpusError, CorpusServer
from services.cli.progress_bar import ProgressBar

LARGEST_FILE = 64 << 20  # bytes
LONGEST_TEXT = 1 << 17  # characters; a longer file is cut behind a line
PART_BYTES = 1 << 19  # of text in one request: even at a token a byte it is no more than a part may have
PART_TEXTS = 4096
LOOKED_AT = 8192  # bytes at a file's beginning that are checked for being text
POLL = 0.5  # seconds between two queries of the progress
CONNECT_TIMEOUT = 5.0
LINK = "a symbolic link"
SHOWN = 20  # skipped files that are listed one by one


# Files --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Files:
    """The files found under the given paths, and the skipped ones by reason."""

    found: list[Path] = field(default_factory=list)
    bytes: int = 0
    skipped: list[tuple[Path, str]] = field(default_factory=list)

    def skip(self, path: Path, why: str) -> None:
        self.skipped.append((path, why))


def find_files(paths: list[str]) -> Files:
    """A file that is named is taken even when it is hidden or a link. In folders hidden names are passed over, and
    links are not followed: they may lead to files that the folder's owner can't read, and the caller can."""
    files = Files()
    for each in paths:
        path = Path(each).expanduser()
        if path.is_dir():
            _walk(path, files)
        elif path.exists():
            _take(path, files)
        else:
            raise CorpusError(f"{each} is not there")
    return files


def _walk(folder: Path, files: Files) -> None:
    def unreadable(error: OSError) -> None:
        files.skip(Path(error.filename), error.strerror or "cannot be read")

    for root, folders, names in os.walk(folder, onerror=unreadable):
        here = Path(root)
        for name in sorted(each for each in [*folders, *names] if each.startswith(".")):
            files.skip(here / name, "hidden")
        for name in sorted(each for each in names if not each.startswith(".")):
            if (here / name).is_symlink():
                files.skip(here / name, LINK)
            else:
                _take(here / name, files)
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for name in folders:
            # os.walk names links to folders and doesn't enter them.
            if (here / name).is_symlink():
                files.skip(here / name, LINK)


def _take(path: Path, files: Files) -> None:
    try:
        facts = path.stat()
    except OSError as error:
        files.skip(path, error.strerror or "cannot be read")
        return
    if not stat.S_ISREG(facts.st_mode):
        files.skip(path, "not a regular file")
    elif facts.st_size > LARGEST_FILE:
        files.skip(path, f"larger than {LARGEST_FILE >> 20} MB")
    elif facts.st_size == 0:
        files.skip(path, "empty")
    else:
        files.found.append(path)
        files.bytes += facts.st_size


def read_text(path: Path, files: Files) -> str:
    """The file's text; empty for one that has none, which is then among the skipped."""
    try:
        data = path.read_bytes()
        if b"\0" not in data[:LOOKED_AT]:
            return data.decode("utf-8-sig")
        why = "binary"
    except OSError as error:
        why = error.strerror or "cannot be read"
    except UnicodeDecodeError:
        why = "not UTF-8"
    files.skip(path, why)
    return ""


def parts(files: Files) -> Iterator[list[str]]:
    """Texts for one request after another; files are read when their turn comes."""
    texts: list[str] = []
    size = 0
    for path in files.found:
        for text in pieces(read_text(path, files), LONGEST_TEXT):
            length = len(text.encode())
            if texts and (size + length > PART_BYTES or len(texts) == PART_TEXTS):
                yield texts
                texts, size = [], 0
            texts.append(text)
            size += length
    if texts:
        yield texts


# The server ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CorpusApi:
    url: str
    api_key: str = ""
    namespace: str = ""
    tls: ssl.SSLContext | None = None

    async def add_part(self, http: aiohttp.ClientSession, name: str, texts: list[str], part: int, last: bool) -> Any:
        body = {"name": name, "texts": texts, "part": part, "last": last}
        return await self.ask(http, "POST", "/v1/corpora", {**body, **self._place()})

    async def cards(self, http: aiohttp.ClientSession) -> list[dict[str, Any]]:
        cards: list[dict[str, Any]] = (await self.ask(http, "GET", "/v1/corpora"))["data"]
        return cards

    async def remove(self, http: aiohttp.ClientSession, name: str) -> Any:
        return await self.ask(http, "DELETE", "/v1/corpora/" + quote(name, safe=""))

    async def ask(self, http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> Any:
        query = None if method == "POST" else self._place()
        async with _reached(self.url), http.request(method, self.url + path, json=body, params=query) as response:
            answer = await response.text()
        try:
            read = json.loads(answer)
            if response.status < 400:
                return read
            told = read["error"]["message"]
        except (ValueError, KeyError, TypeError):
            told = response.reason
        hint = "; give --api-key, or set api_keys (SPECMESH_API_KEYS)" if response.status == 401 else ""
        raise CorpusError(f"the server answered {response.status}: {told}{hint}")

    def session(self) -> aiohttp.ClientSession:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
        return aiohttp.ClientSession(
            headers=headers, timeout=timeout, connector=aiohttp.TCPConnector(ssl=self.tls or True)
        )

    def _place(self) -> dict[str, str]:
        return {"namespace": self.namespace} if self.namespace else {}


class _reached:
    """Network errors as messages that a user can act on."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, aiohttp.InvalidURL):
            raise CorpusError(f"{self._url} is not a URL") from None
        if isinstance(error, aiohttp.ClientSSLError):
            raise CorpusError(untrusted(self._url, error)) from None
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            raise CorpusError(f"nothing answers at {self._url}; start a server with `specmesh up`") from None
        if isinstance(error, aiohttp.ClientError):
            raise CorpusError(f"the connection to {self._url} broke ({type(error).__name__})") from None


# Actions ------------------------------------------------------------------------------------------------


def add(server: CorpusServer, names: list[str], as_json: bool) -> int:
    if len(names) < 2:
        raise CorpusError("give a name and at least one file or folder: specmesh corpus add NAME PATH...")
    name, *paths = names
    files = find_files(paths)
    bar = ProgressBar()
    try:
        card = asyncio.run(_send(server, name, files, bar))
    finally:
        bar.close()
        if not as_json:
            _tell_skipped(files)
    if as_json:
        skipped = [{"path": str(path), "why": why} for path, why in files.skipped]
        print(json.dumps({"corpus": card, "skipped": skipped}, indent=2))
    if card["state"] == "failed":
        raise CorpusError(f"the server could not build {name}: {card['message'] or 'it does not say why'}")
    if not as_json:
        print(f"{name}: ready, {card['tokens']:,} tokens of {card['texts']:,} text{'s' if card['texts'] != 1 else ''}")
    return 0


async def _send(server: CorpusServer, name: str, files: Files, bar: ProgressBar) -> dict[str, Any]:
    """Sends all parts, then waits until the corpus is built."""
    coming = parts(files)
    texts = next(coming, None)
    if texts is None:
        raise CorpusError("there is no text in what was given")
    number = sent = 0
    async with server.session() as http:
        while texts is not None:
            following = next(coming, None)
            card: dict[str, Any] = await server.add_part(http, name, texts, number, following is None)
            number += 1
            sent += sum(len(each.encode()) for each in texts)
            bar("sending", sent, files.bytes)
            texts = following
        while card["state"] not in ("ready", "failed"):
            bar("building", round(card["progress"] * 100), 100)
            await asyncio.sleep(POLL)
            known = {each["name"]: each for each in await server.cards(http)}
            if name not in known:
                raise CorpusError(f"{name} was removed while it was being built")
            card = known[name]
    return card


def show_list(server: CorpusServer, names: list[str], as_json: bool) -> int:
    async def cards() -> list[dict[str, Any]]:
        async with server.session() as http:
            return await server.cards(http)

    known = _only(asyncio.run(cards()), names)
    if as_json:
        print(json.dumps(known, indent=2))
        return 0
    for card in known:
        state = f"{card['state']} {card['progress']:.0%}" if card["state"] == "building" else card["state"]
        told = f"  {card['message']}" if card["message"] else ""
        line = f"{card['name']:<32} {state:<14} {card['tokens']:>13,} tokens {card['texts']:>8,} texts{told}"
        print(in_one_line(line))
    if not known:
        print("no corpora here; add one with `specmesh corpus add NAME PATH...`")
    return 0


def _only(cards: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    missing = set(names) - {card["name"] for card in cards}
    if missing:
        raise CorpusError(f"there is no corpus {', '.join(sorted(missing))}")
    return [card for card in cards if not names or card["name"] in names]


def remove(server: CorpusServer, names: list[str], as_json: bool) -> int:
    if not names:
        raise CorpusError("give the name: specmesh corpus remove NAME")

    async def each() -> list[Any]:
        async with server.session() as http:
            return [await server.remove(http, name) for name in names]

    removed = asyncio.run(each())
    print(json.dumps(removed, indent=2) if as_json else f"removed {', '.join(names)}")
    return 0


def _tell_skipped(files: Files) -> None:
    listed = [(path, why) for path, why in files.skipped if why != LINK]
    for path, why in listed[:SHOWN]:
        print(in_one_line(f"left out: {path} ({why})"), file=sys.stderr)
    if len(listed) > SHOWN:
        print(f"left out: {len(listed) - SHOWN} more (--json names them all)", file=sys.stderr)
    if links := len(files.skipped) - len(listed):
        print(f"left out: {links} symbolic link{'s' if links != 1 else ''} (name a file to add it)", file=sys.stderr)


ACTIONS: dict[str, Callable[[CorpusServer, list[str], bool], int]] = {"add": add, "list": show_list, "remove": remove}


def main(options: argparse.Namespace, settings: Settings) -> int:
    try:
        return ACTIONS[options.action or "list"](_server(options, settings), options.names, options.json)
    except CorpusError as error:
        print(f"specmesh: {error}", file=sys.stderr)
        return 1


def _server(options: argparse.Namespace, settings: Settings) -> CorpusServer:
    if options.proposer:
        from services.cli.corpus_at_proposer import ProposerCorpora

        namespace, tokenizer = options.namespace or "", options.tokenizer or ""
        return ProposerCorpora(options.proposer, namespace, tokenizer, settings.keys_dir)
    return CorpusApi(
        url=server_url(options.url, settings),
        tls=None if options.url else own_context(settings),
        api_key=options.api_key or settings.api_keys.partition(",")[0].strip(),
        namespace=options.namespace or "",
    )
