"""What a streamer sees of a target: Generate in, tokens and one end out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from mesh_around import Answer, MeshAround, all_of, mesh_around, request, until
from prometheus_client import generate_latest

from mesh.actor import Actor, Call
from services.api.drafts import DraftItem, packed
from services.api.messages import Describe, Failed, Finished, Propose, Proposed, Speculation, Tokens
from services.worker.running.mock import MockRunner, Profile
from services.worker.verify.policy import ACCEPT_POLICIES, Verification
from services.worker.verify.registry import STRATEGIES


def running(mesh: MeshAround) -> int:
    assert mesh.target._steps is not None
    return len(mesh.target._steps.scheduler._streams)


async def until_idle(mesh: MeshAround) -> None:
    await until(lambda: not running(mesh) and not mesh.target.load())


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


async def test_the_text_is_the_same_with_and_without_a_proposer_and_in_a_batch(tmp_path: Path) -> None:
    async with mesh_around(tmp_path) as mesh:
        plain = await mesh.generate(request(max_tokens=300, method="naive"))
        await mesh.start_proposer()
        drafted = await mesh.generate(request(max_tokens=300))
        batch = await all_of(mesh, [request(name=str(i), max_tokens=300) for i in range(16)])
        assert drafted.ids == plain.ids
        assert all(answer.ids == plain.ids for answer in batch)
        assert sum(answer.end.speculation.accepted for answer in batch) > 1000
        assert drafted.end.speculation.method == "ngram"


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
        assert mesh.target._steps is not None
        pages = mesh.target._steps.scheduler.pages
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


async def test_a_deadline_ends_a_request_in_words_or_by_the_mesh(tmp_path: Path) -> None:
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
            draining = asyncio.create_task(mesh.target.drain(20.0))
            await until(lambda: "draining" in mesh.target.ready())
            refused = await mesh.generate(request(name="late"))
            async for item in stream:
                answer.items.append(item)
        await draining
        assert (refused.end.reason, refused.end.retryable) == ("draining", True)
        assert answer.end.reason == "length" and len(answer.ids) == 30


async def test_an_engine_that_fails_tells_everyone_and_ends_the_process(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, method="naive", mock_profile={"crash_every": 20}) as mesh:
        answers = await all_of(mesh, [request(name=str(i), max_tokens=100) for i in range(4)])
        assert {(a.end.reason, a.end.retryable) for a in answers} == {("engine", True)}
        await until(lambda: mesh.exits)
        assert mesh.exits == [70]
        assert "engine failed" in mesh.target.ready()[0]
        late = await mesh.generate(request(name="late"))
        assert late.end.retryable


async def test_a_sequence_that_fails_alone_takes_nobody_along(tmp_path: Path) -> None:
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
        assert mesh.target.ready() == [] and mesh.target.progress_age() == 0.0


async def test_the_settings_say_how_drafts_are_judged_and_what_requests_may_ask(tmp_path: Path) -> None:
    numbers = {"max_candidate_len": 7, "verify_window": 1, "typical_epsilon": 0.2, "typical_delta": 0.5}
    async with mesh_around(tmp_path, method="naive", verify_strategy="topp", **numbers) as mesh:
        card = await mesh.ref.ask(Describe(), timeout=5.0)
        own = Speculation(method="naive", num_speculative_tokens=8, verify_strategy="topp", accept_policy="normal")
        assert card.speculation == msgspec.structs.replace(own, **numbers)
        # The server's own may be asked for, the other that changes the text may not.
        assert card.verify_strategies == ["greedy", "target_match", "rejection", "block", "topp"]
        assert mesh.target._steps is not None
        assert mesh.target._steps.scheduler.limits.verification == Verification("topp", "normal", **numbers)
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
        assert "no_such_key" in mesh.target.ready()[0]
        assert (await mesh.generate(request())).end.retryable
        await until(lambda: mesh.exits)
        # Nothing to be had from another try: the supervisor is told so.
        assert mesh.exits == [78]


async def test_the_metrics_count_what_happened(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, served_model_name="m", mock_profile={"step_ms": 1.0}) as mesh:
        await mesh.start_proposer()
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
        assert f'specmesh:target_requests_total{{end="length",model_name="m"}} {len(everyone):.1f}' in text


def metric(mesh: MeshAround, name: str, **labels: str) -> float:
    value = mesh.registry.get_sample_value(name, {"model_name": "m", **labels})
    assert value is not None, name
    return value


async def test_an_audited_share_of_the_requests_is_computed_again_in_idle_time_and_is_the_same(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, served_model_name="m", audit_share=1.0) as mesh:
        replays = "specmesh:audit_replays_total"
        assert metric(mesh, replays, proposer="ngram", result="same") == 0
        await mesh.start_proposer()
        wanted = [request(name=str(i), max_tokens=200, temperature=float(i % 2), seed=i) for i in range(4)]
        answers = await all_of(mesh, wanted)
        drafted = [a for a in [*answers, *mesh.warming] if a.end.speculation.drafted]
        await until(lambda: metric(mesh, replays, proposer="ngram", result="same") == len(drafted) >= 4)
        assert metric(mesh, replays, proposer="ngram", result="different") == 0
        assert metric(mesh, "specmesh:audit_tokens_total") == sum(len(answer.ids) for answer in drafted)
        assert metric(mesh, "specmesh:audit_waiting") == 0
        assert metric(mesh, "specmesh:proposer_switched_off", proposer="ngram") == 0
        everyone = [*answers, *mesh.warming]
        assert metric(mesh, "specmesh:generation_tokens_total") == sum(len(answer.ids) for answer in everyone)
        assert metric(mesh, "specmesh:target_requests_total", end="length") == len(everyone)


class Forgetful(MockRunner):
    """Its text is another one wherever something was drafted; the fault that the audit is for."""

    def step(self, work: Any, meanwhile: Any) -> Any:
        verdicts = super().step(work, meanwhile)
        for item, verdict in zip(work, verdicts, strict=True):
            if item.draft:
                verdict.tokens[-1] = 100 + (verdict.tokens[-1] - 99) % 32
        return verdicts


async def test_a_proposer_whose_drafts_changed_answers_is_switched_off_and_the_target_serves_on(tmp_path: Path) -> None:
    runner = Forgetful(Profile())
    async with mesh_around(tmp_path, runner, served_model_name="m", audit_share=1.0, audit_threshold=1) as mesh:
        right = await mesh.generate(request(max_tokens=100, method="naive"))
        await mesh.start_proposer()
        wrong = await mesh.generate(request(max_tokens=100))
        await until(lambda: metric(mesh, "specmesh:proposer_switched_off", proposer="ngram") == 1)
        after = await mesh.generate(request(max_tokens=100))
        assert mesh.target.ready() == []
        assert after.ids == right.ids and after.end.speculation.drafted == 0
        drafted = [answer for answer in [*mesh.warming, wrong] if answer.end.speculation.drafted]
        assert drafted and all(answer.ids != right.ids[: len(answer.ids)] for answer in drafted)


class Adversary(Actor):
    """A proposer that answers nonsense of every kind, in turn."""

    handlers: ClassVar = {Propose: "propose"}

    def __init__(self) -> None:
        self.asked = 0

    async def propose(self, message: Propose, call: Call) -> Proposed:
        self.asked += 1
        kind = self.asked % 9
        drafts: list[DraftItem] = []
        for item in message.items:
            drafts += self._nonsense(item.sequence_id, item.committed, item.budget, kind)
        unknown = [item.sequence_id for item in message.items] if kind == 7 else [10**9]
        columns = packed(drafts)
        if kind == 2:
            # More tokens than drafts.
            columns = msgspec.structs.replace(columns, tokens=columns.tokens * 2, chances=columns.chances * 2)
        return Proposed(step=message.step + (kind == 8), drafts=columns, unknown=unknown)

    def _nonsense(self, sequence: int, committed: int, budget: int, kind: int) -> list[DraftItem]:
        tokens = [[105] * budget, [-1] * 3, [2**31 - 1], [2] * 5000, [], [100], [101, 102], [103], [104]][kind]
        parents = [5, 5, 5] if kind == 1 else [0] * len(tokens) if kind == 6 else []
        good = DraftItem(sequence_id=sequence, committed=committed, tokens=tokens, source="x" * 100, parents=parents)
        late = DraftItem(sequence_id=sequence, committed=committed - 1, tokens=[100], source="")
        nobody = DraftItem(sequence_id=-5, committed=0, tokens=[1], source="")
        return [late, good, nobody]


async def test_a_hostile_proposer_changes_nothing(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, mock_profile={"eos_every": 400}) as mesh:
        wanted = [request(name=str(i), max_tokens=200, temperature=float(i % 2), seed=i) for i in range(8)]
        plain = await all_of(mesh, wanted)
        adversary = Adversary()
        await mesh.start_proposer(adversary)
        hostile = await all_of(mesh, wanted)
        assert adversary.asked > 20
        assert [a.ids for a in hostile] == [a.ids for a in plain]
        assert [a.end.reason for a in hostile] == [a.end.reason for a in plain]


async def test_a_proposer_that_dies_and_comes_back_fails_no_request(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, mock_profile={"step_ms": 1.0}, draft_deadline_ms=200.0) as mesh:
        plain = await mesh.generate(request(max_tokens=400, method="naive"))
        for _ in range(3):
            node = await mesh.start_proposer()
            running_requests = asyncio.create_task(
                all_of(mesh, [request(name=str(i), max_tokens=400) for i in range(4)])
            )
            await until(mesh.target.load)
            await asyncio.sleep(0.03)
            await node.stop(0.1)
            mesh.directory.say("", 0)
            assert all(answer.ids == plain.ids for answer in await running_requests)
