"""The parent of a role that has to come back at once. It has imported and loaded what a start takes long over; it forks
the process that does the work, and another when that one has died.

    specmesh run proposer ─ imports ─▶ parent ── fork ─▶ worker: node, directory, actor (services/runtime/process.py)
                                         │ ▲               │ killed, crashed, fenced
                                 another │ └───────────────┘
                                         ▼

It has no thread, no socket and no event loop: nothing that a fork would tear in two. All it does is wait for signals,
and pass on those that ask a process to end. When it dies, the kernel kills its worker. A worker that ends by itself
ends the parent with the same code; so does one that dies again and again, for whoever started the parent to see. As the
first process of a container it buries others' dead, too. Knows nothing of what a worker does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

from mesh.supervisor import Crashes, Policy
from services.runtime.ending import ending_signals

log = logging.getLogger(__name__)

# A worker that dies is restarted almost at once, then after half a second; the caller's own restarts come later.
POLICY = Policy(first_delay=0.005, growth=10.0, longest_delay=0.5, retry_failed_after=0.0)
# Sent by a worker once `load` is fast: what it does is compiled and only needs reading a file.
LOADABLE = signal.SIGUSR2
_PASSED_ON = (*ending_signals(), signal.SIGUSR1)
_HEARD = (signal.SIGCHLD, LOADABLE, *_PASSED_ON)
_SET_PDEATHSIG, _SET_NAME = 1, 15  # of prctl


class WarmParent:
    """`load` is called once, when a worker has sent LOADABLE. `name` is what `ps` and `top` show of the worker."""

    def __init__(self, name: str, load: Callable[[], None], policy: Policy = POLICY) -> None:
        self._name = name
        self._load = load
        self._crashes = Crashes(policy)
        self._forked_at = 0.0
        self._fork_at = 0.0
        self._pid = os.getpid()
        self._worker = 0
        self._loaded = False
        self._stopping = False
        self._is_worker = False

    def run(self) -> int | None:
        """Returns in each process: None in a worker, which goes on from here; the exit code in the parent."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        _show_as(f"{self._name}-parent")
        code: int | None = None
        while code is None and not self._is_worker:
            if self._stopping and not self._worker:
                return 0
            if not self._worker and time.monotonic() >= self._fork_at:
                self._fork()
            else:
                self._hear()
                code = self._bury()
        return code

    def _hear(self) -> None:
        """Wait for a signal, or until it is time to fork."""
        left = max(0.0, self._fork_at - time.monotonic())
        heard = signal.sigwaitinfo(_HEARD) if self._worker else signal.sigtimedwait(_HEARD, left)
        if heard is not None and heard.si_signo in _PASSED_ON:
            self._pass_on(signal.Signals(heard.si_signo))
        elif heard is not None and heard.si_signo == LOADABLE and not self._loaded:
            self._loaded = True
            self._load()

    def _pass_on(self, number: signal.Signals) -> None:
        self._stopping |= number != signal.SIGUSR1
        if self._worker:
            os.kill(self._worker, number)
            # A stopped process gets no signal before it continues.
            os.kill(self._worker, signal.SIGCONT)

    def _bury(self) -> int | None:
        """All that have ended: one SIGCHLD may stand for several. The exit code, once there is one."""
        code: int | None = None
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._worker:
                    code = os.waitstatus_to_exitcode(ended[1])
        return None if code is None else self._ended(code)

    def _ended(self, code: int) -> int | None:
        now, self._worker = time.monotonic(), 0
        if self._stopping or code == 0:
            return _as_exit_code(code)
        restart = self._crashes.restart(code, now - self._forked_at, now)
        if restart.failed or restart.delay is None:
            log.error("giving up: %s", restart.why)
            return _as_exit_code(code)
        log.warning("%s", restart.why)
        self._fork_at = now + restart.delay
        return None

    def _fork(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # What is there stays in pages that both have.
        gc.freeze()
        self._forked_at = time.monotonic()
        self._worker = os.fork()
        if not self._worker:
            self._become_worker()

    def _become_worker(self) -> None:
        self._is_worker = True
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._pid:
            # It died before that was asked.
            os._exit(1)
        # Ctrl-C goes to the whole group: the worker gets it from the parent, once.
        os.setpgid(0, 0)
        _show_as(self._name)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)


def tell_parent() -> None:
    """In a worker: what it has loaded can be loaded by its parent."""
    os.kill(os.getppid(), LOADABLE)


def _show_as(name: str) -> None:
    # The kernel takes 15 characters.
    ctypes.CDLL(None).prctl(_SET_NAME, name.encode(), 0, 0, 0)


def _as_exit_code(code: int) -> int:
    """As shells say it of a process that a signal has killed."""
    return code if code >= 0 else 128 - code
