"""`specmesh batch`: the requests of a file, answered into a file, by a mesh of its own or a server that runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp

from services.api.settings import Settings, flag_name
from services.cli.batch_lines import read_lines
from services.cli.batch_out import Ids, Out, OutError
from services.cli.batch_run import Asking, Progress, ServerGone, run, without_met
from services.cli.chat_drafts import printable
from specmesh.connection import Connection, RequestFailed
from specmesh.own_mesh import OwnMesh, StartFailed

START_S = 900.0
# Settings that are about how a server is asked, too.
OF_CLIENTS = ("api_keys", "api_keys_file")
AT_FAULT, NOT_DONE = 1, 2


def main(options: argparse.Namespace, settings: Settings) -> int:
    """Exit code 0: every line has an answer; 1: OUT is complete, and lines are at fault; 2: OUT isn't complete."""
    try:
        return _batch(options, settings)
    except (OutError, ServerGone, StartFailed) as error:
        return _said(str(error))
    except RequestFailed as error:
        return _said(f"{options.url} refuses: {error}")
    except aiohttp.ClientError as error:
        return _said(f"cannot reach {options.url}: {error}")
    except OSError as error:
        return _said(str(error))


def _said(text: str) -> int:
    print(f"specmesh: {printable(text)}", file=sys.stderr)
    return NOT_DONE


def _batch(options: argparse.Namespace, settings: Settings) -> int:
    source, target = (Path(word).expanduser() for word in (options.input, options.output))
    if options.url and (given := sorted(own_settings(settings).keys() - OF_CLIENTS)):
        flags = ", ".join(map(flag_name, given))
        return _said(f"a server that runs has its own settings: leave out {flags}")
    if target.exists() and source.samefile(target):
        return _said("IN and OUT are the same file")
    ids = Ids()
    with source.open("rb") as file:
        out = Out(target, ids)
        try:
            return _run(options, settings, file, out, ids)
        finally:
            out.close()
            ids.close()


def own_settings(settings: Settings) -> dict[str, Any]:
    """Those that were given as flags: a mesh of its own reads environment and settings file itself."""
    return {name: value for name, value in settings if settings.origin(name).startswith("flag ")}


def _run(options: argparse.Namespace, settings: Settings, file: BinaryIO, out: Out, ids: Ids) -> int:
    api_key = settings.api_keys.partition(",")[0].strip()
    mesh = None if options.url else _mesh(options, settings)
    url, socket = (options.url, "") if mesh is None else ("http://localhost", mesh.socket)
    connection = Connection(url, socket, api_key)
    try:
        if mesh is None:
            # Whether it is there, and takes this key.
            connection.run(connection.get("/v1/models"))
        else:
            connection.run(connection.ready(START_S, mesh.check))
        progress = Progress(_share_of(file))
        lines = without_met(read_lines(file), ids, progress)
        asking = Asking(connection, mesh.check if mesh is not None else _nothing)
        try:
            connection.run(run(lines, asking, out, progress, options.concurrency))
        except BaseException:
            progress.end()
            progress.tell("not all lines are done; the same command goes on from here")
            raise
        progress.end()
        print(progress.summary(), flush=True)
    finally:
        connection.close()
        if mesh is not None:
            mesh.close()
    if others := ids.never_met():
        progress.tell(f"{others} answers in OUT have no line in IN")
    return AT_FAULT if progress.wrong else 0


def _mesh(options: argparse.Namespace, settings: Settings) -> OwnMesh:
    print("specmesh: starting a mesh for this batch (--url names a server that runs)", file=sys.stderr, flush=True)
    own = {"config": options.config} if options.config else {}
    return OwnMesh("", {**own, **own_settings(settings)})


def _share_of(file: BinaryIO) -> Callable[[], float]:
    size = os.fstat(file.fileno()).st_size
    return lambda: file.tell() / size if size else 0.0


def _nothing() -> None: ...
