"""Who is blamed for a worker's death. Values in, values out: a worker's life is a name and a number."""

from __future__ import annotations

import random

import pytest

from services.streamer.choice.quarantine import CLEARED_AFTER, FEW, GUILTY, Case, Life, Quarantine

W1, W2, W3 = ("worker-1", 1), ("worker-1", 2), ("worker-1", 3)
OTHER = ("worker-2", 1)
# Of the workers that suspects have lost.
E1, E2 = ("worker-1", -2), ("worker-1", -1)


def running(quarantine: Quarantine, life: Life, count: int) -> list[Case]:
    cases = [quarantine.open() for _ in range(count)]
    assert all(quarantine.enter(case, life) for case in cases)
    return cases


def dies(quarantine: Quarantine, cases: list[Case]) -> None:
    """The worker that these run at."""
    for case in cases:
        assert quarantine.died(case)
    for case in cases:
        quarantine.left(case)


def clear(quarantine: Quarantine, case: Case) -> None:
    for _ in range(CLEARED_AFTER):
        quarantine.stepped(case)


def test_without_a_death_nobody_waits() -> None:
    quarantine = Quarantine()
    cases = running(quarantine, W1, 3)
    quarantine.left(cases[0])
    assert quarantine.enter(cases[0], W1)


def suspects(quarantine: Quarantine, count: int, steps: int = 0) -> list[Case]:
    """Choices that have lost two workers."""
    cases = running(quarantine, E1, count)
    for case in cases:
        clear(quarantine, case)
    dies(quarantine, cases)
    assert all(quarantine.enter(case, E2) for case in cases), "after one death nobody is tried"
    for _ in range(steps):
        quarantine.stepped(cases[0])
    dies(quarantine, cases)
    return cases


def test_after_one_death_those_with_two_steps_are_sent_again_at_once_beside_new_ones() -> None:
    quarantine = Quarantine()
    cases = running(quarantine, W1, 3)
    for case in cases:
        clear(quarantine, case)
    dies(quarantine, cases)
    running(quarantine, W2, 1)
    assert all(quarantine.enter(case, W2) for case in cases)
    running(quarantine, W2, 1)


@pytest.mark.parametrize("count", [FEW, FEW + 1])
def test_those_without_two_steps_are_tried_after_one_death_if_they_are_few(count: int) -> None:
    quarantine = Quarantine()
    cases = running(quarantine, W1, count)
    dies(quarantine, cases)
    assert [quarantine.enter(case, W2) for case in cases] == [True, *[count > FEW] * (count - 1)]


def test_the_new_one_goes_first_to_the_worker_that_is_back_so_that_it_is_alone() -> None:
    quarantine = Quarantine()
    old, new = running(quarantine, W1, 2)
    clear(quarantine, old)
    dies(quarantine, [old, new])
    assert not quarantine.enter(old, W2)
    assert quarantine.enter(new, W2)
    assert quarantine.died(new) and new.guilty


def test_two_steps_at_the_next_worker_forget_the_death() -> None:
    quarantine = Quarantine()
    cases = running(quarantine, W1, 2)
    for life in (W2, W3, OTHER):
        for case in cases:
            clear(quarantine, case)
        dies(quarantine, cases)
        assert all(quarantine.enter(case, life) for case in cases)
    assert not any(case.suspect for case in cases)


def test_after_two_deaths_one_is_sent_at_a_time_and_the_next_when_it_is_cleared() -> None:
    quarantine = Quarantine()
    first, second = suspects(quarantine, 2)
    assert quarantine.enter(first, W2)
    assert not quarantine.enter(second, W2)
    quarantine.stepped(first)
    assert not second.turn.is_set()
    quarantine.stepped(first)
    assert second.turn.is_set()
    assert quarantine.enter(second, W2)


def test_an_answer_that_ends_clears_too() -> None:
    quarantine = Quarantine()
    first, second = suspects(quarantine, 2)
    assert quarantine.enter(first, W2)
    assert not quarantine.enter(second, W2)
    quarantine.stepped(first, last=True)
    assert second.turn.is_set()


