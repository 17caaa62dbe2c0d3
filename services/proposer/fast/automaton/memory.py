"""Zeroed memory for tables, which grow without being copied. Knows nothing of its content."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

# From this size on a table has huge pages: tables are read at random. It is aligned to them and grows by whole ones,
# because parts of them would stay small pages.
_LARGE, _LARGE_PAGE = 8 << 20, 2 << 20


class Memory:
    """A table of records. Its address may change with `lay_out`."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._map: mmap.mmap | None = None
        self.address = self._size = 0

    @property
    def rows(self) -> int:
        """Rows that there is room for."""
        return self._size // self._dtype.itemsize

    def lay_out(self, rows: int) -> None:
        """Allocates at least `rows` rows and keeps their content."""
        needed = rows * self._dtype.itemsize
        if needed <= self._size:
            return
        page = _LARGE_PAGE if needed >= _LARGE else mmap.PAGESIZE
        size = -(-needed // page) * page
        # Not every system can move pages.
        with suppress(SystemError, OSError, ValueError):
            if self._map is not None:
                self._map.resize(size)
                self.address, self._size = _address(self._map), size
        if self._size < size:
            # Shared mappings, Python's default, can't be read beyond their first size after a resize.
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            ctypes.memmove(_address(pages), self.address, self._size)
            self.close()
            self._map, self.address, self._size = pages, _address(pages), size
        if size >= _LARGE and self._map is not None and hasattr(mmap, "MADV_HUGEPAGE"):
            # There may be none.
            with suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE)

    def records(self, rows: int) -> npt.NDArray[Any]:
        """A view of the first rows. Not to be kept: memory that is in view can't grow."""
        assert self._map is not None and rows <= self.rows
        return np.frombuffer(self._map, self._dtype, rows)

    def close(self) -> None:
        """It may not be read any more."""
        if self._map is not None:
            self._map.close()
        self._map, self.address, self._size = None, 0, 0


def _address(pages: mmap.mmap) -> int:
    return int(np.frombuffer(pages, np.uint8, 1).ctypes.data)
