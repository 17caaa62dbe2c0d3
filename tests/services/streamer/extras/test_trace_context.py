from __future__ import annotations

import pytest

from services.streamer.extras.trace_context import trace_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "header", [f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-ff", f" 00-{TRACE}-{SPAN}-01 ", f"cc-{TRACE}-{SPAN}-01-new"]
)
def test_the_clients_span_is_the_parent(header: str) -> None:
    trace = trace_of([header])
    assert trace is not None
    assert (trace.trace_id, trace.parent_id) == (TRACE, SPAN)
    assert trace.span_id != SPAN and len(trace.span_id) == 16


@pytest.mark.parametrize("flags", ["00", "02", "fe"])
def test_a_trace_that_the_client_does_not_record_is_not_recorded(flags: str) -> None:
    assert trace_of([f"00-{TRACE}-{SPAN}-{flags}"]) is None


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [""],
        ["off"],
        [f"00-{TRACE.upper()}-{SPAN}-00"],
        [f"ff-{TRACE}-{SPAN}-00"],
        [f"00-{TRACE}-{SPAN}-00-more"],
        [f"00-{'0' * 32}-{SPAN}-00"],
        [f"00-{TRACE}-{'0' * 16}-00"],
        [f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"],
    ],
)
def test_what_is_no_traceparent_counts_as_none_and_a_new_trace_begins(headers: list[str]) -> None:
    first, second = trace_of(headers), trace_of(headers)
    assert first is not None and second is not None
    assert first.parent_id == "" and len(first.trace_id) == 32
    assert first.trace_id not in (TRACE, second.trace_id)
