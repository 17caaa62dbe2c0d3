"""The server that a command asks: one that runs (--url), or a mesh of its own, which ends with the command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp

from services.api.settings import Settings, flag_name
from services.cli.batch_run import Asking, ServerGone
from services.cli.chat_drafts import printable
from specmesh.connection import Connection, RequestFailed
from specmesh.own_mesh import OwnMesh, StartFailed

START_S = 900.0
# Settings that are about how a server is asked, too.
OF_CLIENTS = ("api_keys", "api_keys_file")
NOT_DONE = 2


class OptionsError(Exception):
    """Flags or files can't be used; the message is for the user."""


def exit_code(options: argparse.Namespace, run: Callable[[], int]) -> int:
    """Of a command that asks a server; what ends it is said."""
    try:
        return run()
    except (OptionsError, ServerGone, StartFailed) as error:
        return _said(str(error))
    except RequestFailed as error:
        return _said(f"{options.url or 'the mesh'} refuses: {error}")
    except aiohttp.ClientError as error:
        return _said(f"cannot reach {options.url or 'the mesh'}: {error}")
    except OSError as error:
        return _said(str(error))


def _said(text: str) -> int:
    print(f"specmesh: {printable(text)}", file=sys.stderr)
    return NOT_DONE


def own_settings(settings: Settings) -> dict[str, Any]:
    """Those that were given as flags: a mesh of its own reads environment and settings file itself."""
    return {name: value for name, value in settings if settings.origin(name).startswith("flag ")}


def check_url(options: argparse.Namespace, settings: Settings) -> None:
    if options.url and (given := sorted(own_settings(settings).keys() - OF_CLIENTS)):
        flags = ", ".join(map(flag_name, given))
        raise OptionsError(f"a server that runs has its own settings: leave out {flags}")


@contextmanager
def server_used(options: argparse.Namespace, settings: Settings, what: str) -> Iterator[tuple[Connection, Asking]]:
    """Once it can answer. `what` a mesh of its own is started for."""
    check_url(options, settings)
    api_key = settings.api_keys.partition(",")[0].strip()
    mesh = None if options.url else own_mesh(options, settings, what)
    url, socket = (options.url, "") if mesh is None else ("http://localhost", mesh.socket)
    connection = Connection(url, socket, api_key)
    try:
        if mesh is None:
            # Whether it is there, and takes this key.
            connection.run(connection.get("/v1/models"))
        else:
            connection.run(connection.ready(START_S, mesh.check))
        yield connection, Asking(connection, mesh.check if mesh is not None else _nothing)
    finally:
        connection.close()
        if mesh is not None:
            mesh.close()


def own_mesh(options: argparse.Namespace, settings: Settings, what: str) -> OwnMesh:
    print(f"specmesh: starting a mesh for {what}", file=sys.stderr, flush=True)
    own = {"config": options.config} if options.config else {}
    return OwnMesh("", {**own, **own_settings(settings)})


def _nothing() -> None: ...
