"""Workers without a phase: one has pages that another one needs."""

from __future__ import annotations

from pathlib import Path

from driving import request
from paged_fake import alone
from two_workers import Split, split

PROMPT = [1 + i % 9 for i in range(50)]
EXPECTED = alone(PROMPT, 9, 200)[0]


async def two(mesh: Split, **settings: object) -> None:
    for name in ("one", "two"):
        await mesh.start(name, "all", **settings)


async def test_pages_that_another_worker_has_are_fetched(tmp_path: Path) -> None:
    async with split(tmp_path, start=False) as mesh:
        await two(mesh)
        await mesh.ask(request(PROMPT, max_tokens=9), at="one", pages_from="")
        rows = mesh.one.runner.rows
        answer = await mesh.ask(request(PROMPT, max_tokens=9), at="two", pages_from="one")
        assert answer.ids == EXPECTED
        # Fetched pages are a cache's, too: they were computed for an earlier request.
        assert answer.end.cached_tokens == 48
        assert mesh.two.runner.landed == 12 and mesh.two.runner.rows == 2 + 8
        assert mesh.one.runner.rows == rows, "it computes nothing for others"
        assert mesh.two.handover.fetcher.rates.fetching > 0
        for worker in (mesh.one, mesh.two):
            await worker.until_idle()


async def test_what_another_worker_lacks_is_computed(tmp_path: Path) -> None:
    async with split(tmp_path, start=False) as mesh:
        await two(mesh)
        await mesh.ask(request(PROMPT[:22], max_tokens=1), at="one", pages_from="")
        answer = await mesh.ask(request(PROMPT, max_tokens=9), at="two", pages_from="one")
        assert answer.ids == EXPECTED and answer.end.cached_tokens == 20
        assert mesh.two.runner.landed == 5 and mesh.two.counts.ends == {"partial": 1}


async def test_nothing_is_fetched_where_computing_is_faster(tmp_path: Path) -> None:
    async with split(tmp_path, start=False) as mesh:
        await two(mesh)
        await mesh.ask(request(PROMPT, max_tokens=9), at="one", pages_from="")
        mesh.two.handover.fetcher.rates.computing, mesh.two.handover.fetcher.rates.fetching = 1e-3, 1e-2
        answer = await mesh.ask(request(PROMPT, max_tokens=9), at="two", pages_from="one")
        assert answer.ids == EXPECTED and mesh.two.runner.landed == 0 and mesh.two.counts.ends == {}


async def test_a_worker_that_pulls_no_pages_lends_none(tmp_path: Path) -> None:
    async with split(tmp_path, start=False) as mesh:
        await mesh.start("one", "all")
        await mesh.start("two", "all", pull_pages=False)
        await mesh.ask(request(PROMPT, max_tokens=9), at="one", pages_from="")
        assert (await mesh.ask(request(PROMPT, max_tokens=9), at="two", pages_from="one")).ids == EXPECTED
        assert mesh.two.runner.landed == 0
        longer = [*PROMPT, 3, 3, 3, 3, 3]
        assert (await mesh.ask(request(longer, max_tokens=9), at="one", pages_from="two")).ids == (
            alone(longer, 9, 200)[0]
        )
        assert mesh.one.counts.ends == {"none": 1} and mesh.one.runner.landed == 0
        assert mesh.one.counts.recomputed_pages == 0


async def test_a_worker_without_a_prefix_cache_neither_lends_nor_fetches(tmp_path: Path) -> None:
    async with split(tmp_path, start=False) as mesh:
        await two(mesh, prefix_cache=False)
        for at, other in (("one", "two"), ("two", "one")):
            assert (await mesh.ask(request(PROMPT, max_tokens=9), at=at, pages_from=other)).ids == EXPECTED
        assert mesh.two.actor._handover is None
