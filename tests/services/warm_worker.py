"""A warm parent and its workers, as a child of tests: `python warm_worker.py ORDER`.

A worker says its process id, its parent's, and how often something was loaded before it was forked. Then it does as
ordered: `exit N` at once, `die` by SIGKILL, or `wait` until it is asked to end: it says by what, and ends with code 7.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

from services.warm_parent import WarmParent, tell_parent

loaded: list[str] = []


def load() -> None:
    loaded.append("loaded")


def work(order: str) -> int:
    print("worker", os.getpid(), os.getppid(), len(loaded), flush=True)
    if order.startswith("exit"):
        return int(order.split()[1])
    if order == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    asked = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, asked)
    tell_parent()
    print("waits", flush=True)
    print("asked", signal.Signals(signal.sigwait(asked)).name, flush=True)
    # Asked twice, it would say so.
    for number in signal.sigpending() & asked:
        print("asked again", number, flush=True)
    return 7


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level="INFO")
    code = WarmParent("tiny", load).run()
    sys.exit(work(sys.argv[1]) if code is None else code)
