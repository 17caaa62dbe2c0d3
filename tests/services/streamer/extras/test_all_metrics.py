from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, ClassVar

import aiohttp
import pytest
from fake_mesh import FakeMesh, says
from prometheus_client.parser import text_string_to_metric_families

from mesh.actor import Actor, Call
from mesh.directory.membership import Member
from services.api.messages import MetricsText, ReadMetrics
from services.runtime.introspection import INTROSPECTION, MOST_METRICS, Figures, Introspection
from services.streamer.extras.all_metrics import Family, add, written

WORKER = """\
# HELP specmesh:spec_decode_num_drafts_total Verify steps that had a draft
# TYPE specmesh:spec_decode_num_drafts_total counter
specmesh:spec_decode_num_drafts_total{model_name="m",proposer="ngram",verify_strategy="greedy"} 4.0
# HELP specmesh:spec_decode_num_draft_tokens_total Draft tokens verified
# TYPE specmesh:spec_decode_num_draft_tokens_total counter
specmesh:spec_decode_num_draft_tokens_total{model_name="m",proposer="ngram",verify_strategy="greedy"} 12.0
# HELP specmesh:spec_decode_num_accepted_tokens_total Draft tokens accepted
# TYPE specmesh:spec_decode_num_accepted_tokens_total counter
specmesh:spec_decode_num_accepted_tokens_total{model_name="m",proposer="ngram",verify_strategy="greedy"} 9.0
# HELP specmesh:spec_decode_num_accepted_tokens_per_pos_total By position
# TYPE specmesh:spec_decode_num_accepted_tokens_per_pos_total counter
specmesh:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 6.0
specmesh:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="1"} 3.0
# HELP specmesh:process_ready 1 if ready
# TYPE specmesh:process_ready gauge
specmesh:process_ready 1.0
"""


class Silent(Actor):
    handlers: ClassVar = {ReadMetrics: "read_metrics"}

    async def read_metrics(self, message: ReadMetrics, call: Call) -> MetricsText:
        await asyncio.Event().wait()
        raise AssertionError


def shows(text: str) -> Callable[[], Actor]:
    return lambda: Introspection(Figures, metrics=text.encode)


async def started(mesh: FakeMesh, windows: dict[str, Callable[[], Actor]], **settings: Any) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start("proposer", "proposer-1", Actor())
    for instance, window in windows.items():
        await mesh.nodes[instance].spawn(window(), INTROSPECTION)
    await mesh.start_door(**settings)


