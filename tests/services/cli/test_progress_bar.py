"""What is drawn of a download, on a terminal and in a log."""

from __future__ import annotations

import io

from services.cli.progress_bar import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_that_is_drawn_over() -> None:
    out = Terminal()
    bar = ProgressBar(out)
    for done in (0, 50 << 20, 100 << 20):
        bar("download", done, 100 << 20)
    bar.close()
    text = out.getvalue()
    assert text.count("\n") == 1 and text.count("\r") == 3
    assert "50 of 100 MB" in text and "[" + "#" * 30 + "] 100%" in text


def test_a_log_gets_a_line_a_tenth_and_no_carriage_returns() -> None:
    out = io.StringIO()
    bar = ProgressBar(out)
    for done in range(1001):
        bar("convert", done, 1000)
    bar.close()
    assert out.getvalue().splitlines()[0] == "converting 0%"
    assert len(out.getvalue().splitlines()) == 11
    assert "\r" not in out.getvalue()


def test_each_stage_has_its_own_line_and_an_unknown_length_is_no_fault() -> None:
    out = Terminal()
    bar = ProgressBar(out)
    bar("wait", 0, 0)
    bar("download", 1, 2)
    bar.close()
    bar.close()
    lines = out.getvalue().split("\n")
    assert "waiting for another process" in lines[0] and "downloading" in lines[1] and lines[2] == ""


def test_more_than_all_is_all() -> None:
    out = io.StringIO()
    ProgressBar(out)("download", 30, 20)
    assert out.getvalue() == "downloading 100%\n"
