"""How many ranks a worker has, by its phase."""

from __future__ import annotations

from typing import Any

import pytest

from services.api.ranks import ranks_by_phase, ranks_of
from services.api.settings import Settings

WIDE_PROMPTS = {"tensor_parallel_size": 2, "prefill_tensor_parallel_size": 4}


@pytest.mark.parametrize(
    ("given", "ranks", "told"),
    [
        ({"tensor_parallel_size": 2}, 2, ""),
        ({"tensor_parallel_size": 2, "phase": "prefill"}, 2, ""),
        ({**WIDE_PROMPTS, "phase": "prefill"}, 4, "4 and 2 ranks: "),
        ({**WIDE_PROMPTS, "phase": "decode"}, 2, "4 and 2 ranks: "),
        ({**WIDE_PROMPTS, "decode_tensor_parallel_size": 1, "phase": "decode"}, 1, "4 and 1 ranks: "),
        # Equal numbers are one layout, however they were given.
        ({"prefill_tensor_parallel_size": 2, "decode_tensor_parallel_size": 2, "phase": "decode"}, 2, ""),
        # A worker without a phase is in no such mesh.
        ({**WIDE_PROMPTS, "prefill_workers": 1, "decode_workers": 1}, 2, ""),
    ],
)
def test_a_phase_may_have_a_number_of_ranks_of_its_own(given: dict[str, Any], ranks: int, told: str) -> None:
    settings = Settings.for_tests(**given)
    assert (ranks_of(settings), ranks_by_phase(settings)) == (ranks, told)
