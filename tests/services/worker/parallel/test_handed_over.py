"""Workers of two ranks each, as processes, that hand pages over: with phases and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from driving import request
from test_ranks import closed_behind
from tiny_folder import write_tiny_model
from two_workers import split

from services.api.settings import Settings
from services.worker.loading import load_runner

TEXT = [5 + k % 90 for k in range(70)]


def settings(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """Three key heads over the ranks."""
    folder = write_tiny_model(tmp_path / "tiny", num_attention_heads=6, num_key_value_heads=3, hidden_size=96)
    return {
        "engine": "torch", "model": str(folder), "executor": "compiled", "dtype": "float32", "draft_dtype": "float32",
        "page_tokens": 16, "kv_cache_mb": 4, "threads": 2, "max_step_tokens": 32, **more,
    }  # fmt: skip


@pytest.mark.parametrize(("lender", "fetcher"), [("prefill", "decode"), ("all", "all")])
async def test_a_worker_of_two_ranks_goes_on_with_pages_of_another_one(
    lender: str, fetcher: str, tmp_path: Path
) -> None:
    """The model drafts for itself: with its own keys and values of the prompt it is never wrong."""
    given = settings(tmp_path, tensor_parallel_size=2)
    given |= {"draft_model": given["model"], "method": "draft_model", "num_speculative_tokens": 4}
    with closed_behind() as ranks:
        async with split(tmp_path, start=False) as mesh:
            for name, phase in (("prefill", lender), ("decode", fetcher)):
                await mesh.start(name, phase, load_runner(Settings.for_tests(**given)), **given)
            assert len(ranks) == 2
            generate = request(TEXT, max_tokens=40, ignore_eos=True)
            if lender == "all":
                # It lends what it has.
                expected = await mesh.ask(generate, "prefill", pages_from="")
            drafted = await mesh.ask(generate)
            assert mesh.decode.counts.fetched_pages == mesh.prefill.counts.lent_pages == 4
            assert mesh.decode.counts.ends == {"complete": 1}
            plain = await mesh.ask(request(TEXT, max_tokens=40, ignore_eos=True, method="naive"), pages_from="")
            assert drafted.ids == plain.ids
            if lender == "all":
                assert drafted.ids == expected.ids
            else:
                stats = drafted.end.speculation
                assert stats.drafted == stats.accepted > 20
            for worker in mesh.workers.values():
                await worker.until_idle()


async def test_another_number_of_ranks_is_another_layout_unless_phases_were_given_their_own(tmp_path: Path) -> None:
    given, two = settings(tmp_path), {"tensor_parallel_size": 2}
    with closed_behind() as ranks:
        async with split(tmp_path, start=False) as mesh:
            for name, phase, more in (
                ("prefill", "prefill", {"prefill_tensor_parallel_size": 2}),
                ("decode", "decode", {"prefill_tensor_parallel_size": 2}),
                ("one", "decode", {}),
                ("two", "prefill", two),
            ):
                runner = load_runner(Settings.for_tests(**given, **more, phase=phase))
                await mesh.start(name, phase, runner, **given, **more)
            assert len(ranks) == 2
            # What the directory compares (mesh/directory/membership.py).
            serves = {name: worker.actor.serves for name, worker in mesh.workers.items()}
            assert serves["prefill"] == serves["decode"] and "2 and 1 ranks: " in serves["decode"]
            assert len(set(serves.values())) == 3 and "2 ranks: " in serves["two"]
            answer = await mesh.ask(request(TEXT, max_tokens=40, ignore_eos=True))
            assert len(answer.ids) == 40 and mesh.decode.counts.ends == {"complete": 1}
            assert mesh.decode.counts.fetched_pages == mesh.prefill.counts.lent_pages == 4
            for worker in mesh.workers.values():
                await worker.until_idle()
