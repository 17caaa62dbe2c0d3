"""Output through a queue: what is written arrives in order; a reader that stalls or is gone holds nobody up."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from services.runtime.output import QueuedStream, QueueWriter

ROOT = Path(__file__).parents[3]
LONG = 20.0  # s: more than anything here takes


class Pipe:
    """A stream that writes into a pipe, whose other end the test reads or doesn't."""

    def __init__(self, most_bytes: int) -> None:
        self.reader, descriptor = os.pipe()
        self._replaced = os.fdopen(descriptor, "w", encoding="ascii")
        self.writer = QueueWriter(most_bytes)
        self.stream = QueuedStream(self.writer, self._replaced)

    def fill(self) -> None:
        # Opened anew, so that only our end doesn't wait.
        own = os.open(f"/proc/self/fd/{self.stream.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(own, b"\n" * 4096)
        os.close(own)

    def read_until(self, end: bytes) -> bytes:
        data = b""
        while end not in data:
            data += os.read(self.reader, 65536)
        return data

    def close_reader(self) -> None:
        if self.reader:
            os.close(self.reader)
            self.reader = 0

    def close(self) -> None:
        self.close_reader()
        # Nothing may be written to a descriptor that is somebody else's by then.
        assert self.writer.drain(LONG)
        self._replaced.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe(most_bytes=1000)
    yield pipe
    pipe.close()


def test_lines_arrive_whole_and_in_order(pipe: Pipe) -> None:
    print("one", 1, file=pipe.stream)
    print("half", end="", file=pipe.stream)
    print(" a line", "\u2026", file=pipe.stream)
    pipe.stream.write("no end")
    pipe.stream.flush()
    assert pipe.read_until(b"no end") == b"one 1\nhalf a line \\u2026\nno end"
    assert not pipe.stream.isatty() and pipe.stream.fileno() > 2


def test_a_stalled_reader_holds_nobody_up_and_learns_how_much_it_missed(pipe: Pipe) -> None:
    pipe.fill()
    for number in range(10_000):
        print(number, file=pipe.stream)
    said = pipe.read_until(b"were dropped: the reader was too slow\n").decode().split()
    written = [word for word in said if word.isdigit()]
    assert written[: len(written) - 1] == [str(number) for number in range(len(written) - 1)]
    assert int(written[-1]) == 10_000 - (len(written) - 1) > 9_000
    print("again", file=pipe.stream)
    assert pipe.read_until(b"again\n")


def test_a_reader_that_is_gone_costs_the_lines_only(pipe: Pipe) -> None:
    pipe.close_reader()
    print("unheard", file=pipe.stream)
    assert pipe.writer.drain(LONG)


def test_a_descriptor_that_does_not_wait_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.stream.fileno(), False)
    for number in range(20_000):
        pipe.writer.put(pipe.stream.fileno(), b"%d\n" % number)
        if number % 100 == 99:
            assert pipe.read_until(b"%d\n" % number)


def test_what_was_written_last_is_out_before_the_process_ends() -> None:
    code = "from services.runtime import output; output.install(); print('out'); raise SystemExit('why')"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "out\n", "why\n")


def test_a_captured_stream_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from services.runtime import output

    captured = io.StringIO()
    monkeypatch.setattr(sys, "stdout", captured)
    monkeypatch.setattr(sys, "stderr", cast("io.StringIO", captured))
    output.install()
    assert sys.stdout is sys.stderr is captured
