"""`specmesh roll`: the workers of a mesh are replaced one by one, while the others serve.

On Ray the keeper does it (ray_commands.py). On one machine `up` does it when it gets the signal ROLL (its supervisor
decides the order, mesh/supervisor/decide.py). This sends the signal and tells who has been replaced, from /v1/mesh.
The signal needs the rights of the user who runs `up`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from mesh.clock import Clock, SystemClock
from services.api.settings import Settings, run_dir
from services.cli.chat import ChatError, server_of
from services.cli.top import look
from services.cli.top_view import Body
from services.cli.up import ROLL
from services.cli.which_mesh import is_on_ray, supervisor_of
from services.runtime.refusal import refuse

LOOK_EVERY = 0.5  # s
# Beyond its drain, for loading the model.
START_TIMEOUT = 300.0  # s, for each worker

Lives = dict[str, int]


def main(options: argparse.Namespace, settings: Settings) -> int:
    if is_on_ray(settings):
        from services.cli.ray_commands import roll as roll_on_ray

        return roll_on_ray(settings)
    server = server_of(options.url, settings)
    patience = settings.drain_timeout + START_TIMEOUT
    try:
        supervisor = supervisor_of(run_dir(settings))
        return asyncio.run(roll(lambda: look(server), lambda: os.kill(supervisor, ROLL), patience))
    except (ChatError, OSError) as error:
        return refuse(error)


async def roll(
    ask: Callable[[], Awaitable[Body]], begin: Callable[[], object], patience: float, clock: Clock | None = None
) -> int:
    """Until all workers are other processes than before and ready; `patience` is for each of them."""
    clock = clock or SystemClock()
    before, _ = workers_of(await ask())
    if len(before) < 2:
        raise ChatError(f"{len(before)} worker runs: another has to serve meanwhile (--workers 2)")
    begin()
    left = dict(before)
    deadline = clock.now() + patience * len(before)
    while left:
        if clock.now() >= deadline:
            raise ChatError(f"{', '.join(left)} not replaced after {patience * len(before):.0f} s")
        await clock.sleep(LOOK_EVERY)
        try:
            now, ready = workers_of(await ask())
        except ChatError:
            continue
        for name in [name for name in left if name in ready and now[name] != before[name]]:
            print(f"specmesh: {name} was replaced", file=sys.stderr, flush=True)
            del left[name]
    return 0


def workers_of(body: Body) -> tuple[Lives, set[str]]:
    """The workers' pids by name, and who is ready."""
    workers = [each for each in body["members"] if each["role"] == "worker" and each["state"] != "gone"]
    return {each["instance"]: each["pid"] for each in workers}, {
        each["instance"] for each in workers if each["state"] == "ready"
    }