async def scraped(http: aiohttp.ClientSession, mesh: FakeMesh, **headers: str) -> str:
    async with http.get(f"{mesh.url}/metrics", headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/plain"
        return await response.text()


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    families = text_string_to_metric_families(text)
    return [(each.labels, each.value) for family in families for each in family.samples if each.name == name]


def by_vllms_benchmark(text: str) -> dict[str, Any]:
    """As it reads the page: by the beginnings and parts of lines."""
    read: dict[str, Any] = {"found": False, "drafts": 0, "draft_tokens": 0, "accepted": 0, "positions": {}}
    for line in text.split("\n"):
        if not line.startswith("vllm:spec_decode"):
            continue
        read["found"], value = True, int(float(line.split()[-1]))
        if "num_drafts" in line:
            read["drafts"] += value
        elif "num_draft_tokens" in line:
            read["draft_tokens"] += value
        elif "num_accepted_tokens_per_pos" in line:
            position = re.findall(r'position="(\d+)"', line)[0]
            read["positions"][int(position)] = read["positions"].get(int(position), 0) + value
        elif "num_accepted_tokens" in line:
            read["accepted"] += value
    return read


async def test_the_port_of_the_api_has_the_metrics_of_all(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    ready = "# TYPE specmesh:process_ready gauge\nspecmesh:process_ready 0.0\n"
    await started(mesh, {"worker-1": shows(WORKER), "proposer-1": shows(ready), "tokenizer-1": shows("")})
    text = await scraped(http, mesh)
    told = [labels["instance"] for labels, _ in samples(text, "specmesh:process_ready")]
    assert sorted(told) == ["proposer-1", "worker-1"]
    assert ({"role": "worker", "instance": "worker-1"}, 1.0) in samples(text, "specmesh:process_ready")
    # Its own, and each family once, as the format wants it.
    assert samples(text, "specmesh:http_connections")[0][0] == {"role": "streamer", "instance": "streamer-1"}
    types = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(types) == len(set(types))
    assert "gave no metrics" not in text


async def test_vllms_benchmark_finds_its_counters(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await started(mesh, {"worker-1": shows(WORKER)})
    read = by_vllms_benchmark(await scraped(http, mesh))
    assert read == {"found": True, "drafts": 4, "draft_tokens": 12, "accepted": 9, "positions": {0: 6, 1: 3}}
    assert "vllm:process_ready" not in await scraped(http, mesh)


async def test_before_the_first_draft_they_are_0(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    # Its first reading is before the run: without counters it would print no section at all.
    await started(mesh, {"worker-1": shows("")})
    read = by_vllms_benchmark(await scraped(http, mesh))
    assert read == {"found": True, "drafts": 0, "draft_tokens": 0, "accepted": 0, "positions": {}}


async def test_with_the_setting_all_names_come_twice(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await started(mesh, {"worker-1": shows(WORKER)}, vllm_metric_names=True)
    text = await scraped(http, mesh)
    assert samples(text, "vllm:process_ready") == [({"role": "worker", "instance": "worker-1"}, 1.0)]
    assert by_vllms_benchmark(text)["drafts"] == 4


async def test_who_does_not_answer_is_named_and_the_others_are_shown(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    await started(mesh, {"worker-1": shows(WORKER), "tokenizer-1": Silent})
    mesh.directory.members_ = [each for each in mesh.directory.members_ if each.role != "proposer"]
    mesh.directory.change(Member(role="tokenizer", instance="a\nb", endpoint="mem://nowhere", epoch=9, state="ready"))
    text = await scraped(http, mesh)
    comments = [line for line in text.split("\n") if line.startswith("# ") and not re.match("# (HELP|TYPE) ", line)]
    assert comments == [
        "# no proposer is known",
        "# 'tokenizer-1' ('tokenizer') gave no metrics in 0.5 s",
        r"# 'a\nb' ('tokenizer') gave no metrics in 0.5 s",
    ]
    assert by_vllms_benchmark(text)["drafts"] == 4


async def test_many_readers_cost_one_query(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    asked = []
    await started(mesh, {"worker-1": lambda: Introspection(Figures, metrics=lambda: bytes(asked.append(1) or b""))})
    await asyncio.gather(*(scraped(http, mesh) for _ in range(8)))
    assert len(asked) == 1


def test_what_is_no_sample_is_dropped() -> None:
    families: dict[str, Family] = {}
    bad = [
        "# TYPE a counter", 'a{x="1"} 1', 'a{x="1} 2', "a{x} 3", "a 4 # more", "a x", "b 5", "", "\x00",
        'a{x="\\"y"} 6', "a_sum +Inf",
    ]  # fmt: skip
    add(families, "\n".join(bad), "worker", 'w"1')
    own = r'role="worker",instance="w\"1"'
    assert families["a"].samples == [f'a{{{own},x="1"}} 1', rf'a{{{own},x="\"y"}} 6', f"a_sum{{{own}}} +Inf"]
    assert [line for line in written(families, False) if line.startswith("a")] == families["a"].samples


async def test_metrics_too_large_for_a_message_are_refused(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await started(mesh, {"worker-1": shows("#" * (MOST_METRICS + 1))})
    assert "'worker-1' ('worker') gave no metrics" in await scraped(http, mesh)


# Who may read them --------------------------------------------------------------------------------------------


async def refused(http: aiohttp.ClientSession, mesh: FakeMesh, **headers: str) -> tuple[int, str]:
    async with http.get(f"{mesh.url}/metrics", headers=headers) as response:
        body = await response.json()
        return response.status, body["error"]["code"]


NOT_HERE = (403, "metrics_not_allowed")


@pytest.mark.parametrize(
    "header",
    [{"X-Forwarded-For": "203.0.113.9"}, {"Forwarded": "for=203.0.113.9"}, {"Via": "1.1 proxy"}, {"X-Real-IP": "::1"}],
)
async def test_a_client_behind_a_proxy_of_this_machine_reads_nothing(
    mesh: FakeMesh, http: aiohttp.ClientSession, header: dict[str, str]
) -> None:
    await mesh.start_door()
    await scraped(http, mesh)
    assert await refused(http, mesh, **header) == NOT_HERE


async def test_a_client_of_another_machine_reads_nothing(
    mesh: FakeMesh, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mesh.start_door()
    monkeypatch.setattr("services.streamer.door.connections.HttpRequest.remote", "192.0.2.7")
    assert await refused(http, mesh) == NOT_HERE
    monkeypatch.setattr("services.streamer.door.connections.HttpRequest.remote", "::ffff:127.0.0.1")
    await scraped(http, mesh)


async def test_where_there_is_a_key_it_is_needed(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_door(api_keys="one")
    assert (await refused(http, mesh))[0] == 401
    await scraped(http, mesh, Authorization="Bearer one")


async def test_several_callers_see_no_figures_of_each_other(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_door(api_keys="one,two")
    assert await refused(http, mesh, Authorization="Bearer one") == NOT_HERE


@pytest.mark.parametrize(("keys", "header"), [("", {}), ("one,two", {"Authorization": "Bearer two"})])
async def test_the_operator_may_show_them_to_all_callers_or_to_nobody(
    mesh: FakeMesh, http: aiohttp.ClientSession, keys: str, header: dict[str, str]
) -> None:
    await mesh.start_door(api_keys=keys, api_metrics="callers")
    await scraped(http, mesh, **header, Via="1.1 proxy")


async def test_the_operator_may_show_them_to_nobody(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_door(api_metrics="none")
    assert await refused(http, mesh) == NOT_HERE


async def test_a_rebound_name_reads_no_metrics(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_door()
    assert await refused(http, mesh, Host="evil.example") == (421, "host_not_allowed")
