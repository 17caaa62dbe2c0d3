"""The keeper with watchers in this process instead of on a cluster, and tiny roles as real processes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from watching import gone

from mesh.directory.membership import Member
from mesh.security import make_keys
from services.api.messages import Seen
from services.api.settings import ROLES, Settings, to_environment
from services.placement.autoscale import WorkerLoad
from services.placement.cluster import WatcherGone
from services.placement.folder import read_keys, secrets_for
from services.placement.keeper import Keeper
from services.placement.plan import Watcher, shares_of
from services.placement.scaler import load_of
from services.placement.watcher import Orders, Report, RoleWatcher

ROOT = Path(__file__).parents[3]
TINY_ROLE = str(Path(__file__).resolve().parents[1] / "runtime" / "tiny_role.py")
LONG = 60.0  # s


class Here:
    """A cluster of one machine. `dead`: watchers whose machine is gone; `deaf`: those that don't answer."""

    def __init__(self, settings: Settings, secrets: dict[str, str]) -> None:
        self.watchers: dict[str, RoleWatcher] = {}
        self.dead: set[str] = set()
        self.deaf: set[str] = set()
        self.calls: list[str] = []
        self.shares = shares_of(settings, 0.0)
        # The workers that have room here; further ones wait.
        self.room = 64
        self.waiting: dict[str, tuple[asyncio.Event, Orders]] = {}
        self._environment, self._secrets = to_environment(settings), secrets

    def create(self, role: str, instance: str, watchers: list[Watcher], told: Orders) -> str:
        if role == "worker" and sum(each.role == role for each in self.watchers.values()) >= self.room:
            self.waiting[instance] = (asyncio.Event(), told)
            self.calls.append(f"no room for {instance}")
            return ""
        # Of the other roles nothing is asked here but that their processes are there.
        command = (sys.executable, TINY_ROLE, role) if role in ("worker", "streamer") else ("sleep", "infinity")
        secrets = secrets_for(role, self._secrets)
        self.watchers[instance] = RoleWatcher(role, instance, self._environment, secrets, "n1", "127.0.0.1", command)
        self.watchers[instance].tick(told)
        self.calls.append(f"create {instance}")
        return "n1"

    async def tick(self, instance: str, told: Orders) -> Report:
        if instance in self.deaf:
            await asyncio.Event().wait()
        if instance in self.waiting:
            await self.waiting[instance][0].wait()
        if instance in self.dead or instance not in self.watchers:
            raise WatcherGone(instance)
        return self.watchers[instance].tick(told)

    def drain(self, instance: str) -> None:
        self.calls.append(f"drain {instance}")
        self.watchers[instance].drain()

    def remove(self, instance: str) -> None:
        self.calls.append(f"remove {instance}")
        self.watchers.pop(instance, None)
        self.waiting.pop(instance, None)
        for name, (placed, told) in list(self.waiting.items()):
            del self.waiting[name]
            self.create("worker", name, [], told)
            placed.set()

    def known(self) -> list[str]:
        return sorted(self.watchers)


class Town:
    def __init__(self, folder: Path, **more: Any) -> None:
        make_keys(folder / "made", [*ROLES, "directory"])
        self.secrets = read_keys(folder / "made")
        self.settings = Settings.for_tests(
            engine="mock", drain_timeout=5.0, metrics_port=more.pop("metrics_port"), workers=2, **more
        )
        self.cluster = Here(self.settings, self.secrets)
        self.began: list[RoleWatcher] = []

    @asynccontextmanager
    async def keeper(self) -> AsyncIterator[Keeper]:
        keeper = Keeper(self.settings, self.secrets, "127.0.0.1", self.cluster)
        running = asyncio.create_task(keeper.run())
        try:
            yield keeper
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def until(true: Callable[[], bool], why: Callable[[], object]) -> None:
    """Processes start and end by themselves; nothing tells us."""
    end = asyncio.get_running_loop().time() + LONG
    while not true():
        assert asyncio.get_running_loop().time() < end, why()
        await asyncio.sleep(0.05)


