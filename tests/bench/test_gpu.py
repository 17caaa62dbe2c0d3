"""What a GPU's benchmarks time is what they say, and their figures add up; in the interpreter, on toys."""

from __future__ import annotations

import pytest
import torch

from bench.gpu import decode, http, verify
from bench.gpu.busy import LEAD, Busy
from kernels import interpreter
from kernels.verify import fused, reference
from tests.kernels.verify.test_fused import told


@pytest.mark.skipif(not interpreter.in_use(), reason="compares in the interpreter")
@pytest.mark.parametrize("kind", verify.RULES)
def test_verification_that_is_timed_answers_as_the_reference_does(kind: str) -> None:
    copies = verify.made(torch.float32, 96, 6, torch.device("cpu"))
    [(logits, questions, work, needs)] = verify.prepared(copies, verify.RULES[kind], 2, 2)
    expected = told(reference.verify(logits, questions), questions)
    assert told(fused.verify(logits.clone(), questions, work, needs), questions) == expected
    assert kind != "greedy" or [accepted for _, accepted, *_ in expected] == [2, 2]


def test_the_busy_share_is_of_what_was_read_between_two_times() -> None:
    busy = Busy()
    busy._read += [(0.0, 0), (LEAD, 80), (2.0, 100), (3.0, 0)]
    assert busy.share(0.0, 2.5) == 0.9
    # Of a short run its second half counts.
    assert busy.share(1.5, 2.5) == 1.0 and busy.share(5.0, 6.0) is None


def decoded(times: float, over: float) -> dict[str, object]:
    return {"of_bytes": dict.fromkeys(decode.OF_BYTES, times), "rows_over_one": over}


def test_bars_of_a_step_are_ratios_within_one_run() -> None:
    ratios = dict.fromkeys(decode.OF_BYTES, 1.0)
    met = decoded(1.2, 1.0) | {"over_fast": ratios}
    assert decode.missed({"strict": met, "fast": decoded(1.2, 1.0)}) == []
    slow = decoded(1.31, 1.04) | {"over_fast": ratios | {"batch 1": 1.04}}
    assert decode.missed({"strict": slow, "fast": decoded(1.0, 1.0)}) == [
        "strict, batch 1: 1.31 x its bytes, the bar is 1.2",
        "strict, batch 16: 1.31 x its bytes, the bar is 1.25",
        "strict, batch 64: 1.31 x its bytes, the bar is 1.3",
        "strict: 8 rows take 1.04 x one, the bar is 1.03",
        "batch 1: strict takes 1.04 x fast, the bar is 1.03",
    ]


def test_what_http_misses_is_told_with_how_sure_it_is() -> None:
    met = {"concurrency": 64, "failed": 0, "busy": None}
    auto, one = met | {"workload": "chat", "server": "auto"}, met | {"workload": http.ONE_LENGTH, "server": "naive"}
    noise, surely = ({"ratio": 0.9, "low": 0.8, "high": high} for high in (1.1, 0.95))
    runs = [
        one | {"concurrency": 1, "of_in_process": 0.95},
        one | {"of_in_process": 0.5, "busy": 0.45},
        *(auto | {"of_first": each} for each in (noise, surely, noise | {"ratio": 1.0})),
        auto | {"texts_differ": 2},
    ]
    assert http.missed({"runs": runs, "left_out": ["edit, 16 streams"], "compiled_late": 0}) == [
        "one length, 64 streams: 0.5 of the runner in process, the bar is 0.9",
        "one length, 64 streams: the GPU is busy 45% of the time, the bar is 90%",
        "chat, 64 streams: auto is 0.9 (0.8 to 1.1) of naive (within noise)",
        "chat, 64 streams: auto is 0.9 (0.8 to 0.95) of naive (certain)",
        "chat, 64 streams: 2 texts differ",
        "edit, 16 streams: no time was left",
    ]
