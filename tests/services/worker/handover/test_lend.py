"""Which pages leave a worker, and when. Values in, values out."""

from __future__ import annotations

from collections.abc import Sequence

from services.worker.handover.fetch import Landing
from services.worker.handover.lend import Lending
from services.worker.handover.transport import Lent
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.planning import Planner

TEXT = [*range(100, 117)]  # four pages of 4, and a token
SECRET = bytes(range(32))


class Memory:
    layout, frame_bytes = "memory", (2, 1)

    def __init__(self) -> None:
        self.pages: dict[int, list[bytes]] = {}

    def read(self, pages: Sequence[int]) -> list[list[bytes]]:
        return [self.pages[page] for page in pages]

    def write(self, page: int, frames: Sequence[bytes]) -> None:
        self.pages[page] = list(frames)


class Lender:
    """A worker's pages with a loan for TEXT."""

    def __init__(self, pages: int = 8, computing: bool = True) -> None:
        limits = Limits(vocab_size=200, max_context=64, eos_token_ids=(), page_tokens=4, pages=pages, secret=SECRET)
        self.planner = Planner(limits)
        self.sharing, self.pages, self.memory = self.planner.sharing, self.planner.pages, Memory()
        self.names = self.sharing.names(TEXT, "", "")
        self.lending = Lending(self.sharing, self.memory)
        self.lending.begin(1, self.names, computing)
        self.heard: list[Lent] = []

    def compute(self, *indices: int) -> None:
        """These pages of the text, whose sequence then lets go of them."""
        for index in indices:
            taken = self.pages.take(1)
            assert taken is not None
            self.memory.write(taken[0], [b"p%d" % index, b"!"])
            self.sharing.cache.enter(self.names[index], taken[0])
            self.pages.release(taken)

    def ask(self, most: int = 10) -> None:
        self.lending.ask(1, most, self.heard.append)


def lent(first: int, indices: Sequence[int], done: bool = False) -> Lent:
    return Lent(first, [[b"p%d" % index, b"!"] for index in indices], done)


def test_names_are_the_same_wherever_the_secret_is_and_part_texts_salts_and_drafters() -> None:
    one, other = Lender(), Lender()
    assert one.names == other.names and len(one.names) == 4
    assert one.sharing.names([*TEXT[:4], 1, *TEXT[5:]], "", "")[0] == one.names[0]
    others = [("", "salt"), ("eagle3", "")]
    found = {name for drafter, salt in others for name in one.sharing.names(TEXT, drafter, salt)}
    assert len(found | {*one.names}) == 12


def test_pages_are_sent_as_they_are_computed_and_none_twice() -> None:
    lender = Lender()
    lender.ask()
    assert lender.heard == []
    lender.compute(0, 1)
    lender.lending.look()
    assert lender.heard == [lent(0, [0, 1])]
    lender.ask()
    lender.compute(2)
    lender.lending.look()
    lender.lending.look()
    assert lender.heard[1:] == [lent(2, [2])]
    lender.compute(3)
    lender.ask()
    assert lender.heard[2:] == [lent(3, [3], done=True)]
    assert lender.pages.in_use == 0


def test_no_more_pages_are_read_than_are_wanted() -> None:
    lender = Lender()
    lender.compute(0, 1, 2, 3)
    for _ in range(3):
        lender.ask(2)
    assert lender.heard == [lent(0, [0, 1]), lent(2, [2, 3], done=True), lent(4, [], done=True)]


def test_a_loan_without_a_sequence_ends_with_what_is_there() -> None:
    lender = Lender(computing=False)
    lender.compute(0)
    lender.ask()
    assert lender.heard == [lent(0, [0], done=True)]


def test_a_loan_ends_where_its_sequence_ended() -> None:
    lender = Lender()
    lender.compute(0)
    lender.ask()
    lender.ask()
    lender.lending.sequence_ended(1)
    assert lender.heard == [lent(0, [0])]
    lender.lending.look()
    assert lender.heard[1:] == [lent(1, [], done=True)]


def test_what_waits_to_be_sent_is_not_evicted_and_a_sequence_that_runs_may_take_it() -> None:
    lender = Lender(pages=4)
    lender.compute(0, 1, 2)
    lender.lending.look()
    assert lender.pages.in_use == 3 and lender.pages.available == 1
    assert lender.planner.held.release_all()
    taken = lender.pages.take(2)
    assert taken is not None and lender.pages.in_use == 2
    lender.ask()
    # The last page of a text is evicted first.
    assert lender.heard == [lent(0, [0, 1], done=True)]
    lender.pages.release(taken)
    lender.pages.check()


def test_a_loan_that_is_closed_holds_nothing_and_answers_nobody() -> None:
    lender = Lender()
    lender.compute(0, 1)
    lender.lending.look()
    assert lender.pages.in_use == 2 and lender.lending
    lender.lending.close(1)
    assert lender.pages.in_use == 0 and not lender.lending
    lender.ask()
    assert lender.heard == [lent(0, [], done=True)]


# The other side ---------------------------------------------------------------------------------------------


class Receiver(Lender):
    def __init__(self, pages: int = 8) -> None:
        super().__init__(pages)
        self.landing = Landing(self.planner, self.memory)

    def land(self, *indices: int) -> list[bool]:
        return [self.landing.land(7, self.names[index], [b"p%d" % index, b"!"]) for index in indices]


def test_pages_that_land_are_found_by_their_names_and_held_until_the_request_runs() -> None:
    receiver = Receiver()
    receiver.compute(0)
    assert receiver.landing.open(7, receiver.names) == 1
    assert receiver.land(1, 2, 3) == [True] * 3
    found = receiver.sharing.cache.find(receiver.names)
    assert [frames[0] for frames in receiver.memory.read(found)] == [b"p0", b"p1", b"p2", b"p3"]
    assert receiver.pages.in_use == 4
    receiver.landing.arrived(7)
    receiver.planner.held.release(7)
    assert receiver.pages.in_use == 0 and receiver.pages.cached == 4
    receiver.sharing.check_idle()


def test_a_page_that_is_there_already_is_not_written_again() -> None:
    receiver = Receiver()
    receiver.landing.open(7, receiver.names)
    receiver.compute(0)
    before = receiver.pages.available
    assert receiver.land(0, 0) == [True, True]
    assert receiver.pages.in_use == 1 and before - receiver.pages.available == 1
    receiver.landing.drop(7)
    assert receiver.pages.in_use == 0


def test_a_page_without_room_is_refused() -> None:
    receiver = Receiver(pages=3)
    receiver.landing.open(7, receiver.names)
    assert receiver.land(0, 1, 2, 3) == [True, True, True, False]
    receiver.pages.check()
    receiver.landing.drop(7)
    assert receiver.pages.in_use == 0


def test_a_page_for_a_request_that_has_ended_is_refused() -> None:
    receiver = Receiver()
    receiver.landing.open(7, receiver.names)
    receiver.landing.drop(7)
    assert receiver.land(0) == [False] and receiver.pages.available == 8
