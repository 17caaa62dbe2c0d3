"""A wall clock that can be stepped, for a mesh of ours and nothing else: a small library that its processes load first
adds an offset to what the kernel says. Needs a C compiler. Monotonic clocks stay as they are, as when an operator sets
the date.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void open_offset(void) {
    const char *path = getenv("STEPPED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *place = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (place != MAP_FAILED) offset = place;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, which, now);
    if (!failed && offset && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset;
    return failed;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
"""


class SteppedClock:
    def __init__(self, folder: Path) -> None:
        self._offset = folder / "clock"
        self._library = folder / "clock.so"
        self._offset.write_bytes(struct.pack("q", 0))
        with self._offset.open("r+b") as file:
            self._place = mmap.mmap(file.fileno(), 8)

    @classmethod
    def make(cls, folder: Path) -> SteppedClock | None:
        """None: there is no compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            return None
        clock = cls(folder)
        command = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(clock._library)]
        made = subprocess.run(command, input=SOURCE.encode(), capture_output=True)
        return clock if made.returncode == 0 else None

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "STEPPED_CLOCK": str(self._offset)}

    def step(self, seconds: int) -> None:
        """From the machine's own time."""
        self._place[:] = struct.pack("q", seconds)
