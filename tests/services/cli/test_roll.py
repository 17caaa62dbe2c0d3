"""`specmesh roll`: whom it signals, and when it is done."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

from services.cli.chat import ChatError
from services.cli.roll import roll, workers_of
from services.cli.which_mesh import supervisor_of


class Time:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def body(**workers: tuple[int, str]) -> dict[str, Any]:
    members = [
        {"role": "worker", "instance": name.replace("_", "-"), "pid": pid, "state": state}
        for name, (pid, state) in workers.items()
    ]
    return {"members": [*members, {"role": "streamer", "instance": "streamer-1", "pid": 1, "state": "ready"}]}


async def rolled(*looks: Any) -> list[str]:
    """What happened, with these answers of the server; the last one goes on."""
    happened: list[str] = []
    answers = list(looks)

    async def ask() -> Any:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await roll(ask, lambda: happened.append("signal"), 10.0, Time()) == 0  # type: ignore[arg-type]
    return happened


async def test_it_is_done_when_every_worker_is_another_ready_process(capsys: pytest.CaptureFixture[str]) -> None:
    before = body(worker_1=(10, "ready"), worker_2=(20, "ready"))
    happened = await rolled(
        before,
        body(worker_1=(10, "draining"), worker_2=(20, "ready")),
        ChatError("no answer"),
        body(worker_1=(11, "starting"), worker_2=(20, "ready")),
        body(worker_1=(11, "ready"), worker_2=(20, "ready")),
        body(worker_1=(11, "ready"), worker_2=(21, "ready")),
    )
    assert happened == ["signal"]
    assert capsys.readouterr().err.splitlines() == [
        "specmesh: worker-1 was replaced", "specmesh: worker-2 was replaced",
    ]  # fmt: skip


async def test_one_worker_alone_is_not_replaced() -> None:
    with pytest.raises(ChatError, match="--workers 2"):
        await rolled(body(worker_1=(10, "ready")))


async def test_who_is_not_replaced_in_time_is_named() -> None:
    with pytest.raises(ChatError, match="worker-2 not replaced"):
        await rolled(
            body(worker_1=(10, "ready"), worker_2=(20, "ready")), body(worker_1=(11, "ready"), worker_2=(20, "ready"))
        )


def test_processes_that_are_gone_are_no_workers() -> None:
    assert workers_of(body(worker_1=(10, "gone"), worker_2=(20, "stuck"))) == ({"worker-2": 20}, set())


def test_the_supervisor_is_who_holds_the_lock_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ChatError, match="no mesh"):
        supervisor_of(tmp_path)
    (tmp_path / "up.lock").write_text("4242")
    with pytest.raises(ChatError, match="no mesh"):
        supervisor_of(tmp_path)
    with (tmp_path / "up.lock").open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert supervisor_of(tmp_path) == 4242
