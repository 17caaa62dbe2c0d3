"""Zeroed memory that grows without being copied: the system moves its pages, and gives them only when touched."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
import numpy.typing as npt

# From here on the system may use larger pages: tables are looked into at random. A table of whole ones begins where
# such a page does, and is moved by whole pages; a part of one would be many small ones for good.
_LARGE, _LARGE_PAGE = 8 << 20, 2 << 20


class Memory:
    """A table of 32-bit words. Whoever holds its address asks again after `lay_out`."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._map = _pages(mmap.PAGESIZE)

    def lay_out(self, rows: int) -> None:
        """At least so many rows from now on; those there were stay what they are."""
        needed = rows * self._columns * 4
        page = _LARGE_PAGE if needed >= _LARGE else mmap.PAGESIZE
        size = -(-needed // page) * page
        if size <= len(self._map):
            return
        try:
            self._map.resize(size)
        except (SystemError, OSError, ValueError):
            # Not every system can move pages.
            old, self._map = self._map, _pages(size)
            self._map[: len(old)] = old[:]
            old.close()
        if size >= _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
            # Where there are none, it goes without.
            with suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE)

    @property
    def address(self) -> int:
        return int(np.frombuffer(self._map, np.uint8, 1).ctypes.data)

    def set(self, row: int, column: int, value: int) -> None:
        np.frombuffer(self._map, np.int32)[row * self._columns + column] = value

    def copy(self, rows: int) -> npt.NDArray[np.int32]:
        count = rows * self._columns
        return np.frombuffer(self._map, np.int32, count).copy().reshape(rows, self._columns)

    def close(self) -> None:
        self._map.close()


def _pages(size: int) -> mmap.mmap:
    # Shared ones, Python's default, would end where they ended at first, whatever their new size.
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
