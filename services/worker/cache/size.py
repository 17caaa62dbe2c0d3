"""The memory for pages: as set, or a share of the memory that is free after the model's weights."""

from __future__ import annotations

# Share of free memory. The rest is for the step's buffers, other processes and the file cache.
SHARE = 0.6
MEBIBYTE = 1 << 20


def kv_cache_bytes(
    setting_mb: int, available: int, page_bytes: int, needed_tokens: int = 0, page_tokens: int = 1
) -> int:
    """Bytes for a whole number of pages.

    `setting_mb` 0: a share of `available`, at most enough for `needed_tokens` (running sequences times context; 0: no
    such bound). Raises ValueError if not one page fits.
    """
    if setting_mb:
        wanted = setting_mb * MEBIBYTE
    else:
        wanted = int(available * SHARE)
        if needed_tokens:
            wanted = min(wanted, -(-needed_tokens // page_tokens) * page_bytes)
    pages = wanted // page_bytes
    if pages < 1:
        said = f"kv_cache_mb {setting_mb}" if setting_mb else f"{available // MEBIBYTE} MB of free memory"
        raise ValueError(f"{said} holds no KV page: one takes {page_bytes} bytes")
    return pages * page_bytes
