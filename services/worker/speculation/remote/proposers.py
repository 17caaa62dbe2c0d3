"""The worker's side of all proposers: one client each, and the namespaces shared out between them.

    namespace ── rendezvous hash over the ready proposers ──▶ its owner, which drafts for it and learns from it

Rule 1: every worker finds the same owner by itself, and so does every streamer for its corpora.
Rule 2: when a proposer leaves, only its namespaces move. The new owner is sent the running texts once, and finds what
        was learned in the shared folder.
Rule 3: a step asks only the owners that it needs, at the same time.

Blocking, for the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from mesh.directory.membership import chosen
from services.worker.scheduling.sequence import Sequence
from services.worker.speculation.remote.client import Answer, Ask, ProposerClient

# Endpoint and epoch.
Life = tuple[str, int]
# Owners that are remembered; they are cheap to find again.
MOST_OWNERS = 4096
COUNTS = ("asked", "asked_ahead", "answered", "missed", "failed")


class Proposers:
    def __init__(self, make: Callable[[], ProposerClient]) -> None:
        self._make = make
        # By instance. The last one is kept while there is no proposer, for what it has not been told yet.
        self.clients: dict[str, ProposerClient] = {}
        self._lives: dict[str, Life] = {}
        self._owners: dict[str, ProposerClient | None] = {}
        # Those whose answers the step waits for.
        self._awaited: list[ProposerClient] = []
        # Of proposers that have left.
        self._past = dict.fromkeys(COUNTS, 0)

    def move_to(self, ready: dict[str, Life]) -> None:
        """These proposers are ready. One with another epoch than before knows no text."""
        before, self._lives = self._lives, dict(ready)
        self._owners.clear()
        for name, life in ready.items():
            if before.get(name) != life:
                self.clients.setdefault(name, self._make()).move_to(life[0])
        for name in [name for name in self.clients if name not in ready]:
            if name in before:
                self.clients[name].move_to("")
            if ready:
                self._retire(self.clients.pop(name))

    def _retire(self, client: ProposerClient) -> None:
        """What ended and was never told goes to the new owners."""
        for sequence in client.untold():
            self.forget(sequence, learn=True)
        for name in COUNTS:
            self._past[name] += getattr(client, name)
        self._awaited = [each for each in self._awaited if each is not client]
        client.close()

    def owner(self, namespace: str) -> ProposerClient | None:
        if namespace not in self._owners:
            if len(self._owners) >= MOST_OWNERS:
                self._owners.clear()
            name = chosen(self._lives or self.clients, namespace)
            self._owners[namespace] = None if name is None else self.clients[name]
        return self._owners[namespace]

    def forget(self, sequence: Sequence, learn: bool) -> None:
        """The sequence has ended: its owner is told, and who owned it before."""
        owner = self.owner(sequence.generate.namespace)
        for client in self.clients.values():
            if client is owner:
                client.forget(sequence, learn)
            elif client.knows(sequence):
                client.forget(sequence, learn=False)

    # Asking: as in client.py ------------------------------------------------------------------------------

    def listens(self) -> bool:
        return any(client.listens() for client in self.clients.values())

    def ask(self, asks: list[Ask], wait: float = 0.0) -> bool:
        self._awaited = [client for client, part in self._parts(asks) if client.ask(part, wait)]
        return bool(self._awaited)

    def ask_ahead(self, asks: list[Ask]) -> bool:
        # Not any(): all of them are to be asked.
        return True in [client.ask_ahead(part) for client, part in self._parts(asks)]

    def _parts(self, asks: list[Ask]) -> list[tuple[ProposerClient, list[Ask]]]:
        parts: dict[int, tuple[ProposerClient, list[Ask]]] = {}
        for ask in asks:
            owner = self.owner(ask.sequence.generate.namespace)
            if owner is not None:
                parts.setdefault(id(owner), (owner, []))[1].append(ask)
        return list(parts.values())

    def look(self) -> list[Answer]:
        return [answer for client in self.clients.values() if (answer := client.look()) is not None]

    def collect(self) -> list[Answer]:
        """Waits for all that `ask` has asked: they were asked together, so their deadlines are one."""
        awaited, self._awaited = self._awaited, []
        return [answer for client in awaited if (answer := client.collect()) is not None]

    def tell(self) -> bool:
        return True in [client.tell() for client in self.clients.values()]

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    # Figures ----------------------------------------------------------------------------------------------

    def count(self, name: str) -> int:
        """One of COUNTS, of all proposers since the worker's start."""
        return self._past[name] + sum(int(getattr(client, name)) for client in list(self.clients.values()))

    def given_up(self) -> int:
        """Proposers that steps don't wait for, because they don't answer."""
        return sum(client.breaker.open for client in list(self.clients.values()))
