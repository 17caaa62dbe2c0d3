"""A proposer's process with something wrong, for bench/failures/faults.py:

    python -m bench.failures.faulty_proposer slow|garbage      settings come from SPECMESH_*, as for every role

`slow` answers everything 200 ms late. `garbage` says at once, and is sure of it, what nobody will say.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from typing import ClassVar

from mesh.actor import Call
from services.api.drafter import Draft
from services.api.drafts import PlacedDraft, pack
from services.api.messages import Propose, Proposed
from services.api.settings import load_settings
from services.proposer.actor import ProposerActor
from services.runtime.process import run_role

LATE = 0.2
LONGEST = 64
# Ids that every model has.
IDS = 256


class SlowActor(ProposerActor):
    answers: ClassVar = {}
    handlers: ClassVar = {**ProposerActor.handlers, Propose: "propose_late"}

    async def propose_late(self, message: Propose, call: Call) -> Proposed:
        await asyncio.sleep(LATE)
        return self.propose(message, call)


class GarbageActor(ProposerActor):
    def propose(self, message: Propose, call: Call) -> Proposed:
        chance = random.Random(message.step)
        return Proposed(
            step=message.step,
            drafts=pack(
                PlacedDraft(
                    item.sequence_id,
                    item.committed + len(item.ahead),
                    Draft(
                        tokens=[chance.randrange(IDS) for _ in range(LONGEST)],
                        source="suffix",
                        match_length=LONGEST,
                        confidence=[0.99] * LONGEST,
                    ),
                )
                for item in message.items
            ),
        )


ACTORS = {"slow": SlowActor, "garbage": GarbageActor}

if __name__ == "__main__":
    sys.exit(run_role("proposer", load_settings({}, os.environ), ACTORS[sys.argv[1]]))
