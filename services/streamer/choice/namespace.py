"""Makes three ids of a request's sender: the namespace that its drafts come from and that learns from its answer
(Generate.namespace), the salt of the prefix cache (Generate.cache_salt), whose hits show in response times, and the
caller that workers give an equal share (Generate.caller).

A caller's namespace is private. Callers are distinguished by API key (a server without keys has one caller: itself),
`cache_salt` separates a caller's requests further, and so does a name in `speculation.namespace`. Only a name that
the setting shared_namespaces lists is one namespace for all who ask for it, whatever their key and salt: both sides
have agreed.

Ids are keyed hashes: they come out the same in every streamer and after every restart, as what was learned outlives
both, and they reveal nothing of the key. Only this file knows how an id is made. Knows no HTTP.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

ID_BYTES = 16

# What hashes are for goes into them: none of one purpose is ever one of another.
OF_A_KEY = b"specmesh key"
OF_A_CALLER = b"specmesh caller"
OF_A_PRIVATE = b"specmesh private"
OF_A_SHARED = b"specmesh shared"


class Caller(NamedTuple):
    """What of a request's sender decides what it may see the traces of, and whose share of the workers it has."""

    namespace: str
    cache_salt: str
    name: str = ""


class NamespaceIds:
    """What the setting says of sharing, and with it the ids. One in a process."""

    def __init__(self, shared_namespaces: str = "") -> None:
        """`shared_namespaces`: the setting, names with commas between them."""
        names = [each.strip() for each in shared_namespaces.split(",")]
        self._shared = frozenset(each for each in names if each)

    def id_of(self, api_key: bytes, cache_salt: str = "", name: str = "") -> str:
        """`api_key` is empty where the server asks for none; `name` is empty where the request names none."""
        if name in self._shared:
            return _owned(_digest(OF_A_SHARED, b""), _digest(OF_A_SHARED, b"", name))
        # Keys may be longer than what blake2b takes for one.
        key = hashlib.blake2b(api_key, person=OF_A_KEY).digest()
        return _owned(_digest(OF_A_PRIVATE, key), _digest(OF_A_PRIVATE, key, cache_salt, name))

    def salt_of(self, api_key: bytes, cache_salt: str = "", name: str = "") -> str:
        """Computed prompts are shared by requests of one key and salt, whatever namespace they name, and by all who ask
        for one shared namespace."""
        if name in self._shared:
            return self.id_of(api_key, cache_salt, name)
        return self.id_of(api_key, cache_salt) if api_key else cache_salt

    def name_of(self, api_key: bytes) -> str:
        """All callers without a key are one."""
        return _digest(OF_A_CALLER, hashlib.blake2b(api_key, person=OF_A_KEY).digest()) if api_key else ""


def _owned(owner: str, name: str) -> str:
    """Quotas of the store are by owner (services/proposer/names.py): all namespaces of a key have one."""
    return f"{owner}/{name}"


def _digest(purpose: bytes, key: bytes, *parts: str) -> str:
    digest = hashlib.blake2b(key=key, person=purpose, digest_size=ID_BYTES)
    for part in parts:
        written = part.encode()
        # With its length before it no part can run into the next.
        digest.update(len(written).to_bytes(8, "big") + written)
    return digest.hexdigest()
