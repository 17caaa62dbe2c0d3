"""The directory's table as a value: announcements and ticks in, members and fences out."""

from __future__ import annotations

from msgspec.structs import replace

from mesh.directory.membership import MAX_MEMBERS, STARTING_TAKES, Member, Membership, choose

TARGET = Member("worker", "worker-1", "ipc:///x/worker-1", epoch=5, state="ready")


def states(table: Membership) -> dict[str, str]:
    return {member.instance: member.state for member in table.members()}


def beat(table: Membership, until: float, *members: Member, start: float = 0.0, step: float = 0.25) -> None:
    """Time passes from `start`; the given members go on announcing themselves."""
    now = start
    while now < until:
        now += step
        for member in members:
            table.announce(member, now)
        table.tick(now)


def test_an_announced_member_is_in_the_table_and_changes_its_version_once() -> None:
    table = Membership(0.0)
    assert table.announce(TARGET, 0.0) == "taken"
    version = table.version
    assert table.announce(replace(TARGET, load=7, progress_age=0.3), 0.5) == "taken"
    assert table.version == version
    assert table.members()[0].load == 7


def test_a_change_of_state_changes_the_version() -> None:
    table = Membership(0.0)
    table.announce(replace(TARGET, state="starting"), 0.0)
    version = table.version
    table.announce(TARGET, 0.5)
    assert table.version > version


def test_a_silent_member_is_lost_after_stale_after_and_no_sooner() -> None:
    table = Membership(0.0, stale_after=2.0)
    other = replace(TARGET, instance="worker-2")
    table.announce(TARGET, 0.0)
    beat(table, 2.0, other)
    assert states(table) == {"worker-1": "ready", "worker-2": "ready"}
    beat(table, 2.25, other, start=2.0)
    assert states(table) == {"worker-1": "lost", "worker-2": "ready"}


def test_a_lost_member_that_wakes_is_fenced_until_it_has_a_new_epoch() -> None:
    table = Membership(0.0)
    table.announce(TARGET, 0.0)
    beat(table, 3.0)
    assert table.announce(TARGET, 3.0) == "fenced"
    assert states(table) == {"worker-1": "lost"}
    assert table.announce(replace(TARGET, epoch=6), 3.5) == "taken"
    assert states(table) == {"worker-1": "ready"}


def test_a_member_that_starts_may_be_silent_for_longer_and_is_never_lost() -> None:
    table = Membership(0.0, stale_after=2.0)
    starting = replace(TARGET, state="starting")
    table.announce(starting, 0.0)
    beat(table, 2.0 * STARTING_TAKES)
    assert states(table) == {"worker-1": "starting"}
    version = table.version
    assert table.tick(2.0 * STARTING_TAKES + 0.25) == []
    assert states(table) == {} and table.version > version, "forgotten: it may have died"
    assert table.announce(starting, 30.0) == "taken"
    assert states(table) == {"worker-1": "starting"}


def test_an_unready_member_that_falls_silent_is_fenced_because_it_was_ready_once() -> None:
    table = Membership(0.0)
    table.announce(TARGET, 0.0)
    table.announce(replace(TARGET, state="starting"), 0.5)
    beat(table, 4.0, start=0.5)
    assert table.announce(TARGET, 4.0) == "fenced"


def test_a_newer_epoch_replaces_the_older_which_is_fenced() -> None:
    table = Membership(0.0)
    table.announce(TARGET, 0.0)
    assert table.announce(replace(TARGET, epoch=6, state="starting"), 0.1) == "taken"
    assert table.announce(TARGET, 0.2) == "fenced"
    assert [member.epoch for member in table.members()] == [6]


def test_a_member_that_left_is_gone_at_once_and_its_echo_is_fenced() -> None:
    table = Membership(0.0)
    table.announce(TARGET, 0.0)
    version = table.version
    table.leave(TARGET.key, TARGET.epoch)
    assert table.members() == [] and table.version > version
    assert table.announce(TARGET, 0.1) == "fenced"


def test_a_directory_that_slept_blames_nobody() -> None:
    table = Membership(0.0)
    table.announce(TARGET, 0.0)
    table.tick(0.25)
    assert table.tick(60.0) == []
    assert table.announce(TARGET, 60.1) == "taken"


