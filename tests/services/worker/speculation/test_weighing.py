"""services/worker/speculation/weighing.py: how much of a lease pays."""

from __future__ import annotations

import random

import pytest

from services.api.messages import Generate, Sampling
from services.worker.scheduling.arrival import make_sequence
from services.worker.scheduling.events import Arrived
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.sequence import Sequence
from services.worker.speculation.cost_model import StepTime
from services.worker.speculation.lease import Lease
from services.worker.speculation.trust import Record, grades
from services.worker.speculation.weighing import Entry, Outlook, Plan, Size, alone, outlook, plan

LIMITS = Limits(vocab_size=100, max_context=4096, eos_token_ids=(0,), page_tokens=16, pages=1024)


def model() -> StepTime:
    """A step takes 10 ms, and 1 ms a row."""
    known = StepTime()
    for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        for _ in range(5):
            known.learn(rows, 100, 0.010 + 0.001 * rows)
    return known


def planned(chance: float, size: Size, tokens: int = 8) -> Plan:
    lease = Lease([7] * tokens, [chance] * tokens, "suffix", 4, "ahead")
    lease.grades = grades(lease.chances)
    record = Record(shared=False)
    # What it claims is what came of it.
    drawn = random.Random(1)
    for _ in range(400):
        record.source("suffix").learn([lease.grades[0]], drawn.random() < chance)
    record.purse = 100.0
    sequence = sequence_of()
    sequence.record = record
    return plan([Entry(sequence, lease, 0, tokens)], outlook(size, tokens, model(), LIMITS))


def sequence_of() -> Sequence:
    generate = Generate(
        request_id="r", attempt=1, token_ids=[1, 2, 3], prompt_tokens=3, sampling=Sampling(max_tokens=100)
    )
    arrived = Arrived(generate, 1)
    return make_sequence(arrived, 1, LIMITS, {})


# Alone, and beside prompts that are computed in the same step.
SIZES = (Size(4, 4, 100), Size(504, 4, 100, chunks=500))


def test_prompts_that_are_computed_in_the_same_step_make_no_token_dearer() -> None:
    """The prompts' rows make the step long, and a token per second of it worth much: but they have to be computed
    anyway, and a draft's rows take as much longer there as elsewhere."""
    for chance in (0.25, 0.5, 0.75, 0.93):
        alone, beside = (planned(chance, size) for size in SIZES)
        assert beside.wanted == alone.wanted
        assert beside.a_row == pytest.approx(alone.a_row)
    first, second = (outlook(size, 8, model(), LIMITS) for size in SIZES)
    assert first.token_seconds == pytest.approx(second.token_seconds) and first.token_seconds > 0.0
    # It does take longer.
    assert second.step_seconds > 10 * first.step_seconds


def test_the_likelier_the_longer() -> None:
    wanted = [planned(chance, Size(4, 4, 100)).wanted[0] for chance in (0.05, 0.5, 0.75, 0.93)]
    assert wanted == sorted(wanted) and wanted[0] == 0 and wanted[-1] > 4


@pytest.mark.parametrize("seed", range(300))
def test_what_is_said_of_one_by_itself_is_what_is_said_of_a_batch_of_one(seed: int) -> None:
    drawn = random.Random(seed)
    count = drawn.randint(1, 24)
    lease = Lease([7] * count, [drawn.random() ** 0.3 for _ in range(count)], "suffix", 4, "asked")
    lease.grades = grades(lease.chances)
    lease.at = drawn.randint(0, count)
    if drawn.random() < 0.1:
        lease.parents = list(range(-1, count - 1))
        lease.at = 0
    sequence = sequence_of()
    record = sequence.record = Record(shared=True)
    record.purse = drawn.choice([None, 1.0, 0.01, 0.001, 0.0, -1.0])
    seconds = [0.01]
    for _ in range(drawn.randint(0, 24)):
        seconds.append(seconds[-1] + drawn.choice([0.0, 0.0002, 0.003]))
    if drawn.random() < 0.1:
        seconds = []
    size = Size(1, 1, 100)
    ahead = Outlook(size, max(0, len(seconds) - 1), False, seconds)
    entry = Entry(sequence, lease, lease.at, drawn.randint(0, 24))
    batch = plan([entry], ahead)
    single = alone(record, lease, min(entry.room, count - lease.at), ahead)
    if single is None:
        can_pay = not seconds or record.affords(seconds[batch.wanted[0]] - seconds[0])
        assert lease.parents or not seconds or not batch.longest[0] or not can_pay
    else:
        values, count, a_row = single
        assert ([count], a_row) == (batch.counts, batch.a_row) and batch.counts == batch.wanted
        assert values == batch.values[0][: ahead.most]
        assert not lease.parents
