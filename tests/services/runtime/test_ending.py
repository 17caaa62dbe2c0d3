from __future__ import annotations

import signal

from services.runtime.ending import ending_signals


def test_a_process_ends_with_its_terminal_unless_it_was_started_to_outlive_it(with_terminal: None) -> None:
    assert signal.SIGHUP in ending_signals()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert ending_signals() == (signal.SIGTERM, signal.SIGINT)