def test_the_lost_are_forgotten_after_a_while_but_stay_fenced() -> None:
    table = Membership(0.0, keep_lost=10.0)
    table.announce(TARGET, 0.0)
    beat(table, 13.0)
    assert table.members() == []
    assert table.announce(TARGET, 13.0) == "fenced"


def test_a_young_directory_says_that_it_may_not_know_everyone() -> None:
    table = Membership(100.0, stale_after=2.0)
    assert not table.settled(101.9)
    assert table.settled(102.0)


def test_the_table_is_bounded_and_the_lost_make_room() -> None:
    table = Membership(0.0)
    for number in range(MAX_MEMBERS):
        assert table.announce(replace(TARGET, instance=f"t-{number}"), 0.0) == "taken"
    assert table.announce(TARGET, 0.0) == "full"
    beat(table, 3.0)
    assert table.announce(TARGET, 3.0) == "taken"
    assert len(table.members()) == MAX_MEMBERS


def test_a_key_stays_with_its_member_and_only_the_keys_of_one_that_leaves_move() -> None:
    members = [replace(TARGET, instance=f"worker-{number}") for number in range(5)]
    keys = [f"session-{number}" for number in range(500)]
    before = {key: choose(members, key) for key in keys}
    assert before == {key: choose(reversed(members), key) for key in keys}
    left = members.pop(2)
    moved = {key for key in keys if choose(members, key) != before[key]}
    assert moved == {key for key in keys if before[key] == left}
    assert 50 < len(moved) < 150


def test_nobody_is_chosen_of_none() -> None:
    assert choose([], "key") is None


# Members that serve something else --------------------------------------------------------------------------------


def serving(number: int, what: str, epoch: int = 5) -> Member:
    return replace(TARGET, instance=f"worker-{number}", serves=what, epoch=epoch)


def test_a_member_that_serves_another_thing_than_those_before_it_is_refused_by_name() -> None:
    table = Membership(0.0)
    table.announce(serving(1, "tiny"), 0.0)
    table.announce(serving(2, "tiny"), 0.1)
    assert table.announce(serving(3, "large"), 0.2) == "taken"
    assert states(table) == {"worker-1": "ready", "worker-2": "ready", "worker-3": "unready"}
    refused = table.members()[2]
    assert refused.reasons == ["refused: it serves large, but worker-1 serves tiny"]
    assert table.refusal(serving(3, "large")) == refused.reasons[0] and not table.refusal(serving(2, "tiny"))
    version = table.version
    table.announce(serving(3, "large"), 0.7)
    assert table.version == version


def test_a_refused_member_is_ready_once_those_it_differs_from_are_gone_and_not_before() -> None:
    table = Membership(0.0)
    for number, what in ((1, "tiny"), (2, "tiny"), (3, "large")):
        table.announce(serving(number, what), 0.0)
    table.leave(("worker", "worker-1"), 5)
    table.announce(serving(3, "large"), 0.5)
    assert states(table)["worker-3"] == "unready"
    table.leave(("worker", "worker-2"), 5)
    table.announce(serving(3, "large"), 1.0)
    assert states(table) == {"worker-3": "ready"}
    # The mesh serves that now.
    table.announce(serving(1, "tiny", epoch=6), 1.5)
    assert states(table) == {"worker-3": "ready", "worker-1": "unready"}


def test_a_lost_member_and_a_starting_one_decide_nothing() -> None:
    table = Membership(0.0)
    table.announce(serving(1, "tiny"), 0.0)
    table.announce(replace(serving(2, "medium"), state="starting"), 0.0)
    beat(table, 3.0)
    assert states(table)["worker-1"] == "lost"
    table.announce(serving(3, "large"), 3.0)
    assert states(table)["worker-3"] == "ready"


def test_a_member_may_serve_another_thing_after_its_own_restart_when_it_is_alone() -> None:
    table = Membership(0.0)
    table.announce(serving(1, "tiny"), 0.0)
    table.announce(serving(1, "large", epoch=6), 0.5)
    assert states(table) == {"worker-1": "ready"}


def test_other_roles_are_not_compared() -> None:
    table = Membership(0.0)
    table.announce(serving(1, "tiny"), 0.0)
    table.announce(replace(TARGET, role="proposer", instance="proposer-1", serves="x"), 0.0)
    assert states(table)["proposer-1"] == "ready"
