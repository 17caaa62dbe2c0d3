"""Zeroed memory for tables: small ones are blocks of a pool, large ones grow without being copied. Knows nothing of its
content.

A page that is touched for the first time costs microseconds, several times the cost of learning a token. Small tables
come and go with requests: their blocks are cut from large pages, and reused.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from contextlib import suppress

import numpy as np
import numpy.typing as npt

# From these sizes on a table has pages of its own, and huge pages: tables are read at random. One of huge pages is
# aligned to them and grows by whole ones, because parts of them would stay small pages.
_OWN, _LARGE, _LARGE_PAGE = 1 << 20, 8 << 20, 2 << 20
# Size of a region that the pool maps at once, and bytes of free blocks that it keeps; the pages of others are given
# back.
_REGION, _KEPT = 64 << 20, 64 << 20
# Bytes touched ahead of need: what ten requests take.
_AHEAD = 2 << 20
# madvise(2); Python has no name for it.
_POPULATE_WRITE = 23


class Block:
    """Some bytes of a region of the pool."""

    __slots__ = ("address", "at", "is_there", "region", "size")

    def __init__(self, region: mmap.mmap, at: int, size: int) -> None:
        self.region, self.at, self.size = region, at, size
        self.address = _address(region) + at
        # Whether its pages are kept while it is free.
        self.is_there = False


class Pool:
    """Blocks full of zeros, each of a power of two of bytes, of a page at least."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[Block]] = {}
        self._most_kept, self.kept = kept, 0
        # The newest region, where its free part begins, and how far it has been touched.
        self._region: mmap.mmap | None = None
        self._at = self._touched = 0

    def begin_anew(self) -> None:
        """In a forked process: the parent's pages would be copied one by one."""
        self.__init__(self._most_kept)  # type: ignore[misc]

    def take(self, size: int) -> Block:
        size = 1 << (max(size, mmap.PAGESIZE) - 1).bit_length()
        with self._lock:
            if free := self._free.get(size):
                block = free.pop()
                self.kept -= size if block.is_there else 0
                return block
            if self._region is None or self._at + size > len(self._region):
                self._region = self._begin()
            block = Block(self._region, self._at, size)
            # Tables aligned to powers of two would share the same sets of the processor's cache.
            self._at += size + mmap.PAGESIZE
            return block

    def give_back(self, block: Block) -> None:
        block.is_there = self.kept + block.size <= self._most_kept
        if block.is_there:
            ctypes.memset(block.address, 0, block.size)
        else:
            block.region.madvise(mmap.MADV_DONTNEED, block.at, block.size)
        with self._lock:
            self.kept += block.size if block.is_there else 0
            self._free.setdefault(block.size, []).append(block)

    def _begin(self) -> mmap.mmap:
        region = _pages(_REGION)
        _may_be_large(region)
        # Aligned to a huge page.
        self._at = self._touched = -_address(region) % _LARGE_PAGE
        return region

    def is_prepared(self) -> bool:
        return self._region is not None and self._touched >= min(self._at + _AHEAD, len(self._region))

    def prepare(self) -> None:
        """Touches what will be taken next. It may be taken meanwhile: nothing is written."""
        with self._lock:
            if self._region is None:
                self._region = self._begin()
            region, begin = self._region, self._touched
            end = self._touched = max(begin, min(self._at + 2 * _AHEAD, len(region)))
        if end > begin:
            # An older kernel refuses it, which does no harm.
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(_address(region) + begin), ctypes.c_size_t(end - begin), ctypes.c_int(_POPULATE_WRITE)
            )


POOL = Pool()
os.register_at_fork(after_in_child=POOL.begin_anew)


class Memory:
    """A table of 32-bit words. Its address may change with `lay_out`."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._block: Block | None = None
        self._map: mmap.mmap | None = None
        self.address = 0
        self._size = 0

    @property
    def rows(self) -> int:
        """Rows that there is room for."""
        return self._size // (4 * self._columns)

    def lay_out(self, rows: int) -> None:
        """Allocates at least `rows` rows and keeps their content."""
        needed = rows * self._columns * 4
        if needed <= self._size:
            return
        if needed <= _OWN:
            block = POOL.take(needed)
            self._moved(block.address, block.size, block, None)
            return
        page = _LARGE_PAGE if needed >= _LARGE else mmap.PAGESIZE
        size = -(-needed // page) * page
        # Not every system can move pages.
        with suppress(SystemError, OSError, ValueError):
            if self._map is not None:
                self._map.resize(size)
                self.address, self._size = _address(self._map), size
        if self._size < size:
            pages = _pages(size)
            self._moved(_address(pages), size, None, pages)
        if size >= _LARGE and self._map is not None:
            _may_be_large(self._map)

    def _moved(self, address: int, size: int, block: Block | None, pages: mmap.mmap | None) -> None:
        ctypes.memmove(address, self.address, self._size)
        self.close()
        self._block, self._map, self.address, self._size = block, pages, address, size

    def set(self, row: int, column: int, value: int) -> None:
        self._words(row + 1)[row * self._columns + column] = value

    def copy(self, rows: int) -> npt.NDArray[np.int32]:
        return self._words(rows).copy().reshape(rows, self._columns)

    def _words(self, rows: int) -> npt.NDArray[np.int32]:
        assert rows <= self.rows
        words = ctypes.c_int32 * (rows * self._columns)
        return np.ctypeslib.as_array(words.from_address(self.address))

    def close(self) -> None:
        """It may not be read any more."""
        if self._block is not None:
            POOL.give_back(self._block)
        if self._map is not None:
            self._map.close()
        self._block, self._map, self.address, self._size = None, None, 0, 0


def _pages(size: int) -> mmap.mmap:
    # Shared mappings, Python's default, can't be read beyond their first size after a resize.
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _may_be_large(pages: mmap.mmap) -> None:
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # There may be none.
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)


def _address(pages: mmap.mmap) -> int:
    return int(np.frombuffer(pages, np.uint8, 1).ctypes.data)
