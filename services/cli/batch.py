"""`specmesh batch`: the requests of a file, answered into a file, by a mesh of its own or a server that runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from services.api.settings import Settings
from services.cli.batch_lines import read_lines
from services.cli.batch_out import Ids, Out, OutError
from services.cli.batch_run import Progress, run, without_met
from services.cli.server_used import OptionsError, check_url, exit_code, server_used

AT_FAULT = 1


def main(options: argparse.Namespace, settings: Settings) -> int:
    """Exit code 0: every line has an answer; 1: OUT is complete, and lines are at fault; 2: OUT isn't complete."""
    return exit_code(options, lambda: _batch(options, settings))


def _batch(options: argparse.Namespace, settings: Settings) -> int:
    source, target = (Path(word).expanduser() for word in (options.input, options.output))
    check_url(options, settings)
    if target.exists() and source.samefile(target):
        raise OptionsError("IN and OUT are the same file")
    ids = Ids()
    with source.open("rb") as file:
        try:
            out = Out(target, ids)
        except OutError as error:
            raise OptionsError(str(error)) from None
        try:
            return _run(options, settings, file, out, ids)
        finally:
            out.close()
            ids.close()


def _run(options: argparse.Namespace, settings: Settings, file: BinaryIO, out: Out, ids: Ids) -> int:
    with server_used(options, settings, "this batch (--url names a server that runs)") as (connection, asking):
        progress = Progress(_share_of(file))
        lines = without_met(read_lines(file), ids, progress)
        try:
            connection.run(run(lines, asking, out, progress, options.concurrency))
        except BaseException:
            progress.end()
            progress.tell("not all lines are done; the same command goes on from here")
            raise
        progress.end()
        print(progress.summary(), flush=True)
    if others := ids.never_met():
        progress.tell(f"{others} answers in OUT have no line in IN")
    return AT_FAULT if progress.wrong else 0


def _share_of(file: BinaryIO) -> Callable[[], float]:
    size = os.fstat(file.fileno()).st_size
    return lambda: file.tell() / size if size else 0.0
