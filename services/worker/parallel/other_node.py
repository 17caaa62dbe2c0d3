"""A node of a split worker that isn't the first: it has some of the worker's ranks, and nothing else of the mesh.

    dial ──▶ Hello ──▶ wait until all nodes are there ──▶ ranks ──▶ until the worker or one of them ends ──▶ dial

It outlives workers: their ranks end with them, and it waits for the next one. nodes.py is the other side. A process of
its own, with its settings in the environment and the model's folder as its one word. No torch: the ranks are processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from mesh.errors import Insecure
from models.errors import ModelError
from models.fingerprint import fingerprint
from services.api.nodes import ranks_of
from services.api.settings import load_settings
from services.runtime.cpu_placement import take_place, threads_of
from services.runtime.log import configure_log
from services.worker.parallel.line import Beat, Beats, Hello, Line, LineLost, Lost, Refused, Told
from services.worker.parallel.meeting import Meeting, meeting_of
from services.worker.parallel.nodes import hello_of
from services.worker.parallel.processes import RankProcesses
from services.worker.parallel.rank import Start

log = logging.getLogger("specmesh.node")

REDIAL = 0.5  # s
DIAL_TIMEOUT = 5.0  # s


class NotWanted(Exception):
    """Refused for good, with what differs."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which node this is, and what it gives."""

    meeting: Meeting
    node: int
    ranks: int
    folder: Path
    # Of all its ranks together.
    threads: int


class OtherNode:
    def __init__(self, place: Place, wait: Callable[[float], Any] = time.sleep) -> None:
        self._place, self._wait = place, wait
        self._hello: Hello = hello_of(fingerprint(place.folder), place.node, place.meeting.nodes, place.ranks)
        self._last_said = ""

    def run(self) -> NoReturn:
        """Until this process ends. Raises NotWanted."""
        while True:
            self._serve(self._dial())
            self._wait(REDIAL)

    def _dial(self) -> socket.socket:
        meeting = self._place.meeting
        while True:
            try:
                return socket.create_connection((meeting.host, meeting.port), DIAL_TIMEOUT)
            except OSError:
                # Also a name that isn't known yet, as of a pod that is about to start.
                self._say_once(f"waiting for the worker at {meeting.host}:{meeting.port}")
                self._wait(REDIAL)

    def _say_once(self, text: str) -> None:
        if text != self._last_said:
            self._last_said = text
            log.warning("%s", text)

    def _serve(self, connection: socket.socket) -> None:
        """One worker, until it or one of its ranks here ends."""
        line: Line | None = None
        beats: Beats | None = None
        own: list[RankProcesses] = []
        try:
            line = Line(connection, self._place.meeting.secret, first=False)
            line.say(self._hello)
            beats = Beats(line)
            while True:
                match line.hear():
                    case Beat():
                        pass
                    case Refused(why, passing):
                        if not passing:
                            raise NotWanted(why)
                        self._say_once(f"the worker doesn't take this node yet: {why}")
                        return
                    case Told() as told if not own and told.ranks == self._place.ranks:
                        own.append(self._start(told, line, connection))
                    case other:
                        raise LineLost(f"it said {type(other).__name__}")
        except LineLost as error:
            self._say_once(f"this worker is over: {error}")
        finally:
            if beats is not None:
                beats.close()
            connection.close() if line is None else line.close()
            for processes in own:
                processes.end()

    def _start(self, told: Told, line: Line, connection: socket.socket) -> RankProcesses:
        place = self._place
        here = told.ranks // place.meeting.nodes
        first = place.node * here
        options = {**told.options, "threads": max(1, place.threads // here)}
        host, master = connection.getsockname()[0], connection.getpeername()[0]

        def lost(why: str) -> None:
            with contextlib.suppress(LineLost):
                line.say(Lost(why))
            # Who hears on this line ends the others.
            line.close(why)

        processes = RankProcesses(lost)
        self._last_said = ""
        log.info("starting %s for the worker at %s", ranks_of(place.node, place.meeting.nodes, told.ranks), master)
        for number in range(here):
            processes.start(
                Start(
                    parent=os.getpid(),
                    rank=first + number,
                    ranks=told.ranks,
                    device=number,
                    store=master,
                    port=told.port,
                    generation=told.generation,
                    host=host,
                    folder=str(place.folder),
                    executor=told.executor,
                    quantization=told.quantization,
                    gpu=told.gpu,
                    options=options,
                )
            )
        return processes


class _Asked(BaseException):
    """To stop. No `except Exception` on the way may hold it up."""


def main() -> int:
    """Runs until Ctrl-C or SIGTERM. The exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        settings = load_settings({}, os.environ)
        configure_log(settings.log_level, f"node/{settings.node_rank}", settings.log_format)
        # Ranks inherit the cores.
        take_place("worker", settings.cores, 0)
        meeting = meeting_of(settings)
        assert meeting is not None
        threads = threads_of("worker", settings.cores, settings.threads)
        OtherNode(Place(meeting, settings.node_rank, settings.tensor_parallel_size, Path(sys.argv[1]), threads)).run()
    except NotWanted as error:
        log.error("the worker refuses this node: %s", error)
        return 1
    except (ModelError, Insecure, ValueError) as error:
        log.error("cannot run: %s", error)
        return 1
    except _Asked:
        return 0


def _stop(number: int, frame: FrameType | None) -> None:
    # What comes next may come while this one is obeyed.
    signal.signal(number, signal.SIG_IGN)
    raise _Asked


if __name__ == "__main__":
    sys.exit(main())
