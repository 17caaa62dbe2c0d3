"""Several proposers: who owns a namespace, and what moves when one comes or goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from services.api.messages import Generate, Propose, Proposed
from services.api.sampling import Sampling
from services.worker.speculation.remote.client import Ask, ProposerClient
from services.worker.speculation.remote.proposers import Proposers

NAMESPACES = [f"owner/{number}" for number in range(40)]


class Wire:
    """A link to a proposer that answers everything at once, with no drafts."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.sent: list[Propose] = []

    def send(self, message: Propose) -> int:
        self.sent.append(message)
        return len(self.sent)

    def arrived(self, ticket: int) -> bool:
        return True

    def receive(self, ticket: int, timeout: float) -> Proposed:
        from services.api.messages import NO_DRAFTS

        return Proposed(step=self.sent[ticket - 1].step, drafts=NO_DRAFTS)

    def give_up(self, ticket: int) -> None:
        pass


class World:
    def __init__(self) -> None:
        self.wires: list[Wire] = []
        self.proposers = Proposers(
            lambda: ProposerClient(self._connect, worker="w", epoch=1, deadline=1.0, now=lambda: 0.0)
        )

    def _connect(self, endpoint: str) -> Wire:
        self.wires.append(Wire(endpoint))
        return self.wires[-1]

    def ready(self, *numbers: int, epoch: int = 1) -> None:
        self.proposers.move_to({f"proposer-{n}": (f"ipc://{n}", epoch) for n in numbers})

    def owners(self) -> dict[str, str]:
        found = {name: self.proposers.owner(name) for name in NAMESPACES}
        return {name: client.endpoint for name, client in found.items() if client is not None}

    def step(self, *sequences: Any) -> None:
        self.proposers.ask([Ask(each, 4) for each in sequences])
        self.proposers.collect()

    def told(self, number: int) -> list[Propose]:
        return [message for wire in self.wires if wire.endpoint == f"ipc://{number}" for message in wire.sent]


def sequence(sequence_id: int, namespace: str) -> Any:
    generate = Generate(
        request_id="r", attempt=0, token_ids=[1, 2], prompt_tokens=2, sampling=Sampling(), namespace=namespace
    )
    fields = {"prompt_tokens": 2, "method": "ngram", "drafter": ""}
    return SimpleNamespace(sequence_id=sequence_id, token_ids=[1, 2, 3], generate=generate, **fields)


def test_namespaces_are_shared_out_and_every_worker_finds_the_same_owner() -> None:
    one, other = World(), World()
    one.ready(1, 2, 3)
    other.ready(3, 1, 2)
    owners = one.owners()
    assert owners == other.owners() and set(owners.values()) == {"ipc://1", "ipc://2", "ipc://3"}


def test_when_a_proposer_leaves_only_its_namespaces_move() -> None:
    world = World()
    world.ready(1, 2, 3)
    before = world.owners()
    world.ready(1, 3)
    after = world.owners()
    assert {name for name in NAMESPACES if before[name] != after[name]} == {
        name for name, owner in before.items() if owner == "ipc://2"
    }
    assert "proposer-2" not in world.proposers.clients


def test_a_step_asks_each_owner_for_its_own_sequences_and_nobody_else() -> None:
    world = World()
    world.ready(1, 2)
    owners = world.owners()
    mine = next(name for name in NAMESPACES if owners[name] == "ipc://1")
    theirs = next(name for name in NAMESPACES if owners[name] == "ipc://2")
    world.step(sequence(1, mine), sequence(2, mine))
    assert [[item.sequence_id for item in message.items] for message in world.told(1)] == [[1, 2]]
    assert world.told(2) == []
    world.step(sequence(1, mine), sequence(3, theirs))
    assert [item.sequence_id for item in world.told(2)[0].items] == [3]
    assert world.proposers.count("asked") == 3


def test_the_new_owner_is_sent_the_whole_text_once_and_the_old_one_is_told_to_forget() -> None:
    world = World()
    world.ready(1)
    one = sequence(1, next(name for name in NAMESPACES))
    world.step(one)
    moved = None
    for number in range(2, 30):
        world.ready(1, number)
        if world.owners()[one.generate.namespace] == f"ipc://{number}":
            moved = number
            break
    assert moved is not None
    world.step(one)
    assert world.told(moved)[0].items[0].first
    world.proposers.forget(one, learn=True)
    world.proposers.tell()
    assert [ended.sequence_id for ended in world.told(moved)[-1].ended] == [1]
    assert world.told(1)[-1].forget == [1] and world.told(1)[-1].ended == []


def test_what_ended_while_there_was_no_proposer_is_told_to_the_next_one() -> None:
    world = World()
    world.ready(1)
    one = sequence(1, "a")
    world.step(one)
    world.proposers.forget(one, learn=True)
    world.ready()
    assert not world.proposers.listens()
    world.ready(2)
    world.proposers.tell()
    assert [ended.sequence_id for ended in world.told(2)[-1].ended] == [1]
    assert world.proposers.count("asked") == 2, "those of the one that left count, too"


def test_a_restarted_proposer_knows_no_text() -> None:
    world = World()
    world.ready(1)
    one = sequence(1, "a")
    world.step(one)
    world.step(one)
    assert [message.items[0].first for message in world.told(1)] == [True, False]
    world.ready(1, epoch=2)
    world.step(one)
    assert world.told(1)[-1].items[0].first


def test_without_a_proposer_nothing_is_asked() -> None:
    world = World()
    one = sequence(1, "a")
    world.step(one)
    assert not world.proposers.ask_ahead([Ask(one, 4)]) and world.proposers.look() == []
    world.proposers.forget(one, learn=True)
    assert not world.proposers.tell()
    world.proposers.close()
