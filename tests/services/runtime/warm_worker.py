"""A warm parent and its workers, as a child of tests: `python warm_worker.py ORDER`.

A worker says its process id, its parent's, and how often something was loaded before it was forked. Then it does as
ordered: `exit N` at once, `die` by SIGKILL, or `wait`: it says each signal that asks it to end, and ends at SIGUSR1,
with code 7.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys

from services.runtime.preload import WarmParent, tell_parent

loaded: list[str] = []


def load() -> None:
    loaded.append("loaded")


def work(order: str) -> int:
    print("worker", os.getpid(), os.getppid(), len(loaded), flush=True)
    if order.startswith("exit"):
        return int(order.split()[1])
    if order == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Not printed: the signal may come while `print` below is at work.
        signal.signal(number, lambda number, _: os.write(1, f"asked {signal.Signals(number).name}\n".encode()))
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
    tell_parent()
    print("waits", flush=True)
    while True:
        # A signal that comes just before pause() is called would be handled with the next one only.
        select.select([], [], [], 0.05)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level="INFO")
    code = WarmParent("tiny", load).run()
    sys.exit(work(sys.argv[1]) if code is None else code)
