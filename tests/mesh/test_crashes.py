"""When a process that has crashed is started again."""

from __future__ import annotations

import pytest

from mesh.supervisor.crashes import EXIT_CONFIG, EXIT_FENCED, Crashes, Policy, Restart, describe_exit


def test_a_crashed_process_is_started_again_after_a_delay() -> None:
    restart = Crashes(Policy(first_delay=0.1)).restart(-9, ran=5.0, now=5.0)
    assert restart == Restart("killed by SIGKILL after 5.0 s: starting again in 0.1 s", 0.1)


def test_the_delay_grows_with_each_crash_up_to_its_bound_and_is_forgotten_after_calm() -> None:
    crashes = Crashes(Policy(first_delay=1, growth=2, longest_delay=3, calm=100, max_crashes=99))
    delays = [crashes.restart(1, ran, now=0.0).delay for ran in (1.0, 1.0, 1.0, 1.0, 100.0)]
    assert delays == [1, 2, 3, 3, 1]


def test_the_fourth_crash_in_ten_seconds_is_a_failure_with_what_was_said_last() -> None:
    crashes = Crashes(Policy())
    assert not any(crashes.restart(1, ran=1.0, now=at, said=("boom",)).failed for at in (1.0, 2.5, 4.0))
    restart = crashes.restart(1, ran=1.0, now=5.5, said=("out of memory",))
    assert restart == Restart("ended with code 1, more than 3 times in 10 s\nout of memory", 10.0, failed=True)


def test_what_was_given_something_wrong_is_failed_at_once() -> None:
    restart = Crashes(Policy(retry_failed_after=0)).restart(EXIT_CONFIG, ran=1.0, now=1.0, said=("no page fits",))
    assert restart == Restart("what it was given is wrong\nno page fits", None, failed=True)


def test_four_crashes_over_a_longer_time_are_only_restarts() -> None:
    crashes = Crashes(Policy(calm=1000))
    assert not any(crashes.restart(-9, ran=4.0, now=4.0 * number).failed for number in range(20))


@pytest.mark.parametrize(("ran", "delay", "failed"), [(5.0, 0.0, False), (0.5, 10.0, True)])
def test_a_fenced_one_is_no_crash_unless_two_fence_each_other_from_the_start(
    ran: float, delay: float, failed: bool
) -> None:
    restart = Crashes(Policy(max_crashes=0)).restart(EXIT_FENCED, ran=ran, now=ran)
    assert (restart.delay, restart.failed) == (delay, failed)


def test_an_exit_in_words() -> None:
    assert [describe_exit(code) for code in (0, 3, -15, -200)] == [
        "ended with code 0", "ended with code 3", "killed by SIGTERM", "killed by signal 200",
    ]  # fmt: skip
