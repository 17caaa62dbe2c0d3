"""Which page holds which text: full pages of computed, committed text by their keys (keys.py).

Any sequence whose text begins the same way may share such a page. It can be found after its last holder released it,
until its memory is needed; the least recently released page is evicted first. Knows no sequences.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.worker.cache.pages import Pages


class PrefixCache:
    def __init__(self, total_pages: int, enabled: bool = True) -> None:
        self.pages = Pages(total_pages, self._evict)
        self.enabled = enabled
        self.evictions = 0
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The pages of these keys, up to the first unknown key."""
        found = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            found.append(page)
        return found

    def page(self, key: bytes) -> int | None:
        return self._page_of.get(key)

    def enter(self, key: bytes, page: int) -> None:
        """This held page is full of the text of `key`. If another page has that text, the other one stays."""
        if self.enabled and key not in self._page_of:
            assert page not in self._key_of, "a page that is held is filled once"
            self._page_of[key] = page
            self._key_of[page] = key
            self.pages.keep(page)

    def forget(self, pages: Iterable[int]) -> None:
        """The contents of these pages are not valid."""
        for page in pages:
            key = self._key_of.pop(page, None)
            if key is not None:
                del self._page_of[key]
                self.pages.drop(page)

    def clear(self) -> None:
        self.forget(list(self._key_of))

    def _evict(self, page: int) -> None:
        del self._page_of[self._key_of.pop(page)]
        self.evictions += 1

    def check(self) -> None:
        self.pages.check()
        assert len(self._page_of) == len(self._key_of), "one page a key"
        assert all(self._page_of[key] == page for page, key in self._key_of.items()), "one key a page"
