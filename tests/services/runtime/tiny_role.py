"""A process with a tiny actor in it, as a child of tests: `python tiny_role.py ROLE`, settings by environment.

What it shall do is told by TINY: start_fails, start_hangs, drain_hangs; and by text sent to it: `block` stops its
event loop for good, `stuck` stops its progress, `busy` makes its drain last until `done` is heard, `leave` stops the
actor alone.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any, ClassVar

from mesh.actor import Actor, Call
from mesh.node import Node
from services.api.messages import Decode, Decoded, Describe, ModelCard
from services.api.settings import load_settings
from services.runtime.process import run_role

ORDERS = os.environ.get("TINY", "").split()


class TinyActor(Actor):
    handlers: ClassVar = {Decode: "hear", Describe: "describe"}
    concurrency = 4

    def __init__(self, context: Any) -> None:
        self._age = 0.0
        self._missing: list[str] = []
        self._idle = asyncio.Event()
        self._idle.set()

    async def on_start(self) -> None:
        if "start_fails" in ORDERS:
            raise ValueError("no weights in this folder")
        if "start_hangs" in ORDERS:
            print("hanging", flush=True)
            await asyncio.Event().wait()

    async def on_stop(self) -> None:
        print("stopped", flush=True)

    async def hear(self, message: Decode, call: Call) -> Decoded:
        match bytes(message.token_ids).decode():
            case "block":
                print("blocking", flush=True)
                time.sleep(3600)  # noqa: ASYNC251 - that is the fault to be shown
            case "stuck":
                self._age = 99.0
            case "miss":
                self._missing = ["nobody to talk to"]
            case "fine":
                self._age, self._missing = 0.0, []
            case "busy":
                self._idle.clear()
            case "done":
                self._idle.set()
            case "leave":
                assert isinstance(self.node, Node)
                await self.node.stop_actor(sys.argv[1])
        return Decoded(text="heard")

    async def describe(self, message: Describe, call: Call) -> ModelCard:
        return ModelCard(
            model="tiny", max_context=1, vocab_size=1, eos_token_ids=[], methods=[], verify_strategies=[],
            max_speculative_tokens=0, engine="mock",
        )  # fmt: skip

    def ready(self) -> list[str]:
        return self._missing

    def progress_age(self) -> float:
        return self._age

    def load(self) -> int:
        return 3

    async def drain(self, timeout: float) -> None:
        print("draining", flush=True)
        if "drain_hangs" in ORDERS:
            await asyncio.Event().wait()
        await self._idle.wait()


if __name__ == "__main__":
    sys.exit(run_role(sys.argv[1], load_settings({}, os.environ), TinyActor))