def test_where_suspects_were_tried_before_others_are_taken_while_the_next_ones_wait() -> None:
    quarantine = Quarantine()
    for case in suspects(quarantine, 2):
        assert quarantine.enter(case, W2)
        clear(quarantine, case)
    dies(quarantine, running(quarantine, OTHER, 1))
    assert quarantine.enter(quarantine.open(), W2)


def test_with_one_worker_a_new_choice_waits_until_no_suspect_is_left() -> None:
    quarantine = Quarantine()
    first, second = suspects(quarantine, 2)
    new = quarantine.open()
    assert not quarantine.enter(new, W2), "it is kept for the first trial"
    assert quarantine.enter(first, W2)
    clear(quarantine, first)
    assert not quarantine.enter(new, W2), "it would be beside the second"
    assert quarantine.enter(second, W2)
    assert not quarantine.enter(new, W2), "it would be lost with the suspect"
    clear(quarantine, second)
    assert new.turn.is_set()
    assert quarantine.enter(new, W2)


def test_a_new_choice_goes_to_a_worker_with_work_while_suspects_wait() -> None:
    quarantine = Quarantine()
    running(quarantine, OTHER, 2)
    first, second = suspects(quarantine, 2)
    new, late = quarantine.open(), quarantine.open()
    assert quarantine.enter(new, OTHER)
    assert quarantine.enter(first, W2)
    assert not quarantine.enter(late, W2)
    assert quarantine.enter(late, OTHER)
    assert not quarantine.enter(second, W2)


def test_the_one_without_tokens_goes_first() -> None:
    quarantine = Quarantine()
    old, new = suspects(quarantine, 2, steps=1)
    assert not quarantine.enter(old, W2)
    assert quarantine.enter(new, W2)


def test_the_one_with_most_deaths_goes_first_so_that_it_is_alone() -> None:
    quarantine = Quarantine()
    running(quarantine, OTHER, 1)
    first, second, third = suspects(quarantine, 3)
    assert quarantine.enter(first, W2)
    clear(quarantine, first)
    assert quarantine.enter(second, W2)
    dies(quarantine, [first, second])
    assert second.guilty and not first.suspect
    quarantine.close(second)
    assert quarantine.enter(third, W3)
    assert not quarantine.enter(first, W3), "a trial is going on there"
    clear(quarantine, third)
    assert quarantine.enter(first, W3)


def test_two_deaths_alone_are_the_end() -> None:
    quarantine = Quarantine()
    (poison,) = running(quarantine, W1, 1)
    dies(quarantine, [poison])
    assert not poison.guilty
    assert quarantine.enter(poison, W2)
    assert quarantine.died(poison)
    assert poison.guilty


def test_a_poison_is_tried_after_it_was_lost_beside_others_and_these_are_innocent() -> None:
    quarantine = Quarantine()
    good, poison = suspects(quarantine, 2)
    assert not poison.guilty, "the other may have done it"
    assert quarantine.enter(good, W2)
    clear(quarantine, good)
    assert quarantine.enter(poison, W2)
    assert quarantine.died(poison)
    assert (poison.guilty, good.guilty) == (True, False)
    quarantine.left(good)
    quarantine.close(poison)
    assert quarantine.enter(good, W3)


def test_a_life_is_lost_once() -> None:
    """The directory lists a dead worker for a while: what is sent to it then is refused."""
    quarantine = Quarantine()
    (case,) = running(quarantine, W1, 1)
    dies(quarantine, [case])
    assert quarantine.enter(case, W1)
    assert not quarantine.died(case)
    quarantine.left(case)
    assert not case.guilty
    assert quarantine.enter(case, W2)


