"""What a streamer sees of a worker: Generate in, tokens and one end out."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from driving import request
from mesh_around import Answer, CycleProposer, MeshAround, all_of, mesh_around, until
from prometheus_client import generate_latest

from mesh.actor import Actor, Call
from mesh.errors import DeadlineExceeded
from services.api.drafter import Draft
from services.api.drafts import PlacedDraft, pack
from services.api.messages import Describe, Failed, Finished, Propose, Proposed, Speculation, Tokens
from services.api.strategies import ACCEPT_POLICIES, STRATEGIES, Verification
from services.worker.mail import ProposersMoved
from services.worker.running.replay import read, tokens_of


def running(mesh: MeshAround) -> int:
    return len(mesh.engine.scheduler._sequences)


async def until_idle(mesh: MeshAround) -> None:
    await until(lambda: not running(mesh) and not mesh.worker.load())


async def test_a_request_streams_tokens_and_ends_once(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, method="naive") as mesh:
        answer = await mesh.generate(request(max_tokens=20))
        assert answer.end == Finished(
            request_id="r",
            attempt=1,
            reason="length",
            prompt_tokens=4,
            cached_tokens=0,
            completion_tokens=20,
            speculation=answer.end.speculation,
        )
        assert len(answer.ids) == 20
        seqs = [item.seq for item in answer.items if isinstance(item, Tokens)]
        assert seqs == sorted(seqs) and seqs[0] == 0


@pytest.mark.parametrize("real", [False, True])
async def test_the_text_is_the_same_with_and_without_a_proposer_and_in_a_batch(real: bool, tmp_path: Path) -> None:
    async with mesh_around(tmp_path) as mesh:
        plain = await mesh.generate(request(max_tokens=300, method="naive"))
        await mesh.start_proposer(None if real else CycleProposer())
        drafted = await mesh.generate(request(max_tokens=300))
        batch = await all_of(mesh, [request(name=str(i), max_tokens=300) for i in range(16)])
        assert drafted.ids == plain.ids
        assert all(answer.ids == plain.ids for answer in batch)
        assert sum(answer.end.speculation.accepted for answer in batch) > 1000
        assert drafted.end.speculation.method == "ngram"


async def test_it_describes_its_model_only_while_its_engine_takes_mail(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, method="naive") as mesh:
        free = threading.Event()
        mesh.engine.drafts.move_to = lambda endpoint: free.wait()  # type: ignore[assignment,method-assign,return-value]
        mesh.engine.post(ProposersMoved({}))
        with pytest.raises(DeadlineExceeded):
            await mesh.ref.ask(Describe(), timeout=0.1)
        free.set()
        assert (await mesh.ref.ask(Describe(), timeout=10.0)).engine == "mock"
        assert mesh.engine.scheduler.ends == {}, "it counts as no request"


async def test_an_attempt_goes_on_where_the_last_one_was_cut(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, method="naive") as mesh:
        whole = await mesh.generate(request(max_tokens=50))
        rest = await mesh.generate(request(max_tokens=50, attempt=2, so_far=whole.ids[:20]))
        assert rest.ids == whole.ids[20:]
        first = rest.items[0]
        assert (first.seq, first.attempt, rest.end.completion_tokens) == (20, 2, 50)


async def test_a_cancelled_stream_leaves_nothing_within_a_step(tmp_path: Path) -> None:
    profile = {"step_ms": 1.0}
    async with mesh_around(tmp_path, method="naive", mock_profile=profile) as mesh:
        async with mesh.ref.stream(request(max_tokens=8000), timeout=30.0) as stream:
            async for _ in stream:
                break
        await until_idle(mesh)
        pages = mesh.engine.scheduler.pages
        assert pages.free == pages.total


async def test_a_reader_that_stops_reading_gets_everything_once_it_reads_again(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, method="naive") as mesh:
        answer = Answer()
        async with mesh.ref.stream(request(max_tokens=3000), timeout=30.0, window=512) as stream:
            # The whole text is computed while only 512 bytes of it may leave.
            answer.items.append(await anext(stream))
            await until(lambda: not running(mesh))
            async for item in stream:
                answer.items.append(item)
        assert len(answer.ids) == answer.end.completion_tokens == 3000
        assert len(answer.items) < 100


async def test_a_deadline_ends_a_request_with_failed_or_by_the_mesh(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, method="naive", mock_profile={"step_ms": 20.0}) as mesh:
        items: list[Any] = []
        try:
            async with mesh.ref.stream(request(max_tokens=8000), timeout=0.2) as stream:
                async for item in stream:
                    items.append(item)
        except Exception as error:
            assert type(error).__name__ == "DeadlineExceeded"
        else:
            assert isinstance(items[-1], Failed) and items[-1].reason == "deadline"
        await until_idle(mesh)


async def test_draining_refuses_new_requests_and_lets_the_running_end(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, method="naive", mock_profile={"step_ms": 2.0}) as mesh:
        async with mesh.ref.stream(request(max_tokens=30), timeout=30.0) as stream:
            answer = Answer([await anext(stream)])
            draining = asyncio.create_task(mesh.worker.drain(20.0))
            await until(lambda: "draining" in mesh.worker.ready())
            refused = await mesh.generate(request(name="late"))
            async for item in stream:
                answer.items.append(item)
        await draining
        assert (refused.end.reason, refused.end.retryable) == ("draining", True)
        assert answer.end.reason == "length" and len(answer.ids) == 30


async def test_a_failing_engine_fails_every_request_and_ends_the_process(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, method="naive", mock_profile={"crash_every": 20}) as mesh:
        answers = await all_of(mesh, [request(name=str(i), max_tokens=100) for i in range(4)])
        assert {(a.end.reason, a.end.retryable) for a in answers} == {("engine", True)}
        await until(lambda: mesh.exits)
        assert mesh.exits == [70]
        assert "engine failed" in mesh.worker.ready()[0]
        late = await mesh.generate(request(name="late"))
        assert late.end.retryable


async def test_a_sequence_that_fails_alone_fails_no_other(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, method="naive", mock_profile={"fail_every": 3}) as mesh:
        answers = await all_of(mesh, [request(name=str(i), max_tokens=20) for i in range(9)])
        ends = [answer.end for answer in answers]
        assert sorted(type(end).__name__ for end in ends) == ["Failed"] * 3 + ["Finished"] * 6
        assert not mesh.exits


async def test_it_says_what_it_serves(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, served_model_name="mock-model", max_context=1000) as mesh:
        card = await mesh.ref.ask(Describe(), timeout=5.0)
        assert (card.model, card.max_context, card.eos_token_ids, card.engine) == ("mock-model", 1000, [2], "mock")
        assert card.verify_strategies == ["greedy", "target_match", "rejection", "block"]
        assert card.accept_policies == ["normal", "reject_all"]
        assert mesh.worker.ready() == [] and mesh.worker.progress_age() == 0.0


async def test_the_settings_say_how_drafts_are_judged_and_what_requests_may_ask(tmp_path: Path) -> None:
    numbers = {"max_candidate_len": 7, "verify_window": 1, "typical_epsilon": 0.2, "typical_delta": 0.5}
    async with mesh_around(tmp_path, method="naive", verify_strategy="topp", **numbers) as mesh:
        card = await mesh.ref.ask(Describe(), timeout=5.0)
        own = Speculation(method="naive", num_speculative_tokens=8, verify_strategy="topp", accept_policy="normal")
        assert card.speculation == msgspec.structs.replace(own, **numbers)
        # The server's own may be asked for, the other that changes the text may not.
        assert card.verify_strategies == ["greedy", "target_match", "rejection", "block", "topp"]
        assert mesh.engine.scheduler.limits.verification == Verification("topp", "normal", **numbers)
        refused = await mesh.generate(request(strategy="typical"))
        assert (refused.end.reason, refused.end.retryable) == ("invalid", False)


async def test_a_server_that_allows_it_serves_what_changes_the_text(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, method="naive", allow_lossy=True) as mesh:
        card = await mesh.ref.ask(Describe(), timeout=5.0)
        assert card.verify_strategies == list(STRATEGIES)
        assert card.accept_policies == list(ACCEPT_POLICIES)
        answer = await mesh.generate(request(strategy="typical", temperature=1.0, max_tokens=5))
        stats = answer.end.speculation
        assert (stats.verify_strategy, stats.lossless, len(answer.ids)) == ("typical", False, 5)


async def test_a_model_that_cannot_be_loaded_ends_the_process(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, mock_profile={"no_such_key": 1}) as mesh:
        assert "no_such_key" in mesh.worker.ready()[0]
        assert (await mesh.generate(request())).end.retryable
        await until(lambda: mesh.exits)
        # Nothing to be had from another try: the supervisor is told so.
        assert mesh.exits == [78]


async def test_the_metrics_count_what_happened(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, served_model_name="m", mock_profile={"step_ms": 1.0}) as mesh:
        await mesh.start_proposer(CycleProposer())
        answers = await all_of(mesh, [request(name=str(i), max_tokens=100) for i in range(4)])
        text = generate_latest(mesh.registry).decode()
        labels = '{model_name="m",proposer="ngram",verify_strategy="greedy"}'
        everyone = [*answers, *mesh.warming]
        accepted = sum(answer.end.speculation.accepted for answer in everyone)
        tokens = sum(len(answer.ids) for answer in everyone)
        assert accepted > 0
        assert f"specmesh:spec_decode_num_accepted_tokens_total{labels} {accepted:.1f}" in text
        assert f'specmesh:generation_tokens_total{{model_name="m"}} {tokens:.1f}' in text
        assert 'specmesh:kv_cache_usage_perc{model_name="m"} 0.0' in text
        assert 'position="0",proposer="ngram",verify_strategy="greedy"' in text
        assert f'specmesh:worker_requests_total{{end="length",model_name="m"}} {len(everyone):.1f}' in text


class Adversary(Actor):
    """A proposer that answers nonsense of every kind, in turn."""

    handlers: ClassVar = {Propose: "propose"}

    def __init__(self) -> None:
        self.asked = 0

    async def propose(self, message: Propose, call: Call) -> Proposed:
        self.asked += 1
        kind = self.asked % 10
        drafts: list[PlacedDraft] = []
        for item in message.items:
            drafts += self._nonsense(item.sequence_id, item.committed + len(item.ahead), item.budget, kind)
        unknown = [item.sequence_id for item in message.items] if kind == 7 else [10**9]
        columns = pack(drafts)
        if kind == 2:
            # More tokens than drafts.
            columns = msgspec.structs.replace(columns, tokens=columns.tokens * 2, chances=columns.chances * 2)
        return Proposed(step=message.step + (kind == 8), drafts=columns, unknown=unknown)

    def _nonsense(self, sequence: int, length: int, budget: int, kind: int) -> list[PlacedDraft]:
        some = [105] * budget, [-1] * 3, [2**31 - 1], [2] * 5000, [], [100], [101, 102], [103], [104], [104, 105]
        tokens = some[kind]
        parents = [5, 5, 5] if kind == 1 else [0] * len(tokens) if kind == 6 else []
        probs = np.full((2, 7), np.nan, np.float32) if kind == 9 else None
        confidence = [float("nan"), -3.0] if kind == 9 else []
        return [
            PlacedDraft(sequence, length - 1, Draft([100])),
            PlacedDraft(sequence, length, Draft(tokens, "x" * 100, -5, parents, confidence, probs)),
            PlacedDraft(-5, 0, Draft([1])),
        ]


@pytest.mark.parametrize(("method", "step_ms", "asked"), [("ngram", 0.0, 20), ("auto", 1.0, 5)])
async def test_a_hostile_proposer_changes_nothing(
    method: str, step_ms: float, asked: int, tmp_path: Path
) -> None:
    async with mesh_around(tmp_path, method=method, mock_profile={"eos_every": 400, "step_ms": step_ms}) as mesh:
        wanted = [request(name=str(i), max_tokens=200, temperature=float(i % 2), seed=i) for i in range(8)]
        plain = await all_of(mesh, wanted)
        adversary = Adversary()
        await mesh.start_proposer(adversary)
        hostile = await all_of(mesh, wanted)
        assert adversary.asked > asked
        assert not mesh.engine.drafts.failed
        assert [a.ids for a in hostile] == [a.ids for a in plain]
        assert [a.end.reason for a in hostile] == [a.end.reason for a in plain]


async def test_a_proposer_that_dies_and_comes_back_fails_no_request(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, mock_profile={"step_ms": 1.0}, draft_deadline_ms=200.0) as mesh:
        plain = await mesh.generate(request(max_tokens=400, method="naive"))
        for _ in range(3):
            proposer = CycleProposer()
            node = await mesh.start_proposer(proposer)
            running_requests = asyncio.create_task(
                all_of(mesh, [request(name=str(i), max_tokens=400) for i in range(4)])
            )
            drafted = proposer.drafted
            await until(lambda drafted=drafted, proposer=proposer: proposer.drafted > drafted)  # type: ignore[misc]
            await node.stop(0.1)
            mesh.directory.say()
            assert all(answer.ids == plain.ids for answer in await running_requests)


async def test_two_proposers_have_the_namespaces_between_them_and_one_has_them_all_when_the_other_leaves(
    tmp_path: Path,
) -> None:
    async with mesh_around(tmp_path, mock_profile={"step_ms": 0.2}) as mesh:
        plain = await mesh.generate(request(max_tokens=200, method="naive"))

        async def in_namespaces() -> None:
            # Of a fixed method, which asks whatever a step and an ask take on this machine.
            each = [request(name=str(number), max_tokens=200, method="suffix") for number in range(8)]
            asked = [msgspec.structs.replace(one, namespace=f"n{one.request_id}") for one in each]
            assert all(answer.ids == plain.ids for answer in await all_of(mesh, asked))

        old, new = CycleProposer(), CycleProposer()
        first = await mesh.start_proposer(old)
        await in_namespaces()
        alone, before = old.drafted, new.drafted
        assert alone and not before
        second = await mesh.start_proposer(new, beside=[first])
        await in_namespaces()
        assert old.drafted > alone and new.drafted > before
        await first.stop(0.1)
        mesh.directory.say(second)
        before = new.drafted
        await in_namespaces()
        assert new.drafted > before


async def test_steps_are_recorded_where_the_settings_say_so(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, method="naive", record_steps=str(tmp_path / "steps")) as mesh:
        answer = await mesh.generate(request(max_tokens=20))
    steps = list(read(tmp_path / "steps"))
    assert [tokens_of(step.result) for step in steps] == [[[token]] for token in answer.ids]
    assert steps[0].work.new[0].text == [100, 101, 102, 103]
