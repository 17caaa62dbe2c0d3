"""Computes the masks of a step while the model computes its logits, in a thread of its own: neither needs the other,
and llguidance holds no lock of Python's."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from services.worker.grammar.state import RowMasks
from services.worker.running.sampler import Sampler
from services.worker.running.work import SequenceWork

log = logging.getLogger("specmesh.worker")


# Of a step, by sequence; None: computing them failed.
Masks = dict[int, RowMasks | None]


class Masking:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "mask-grammar")

    def begin(self, asked: Sequence[tuple[SequenceWork, Sampler]]) -> Future[Masks] | None:
        """Of items whose samplers have `rows`. None: there are none."""
        return self._thread.submit(_masks, asked) if asked else None


def _masks(asked: Sequence[tuple[SequenceWork, Sampler]]) -> Masks:
    found: Masks = {}
    for item, sampler in asked:
        assert sampler.rows is not None
        of = item.position, item.draft.tokens, item.draft.parents
        try:
            found[item.sequence_id] = sampler.rows.masks(*of, sampler.forbidden(*of))
        # Whatever it is, it is this sequence's alone. A panic of the library's is no Exception.
        except BaseException:
            log.exception("a grammar's masks can't be computed")
            found[item.sequence_id] = None
    return found
