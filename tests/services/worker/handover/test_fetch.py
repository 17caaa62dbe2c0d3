"""When pages are fetched."""

from __future__ import annotations

from services.worker.handover.fetch import FetchRates


def test_fetching_pays_while_it_is_measured_to_be_faster_than_computing() -> None:
    rates = FetchRates()
    assert rates.fetching_pays(), "until both are known"
    rates.computed(100, 1.0)
    rates.computed(8, 10.0)  # says nothing of prompts
    assert rates.fetching_pays()
    rates.fetched(1000, 1.0)
    assert rates.fetching_pays()
    for _ in range(60):
        rates.fetched(1000, 9.0)
    assert sum(rates.fetching_pays() for _ in range(128)) == 2, "it is tried now and then"
    for _ in range(60):
        rates.computed(100, 2.0)
    assert rates.fetching_pays()
