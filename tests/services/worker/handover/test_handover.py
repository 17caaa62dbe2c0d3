"""A prompt is computed by one worker and continued by another: the text is that of one worker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from driving import request
from paged_fake import alone
from two_workers import split

PROMPT = [1 + i % 9 for i in range(50)]


def text_of(prompt: list[int], count: int) -> list[int]:
    return alone(prompt, count, 200)[0]


async def test_a_prompt_is_computed_by_one_worker_and_continued_by_another(tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        answer = await mesh.ask(request(PROMPT, max_tokens=20))
        assert answer.ids == text_of(PROMPT, 20) and answer.end.reason == "length"
        assert answer.end.completion_tokens == 20 and answer.end.cached_tokens == 0
        # 12 whole pages of 4, and 2 tokens and the first of the answer computed beside the next ones.
        assert mesh.decode.runner.landed == mesh.prefill.counts.lent_pages == mesh.decode.counts.fetched_pages == 12
        assert mesh.prefill.runner.rows == 50 and mesh.decode.runner.rows == 21
        assert mesh.decode.counts.ends == {"complete": 1}
        assert mesh.prefill.scheduler.ends == {"lent": 1} and mesh.decode.scheduler.ends == {"length": 1}
        await mesh.prefill.until_idle()
        await mesh.decode.until_idle()


async def test_a_page_that_the_prompt_ends_with_is_handed_over_too(tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        answer = await mesh.ask(request(PROMPT[:48], max_tokens=5))
        assert answer.ids == text_of(PROMPT[:48], 5)
        assert mesh.decode.runner.landed == 12 and mesh.decode.runner.rows == 4


async def test_a_second_request_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        await mesh.ask(request(PROMPT, max_tokens=3))
        longer = [*PROMPT, 3, 5, 7, 3, 5, 7, 3, 5, 7]
        answer = await mesh.ask(request(longer, max_tokens=6))
        assert answer.ids == text_of(longer, 6)
        assert answer.end.cached_tokens == 48
        assert mesh.decode.runner.landed == 12 + 2


@pytest.mark.parametrize("max_tokens", [1, 2])
async def test_the_first_token_may_be_the_last(max_tokens: int, tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        answer = await mesh.ask(request(PROMPT, max_tokens=max_tokens))
        assert answer.ids == text_of(PROMPT, max_tokens)
        assert answer.end.reason == "length" and answer.end.completion_tokens == max_tokens
        await mesh.decode.until_idle()


async def test_an_attempt_goes_on_where_the_last_one_was_cut(tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        whole = text_of(PROMPT, 30)
        answer = await mesh.ask(request(PROMPT, max_tokens=30, attempt=2, so_far=whole[:11]))
        assert answer.ids == whole[11:]
        assert mesh.decode.runner.landed == 15


async def test_many_requests_at_once_share_their_beginnings(tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        prompts = [PROMPT[:20] + [1 + (i * j) % 9 for j in range(10 + i)] for i in range(12)]
        answers = await asyncio.gather(*(mesh.ask(request(each, max_tokens=9)) for each in prompts))
        assert [each.ids for each in answers] == [text_of(each, 9) for each in prompts]
        await mesh.prefill.until_idle()
        await mesh.decode.until_idle()


async def test_requests_with_the_same_text_fetch_it_once(tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        answers = await asyncio.gather(*(mesh.ask(request(PROMPT, max_tokens=9)) for _ in range(6)))
        assert all(each.ids == text_of(PROMPT, 9) for each in answers)
        assert mesh.prefill.counts.lent_pages == 12


async def test_different_salts_share_no_page(tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        for salt in ("a", "b"):
            await mesh.ask(msgspec.structs.replace(request(PROMPT, max_tokens=3), cache_salt=salt))
        assert mesh.decode.runner.landed == 24


async def test_a_short_prompt_is_computed_where_it_is(tmp_path: Path) -> None:
    async with split(tmp_path, handover_min_tokens=64) as mesh:
        answer = await mesh.ask(request(PROMPT, max_tokens=8))
        assert answer.ids == text_of(PROMPT, 8)
        assert mesh.prefill.runner.rows == 0 and mesh.decode.counts.ends == {}
        await mesh.decode.until_idle()


async def test_log_probabilities_of_a_prompt_are_computed_where_it_goes_on(tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        answer = await mesh.ask(request(PROMPT, max_tokens=8, prompt_logprobs=0))
        assert answer.ids == text_of(PROMPT, 8) and mesh.prefill.runner.rows == 0
