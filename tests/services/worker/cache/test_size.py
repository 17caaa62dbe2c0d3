"""How much memory the pages get."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.worker.cache.size import SHARE, Card, Demand, fit_card, kv_cache_bytes

GB = 1 << 30
MB = 1 << 20


def test_a_set_size_gives_whole_pages() -> None:
    assert kv_cache_bytes(1024, 0, MB) == GB
    assert kv_cache_bytes(10, 99 * GB, 3 * MB) == 9 * MB


def test_left_open_it_is_a_share_of_what_is_free() -> None:
    assert kv_cache_bytes(0, 10 * GB, MB) == int(10 * GB * SHARE) // MB * MB


def test_left_open_it_is_no_more_than_could_ever_be_used() -> None:
    assert kv_cache_bytes(0, 100 * GB, MB, needed_tokens=1000, page_tokens=32) == 32 * MB
    assert kv_cache_bytes(50, 100 * GB, MB, needed_tokens=1000, page_tokens=32) == 50 * MB


def test_not_one_page_is_an_error_that_says_why() -> None:
    with pytest.raises(ValueError, match="kv_cache_mb 1 holds no KV page: one takes 2097152 bytes"):
        kv_cache_bytes(1, 99 * GB, 2 * MB)
    with pytest.raises(ValueError, match="1 MB of free memory holds no KV page"):
        kv_cache_bytes(0, MB, 2 * MB)


LLAMA_8B = Demand(
    weights=16 * GB, page=32 * 131072, row=700_000, fixed=80 * MB, page_tokens=32, context=131072
)  # fmt: skip


def test_a_gpu_gives_its_pages_what_weights_and_the_largest_step_leave_of_the_share() -> None:
    fit = fit_card(Card(80 * GB, 80 * GB), LLAMA_8B, 0.9)
    assert (fit.max_sequences, fit.max_step_tokens) == (256, 2048)
    assert fit.step_bytes == 2 * 2048 * 700_000 + 80 * MB + GB
    left = int(80 * GB * 0.9) - 16 * GB - fit.step_bytes
    assert fit.kv_bytes == left // LLAMA_8B.page * LLAMA_8B.page
    # The context isn't cut.
    assert fit.kv_bytes // LLAMA_8B.page * 32 >= 131072


def test_a_small_gpu_computes_fewer_rows_at_once() -> None:
    fit = fit_card(Card(24 * GB, 24 * GB), LLAMA_8B, 0.9)
    assert (fit.max_sequences, fit.max_step_tokens) == (256, 1024)
    assert fit.kv_bytes > GB
    asked = fit_card(Card(24 * GB, 24 * GB), LLAMA_8B, 0.9, max_sequences=7, max_step_tokens=300)
    assert (asked.max_sequences, asked.max_step_tokens) == (7, 300) and asked.kv_bytes > fit.kv_bytes


def test_two_workers_share_a_gpu_by_shares_of_its_memory() -> None:
    alone = fit_card(Card(80 * GB, 80 * GB), LLAMA_8B, 0.45)
    second = fit_card(Card(80 * GB, 44 * GB), LLAMA_8B, 0.45)
    assert alone.kv_bytes == second.kv_bytes
    # What others hold can't be taken, whatever the share.
    assert fit_card(Card(80 * GB, 30 * GB), LLAMA_8B, 0.9).kv_bytes < alone.kv_bytes


def test_pages_beyond_what_the_sequences_can_use_are_not_taken() -> None:
    tiny = replace(LLAMA_8B, weights=300 * MB, page=32 * 23_000, context=8192)
    assert fit_card(Card(80 * GB, 80 * GB), tiny, 0.9, max_sequences=4).kv_bytes == 2 * 4 * 256 * tiny.page


def test_states_of_sequences_take_at_most_an_eighth_of_a_gpu_where_their_number_is_not_set() -> None:
    hybrid = replace(LLAMA_8B, state=75 * MB)
    card, without = Card(80 * GB, 80 * GB), fit_card(Card(80 * GB, 80 * GB), LLAMA_8B, 0.9)
    fit = fit_card(card, hybrid, 0.9)
    assert fit.max_sequences == 128
    assert without.kv_bytes - fit.kv_bytes - 128 * 75 * MB in range(-hybrid.page, hybrid.page)
    asked = fit_card(card, hybrid, 0.9, max_sequences=4)
    assert asked.max_sequences == 4 and asked.kv_bytes > fit.kv_bytes
    with pytest.raises(ValueError, match=r"and 80\.5 GB of states for 1024 sequences"):
        fit_card(card, hybrid, 0.9, max_sequences=1024)


def test_a_model_that_does_not_fit_is_told_with_the_figures() -> None:
    with pytest.raises(ValueError, match=r"21\.6 GB .*0\.9 of 24\.0 GB, .* hold no KV page beside 30\.0 GB of weights"):
        fit_card(Card(24 * 10**9, 24 * 10**9), replace(LLAMA_8B, weights=30 * 10**9), 0.9)
