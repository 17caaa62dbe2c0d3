"""Keys of texts, by which a page is found.

    root = hash(salt)        key of page 0 = hash(root, its tokens)        key of page i = hash(key i-1, its tokens)

A key thus depends on all tokens from the beginning of the text to the end of the page, and on the salt: tenants with
different salts have no key in common. Keys have 128 bits and are keyed with a secret of this process, so that nobody
else can search for two texts with one key (docs/internals/decisions/0008).
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
        # A salt comes from outside and may contain lone surrogates.
        return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES, key=self._secret).digest()

    def extend(self, keys: list[bytes], text: list[int], pages: int) -> None:
        """`keys` is the root and the keys of the first pages of `text`: add to it until there are `pages`."""
        size = self._page_tokens
        for page in range(len(keys) - 1, pages):
            keys.append(self.after(keys[-1], text[page * size : (page + 1) * size]))

    def after(self, key: bytes, tokens: list[int]) -> bytes:
        """The key of a text continued by these tokens, at most a page of them."""
        return blake2b(key + array("i", tokens).tobytes(), digest_size=KEY_BYTES).digest()