def states(keeper: Keeper, role: str = "worker") -> dict[str, str]:
    watchers: Any = keeper.status(0)["watchers"]
    return {each["instance"]: each["state"] for each in watchers if each["role"] == role}


def report(watcher: RoleWatcher) -> Report:
    """What it says of itself, when it is told nothing."""
    return watcher.tick(Orders(directory="", pid=0, ready=False, lost=False, desired={}, numbers={}, old=[]))


def events(keeper: Keeper) -> list[str]:
    said: Any = keeper.status(0)["events"]
    return [text for _, text in said]


async def until_ready(keeper: Keeper, *instances: str) -> None:
    await until(lambda: states(keeper) == dict.fromkeys(instances, "ready"), lambda: keeper.status(0))


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port_range: int) -> AsyncIterator[Town]:
    (tmp_path / "machine").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "machine"))
    made = Town(tmp_path, metrics_port=free_port_range)
    yield made
    watchers = list(made.cluster.watchers.values())
    for watcher in watchers:
        watcher.drain()
    for watcher in watchers:
        await until(lambda watcher=watcher: report(watcher)["ended"], lambda: "a watcher goes on")  # type: ignore[misc]


async def test_a_lost_host_is_replaced_under_a_new_name_and_a_silent_one_only_if_its_process_is_silent(
    town: Town,
) -> None:
    async with town.keeper() as keeper:
        await until_ready(keeper, "worker-1", "worker-2")
        lost = town.cluster.watchers["worker-1"]
        town.cluster.dead.add("worker-1")
        await until_ready(keeper, "worker-2", "worker-3")
        lost.drain()
        # Its process announces itself: only the way to its watcher is cut.
        town.cluster.deaf.add("worker-2")
        await until(lambda: keeper._watchers["worker-2"].silent_since is not None, lambda: "it is asked")
        keeper._watchers["worker-2"].silent_since = keeper._clock.now() - 60.0
        keeper._bury_silent()
        assert keeper._watchers["worker-2"].state == "running"
        town.cluster.deaf.clear()
    assert "remove worker-1" in town.cluster.calls and "remove worker-2" not in town.cluster.calls


async def test_scaling_down_drains_and_a_new_keeper_takes_over_what_is_left_and_wanted(town: Town) -> None:
    async with town.keeper() as first:
        await until_ready(first, "worker-1", "worker-2")
        pids = {each["instance"]: each["pid"] for each in first.status(0)["watchers"]}  # type: ignore[attr-defined]
        first.scale("worker", 1)
        await until_ready(first, "worker-1")
        # What has drained is removed.
        assert town.cluster.calls[-2:] == ["drain worker-2", "remove worker-2"]
        assert gone(pids["worker-2"]) and not gone(pids["worker-1"])
        before: Any = first.status(0)
    async with town.keeper() as second:
        await until_ready(second, "worker-1")
        await until(lambda: states(second, "streamer") == {"streamer-1": "ready"}, lambda: second.status(0))
        after: Any = second.status(0)
        assert after["desired"] == before["desired"] and after["directory"] != before["directory"]
        assert {each["pid"] for each in after["watchers"]} == {each["pid"] for each in before["watchers"]}
        second.scale("worker", 2)
        # The number of the one that has ended isn't given again.
        await until_ready(second, "worker-1", "worker-3")


async def test_workers_are_replaced_one_by_one_each_after_another_is_ready(town: Town) -> None:
    async with town.keeper() as keeper:
        await until_ready(keeper, "worker-1", "worker-2")
        before = {each["instance"]: each["pid"] for each in keeper.status(0)["watchers"]}  # type: ignore[attr-defined]
        town.cluster.calls.clear()
        assert keeper.roll() == ["worker-1", "worker-2"]
        await until_ready(keeper, "worker-3", "worker-4")
        assert keeper.status(0)["old"] == []
        assert gone(before["worker-1"]) and gone(before["worker-2"])
    one, other = ("1", "2") if "drain worker-1" in town.cluster.calls[:2] else ("2", "1")
    assert town.cluster.calls == [
        "create worker-3", f"drain worker-{one}", f"remove worker-{one}",
        "create worker-4", f"drain worker-{other}", f"remove worker-{other}",
    ]  # fmt: skip


