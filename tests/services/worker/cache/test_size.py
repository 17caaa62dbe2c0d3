"""How much memory the pages get."""

from __future__ import annotations

import pytest

from services.worker.cache.size import SHARE, kv_cache_bytes

GB = 1 << 30
MB = 1 << 20


def test_a_set_size_gives_whole_pages() -> None:
    assert kv_cache_bytes(1024, 0, MB) == GB
    assert kv_cache_bytes(10, 99 * GB, 3 * MB) == 9 * MB


def test_left_open_it_is_a_share_of_what_is_free() -> None:
    assert kv_cache_bytes(0, 10 * GB, MB) == int(10 * GB * SHARE) // MB * MB


def test_left_open_it_is_no_more_than_could_ever_be_used() -> None:
    assert kv_cache_bytes(0, 100 * GB, MB, needed_tokens=1000, page_tokens=32) == 32 * MB
    assert kv_cache_bytes(50, 100 * GB, MB, needed_tokens=1000, page_tokens=32) == 50 * MB


def test_not_one_page_is_an_error_that_says_why() -> None:
    with pytest.raises(ValueError, match="kv_cache_mb 1 holds no KV page: one takes 2097152 bytes"):
        kv_cache_bytes(1, 99 * GB, 2 * MB)
    with pytest.raises(ValueError, match="1 MB of free memory holds no KV page"):
        kv_cache_bytes(0, MB, 2 * MB)
