"""The signals on which a process drains and ends."""

from __future__ import annotations

import signal


def ending_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, Ctrl-C, and that the terminal is gone: unless this was started to outlive its terminal, as by nohup."""
    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, *(() if outlives else (signal.SIGHUP,)))