async def test_where_there_is_no_room_for_one_more_a_worker_makes_room(town: Town) -> None:
    town.cluster.room = 2
    async with town.keeper() as keeper:
        await until_ready(keeper, "worker-1", "worker-2")
        town.cluster.calls.clear()
        keeper.roll()
        await until_ready(keeper, "worker-3", "worker-4")
    calls = [call.rpartition(" ")[0] for call in town.cluster.calls]
    assert calls == ["no room for", "drain", "remove", "create"] * 2


async def test_the_only_worker_stays_where_another_has_no_room(town: Town) -> None:
    town.settings, town.cluster.room = town.settings.replaced(workers=1), 1
    async with town.keeper() as keeper:
        await until_ready(keeper, "worker-1")
        keeper.roll()
        await until(lambda: not keeper.status(0)["old"], lambda: keeper.status(0))
        await until_ready(keeper, "worker-1")
        assert any("no machine has 1 CPU free" in text for text in events(keeper))


async def test_a_new_keeper_goes_on_replacing(town: Town) -> None:
    async with town.keeper() as first:
        await until_ready(first, "worker-1", "worker-2")
        first.roll()
        await until(lambda: len(first.status(0)["old"]) == 1, lambda: first.status(0))  # type: ignore[arg-type]
        # It knows by the last that the watchers were told.
        (old,) = first.status(0)["old"]  # type: ignore[misc]
        await until(lambda: report(town.cluster.watchers[old])["old"] == [old], lambda: first.status(0))
    async with town.keeper() as second:
        await until(lambda: old not in states(second) and not second.status(0)["old"], lambda: second.status(0))
        await until(lambda: list(states(second).values()) == ["ready"] * 2, lambda: second.status(0))


async def test_a_stop_drains_everything_the_streamer_first(town: Town) -> None:
    async with town.keeper() as keeper:
        await until_ready(keeper, "worker-1", "worker-2")
        await until(lambda: states(keeper, "streamer") == {"streamer-1": "ready"}, lambda: keeper.status(0))
        keeper.stop()
        await until(lambda: keeper.ended, lambda: keeper.status(0))
    drained = [call for call in town.cluster.calls if call.startswith("drain")]
    assert drained[0] == "drain streamer-1" and set(drained[1:3]) == {"drain worker-1", "drain worker-2"}
    assert town.cluster.watchers == {}


def test_the_load_of_a_worker_is_read_from_its_figures() -> None:
    seen = Seen(
        figures={"waiting": 3.0, "running": 8.0, "max_sequences": 64.0}, totals={"ended": 12.0},
        earlier={"ended": 2.0}, span=2.0,
    )  # fmt: skip
    assert load_of(seen) == WorkerLoad(waiting=3, running=8, room=64, ended=10.0, span=2.0)
    assert load_of(Seen()) == WorkerLoad(0, 0, 0, 0.0, 0.0)


async def test_a_host_that_died_with_an_earlier_keeper_is_removed_and_replaced(town: Town) -> None:
    async with town.keeper() as first:
        await until_ready(first, "worker-1", "worker-2")
        lost = town.cluster.watchers["worker-2"]
    # Its room is still set aside, so the cluster names it.
    town.cluster.dead.add("worker-2")
    async with town.keeper() as second:
        await until_ready(second, "worker-1", "worker-3")
        assert "remove worker-2" in town.cluster.calls
    lost.drain()
    await until(lambda: report(lost)["ended"], lambda: "it goes on")


async def test_a_long_queue_brings_another_worker(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(keeper: Keeper, member: Member) -> Seen:
        figures = {"waiting": 50.0, "running": 64.0, "max_sequences": 64.0}
        return Seen(figures=figures, totals={"ended": 1.0}, span=2.0)

    monkeypatch.setattr(Keeper, "_look", look)
    monkeypatch.setattr("services.placement.autoscale.GROW_AFTER", 0.0)
    town.settings = town.settings.replaced(max_workers=3)
    async with town.keeper() as keeper:
        await until_ready(keeper, "worker-1", "worker-2", "worker-3")
        assert any("2 → 3: requests wait" in text for text in events(keeper))