def test_who_is_sent_to_a_dead_worker_is_not_to_blame() -> None:
    """Its engine may go on refusing, or the directory still list it."""
    quarantine = Quarantine()
    poison, good = suspects(quarantine, 2)
    assert quarantine.enter(poison, W2)
    assert quarantine.died(poison) and poison.guilty
    quarantine.close(poison)
    assert quarantine.enter(good, W2)
    assert not quarantine.died(good)
    assert not good.guilty
    quarantine.left(good)
    assert quarantine.enter(good, W3)


def test_a_life_that_made_tokens_after_its_connection_broke_can_die() -> None:
    quarantine = Quarantine()
    (case,) = running(quarantine, W1, 1)
    dies(quarantine, [case])
    assert quarantine.enter(case, W1)
    clear(quarantine, case)
    assert quarantine.died(case) and len(case.deaths) == 1


def test_a_suspect_that_is_refused_goes_back_behind_nobody() -> None:
    quarantine = Quarantine()
    first, second = suspects(quarantine, 2)
    assert quarantine.enter(first, W2)
    assert not quarantine.enter(second, W2)
    quarantine.left(first)
    assert not quarantine.enter(second, W2)
    assert quarantine.enter(first, W2)


def test_a_suspect_whose_client_leaves_lets_the_next_in() -> None:
    quarantine = Quarantine()
    first, second = suspects(quarantine, 2)
    assert not quarantine.enter(second, W2)
    quarantine.close(first)
    assert second.turn.is_set()
    assert quarantine.enter(second, W2)


def test_one_that_does_not_notice_the_death_keeps_nobody_waiting() -> None:
    """Its task may be waiting for a client that doesn't read."""
    quarantine = Quarantine()
    stalled, other = running(quarantine, W1, 2)
    assert quarantine.died(other)
    quarantine.left(other)
    assert quarantine.enter(other, W2)
    clear(quarantine, stalled)
    assert stalled.deaths, "those tokens are older than the death"
    assert quarantine.died(stalled), "it was lost, too"
    quarantine.left(stalled)
    assert not quarantine.enter(stalled, W2)


def test_each_worker_has_a_trial_of_its_own() -> None:
    quarantine = Quarantine()
    first, second = suspects(quarantine, 2)
    assert quarantine.enter(first, W2)
    assert not quarantine.enter(second, W2)
    assert quarantine.enter(second, OTHER)


@pytest.mark.parametrize("seed", range(200))
def test_poisons_end_after_three_deaths_and_no_other_choice_is_blamed(seed: int) -> None:
    """One worker, started again after each death. A poison kills it in its step `at`: with the prompt, or the first
    decoding. New choices come all the time, and each comes to its turn in any order."""
    chance = random.Random(seed)
    quarantine = Quarantine()
    poisons = {quarantine.open(): at for at in (0, 1, 0)[: chance.randint(1, 3)]}
    good = {quarantine.open(): chance.randint(1, 12) for _ in range(8)}
    deaths = dict.fromkeys(poisons, 0)
    epoch, there = 1, list[Case]()
    for _ in range(2000):
        outside = [case for case in [*poisons, *good] if case not in there and not case.guilty]
        chance.shuffle(outside)
        for case in outside[: chance.randint(1, 12)]:
            if quarantine.enter(case, ("worker-1", epoch)):
                there.append(case)
        # A step of the whole batch.
        if killer := next((case for case in there if poisons.get(case) == case.steps), None):
            deaths[killer] += 1
            epoch += 1
            for case in there:
                assert quarantine.died(case)
            for case in there:
                (quarantine.close if case.guilty else quarantine.left)(case)
            there = []
        for case in list(there):
            quarantine.stepped(case)
            if case in good and case.steps >= good[case]:
                quarantine.close(case)
                there.remove(case)
                del good[case]
                if chance.random() < 0.5 and epoch < 20:
                    good[quarantine.open()] = chance.randint(1, 12)
        if not good and all(poison.guilty for poison in poisons):
            break
    assert all(poison.guilty for poison in poisons)
    assert not good, "everyone came to an end"
    assert max(deaths.values()) <= GUILTY
