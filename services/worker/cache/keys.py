"""Names of texts, so that a page can be found by what was computed into it.

    root = hash(salt)        key of page 0 = hash(root, its tokens)        key of page i = hash(key i-1, its tokens)

A key thus stands for every token from the beginning of a text to the end of a page, and for whose text it is:
tenants with different salts have different roots and no key in common. Keys are 128 bits and begin with a secret
of this process, so that nobody outside can look for two texts with one key (docs/decisions/0008).
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

KEY_BYTES = 16
SECRET_BYTES = 32


class Keys:
    def __init__(self, page_tokens: int, secret: bytes) -> None:
        self._page_tokens = page_tokens
        self._secret = secret

    def root(self, salt: str) -> bytes:
        # A salt is text from outside: it may hold lone surrogates.
        return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES, key=self._secret).digest()

    def extend(self, keys: list[bytes], text: list[int], pages: int) -> None:
        """`keys` is the root and the keys of the first pages of `text`: add to it until there are `pages`."""
        size = self._page_tokens
        for page in range(len(keys) - 1, pages):
            keys.append(self.after(keys[-1], text[page * size : (page + 1) * size]))

    def after(self, key: bytes, tokens: list[int]) -> bytes:
        """The key of a text that goes on with these, at most one page of them."""
        return blake2b(key + array("i", tokens).tobytes(), digest_size=KEY_BYTES).digest()
