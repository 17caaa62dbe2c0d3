"""The interpreter's device finds what would go wrong on one that computes later: each mistake is made once here."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels import interpreter
from kernels.device import device_of
from kernels.interpreted_device import InterpretedDevice, OutOfOrder
from kernels.launch import launch

pytestmark = pytest.mark.skipif(not interpreter.in_use(), reason="about the interpreter's device")


@pytest.fixture
def device() -> InterpretedDevice:
    made = device_of(torch.device("cpu"))
    assert isinstance(made, InterpretedDevice)
    return made


def test_a_stage_brings_what_was_written_to_the_same_place_again_and_again(device: InterpretedDevice) -> None:
    stage = device.stage(4)
    address = stage.there.data_ptr()
    for turn in range(3):
        stage.wait()
        stage.numbers[:] = turn
        stage.send(4)
        assert stage.there.tolist() == [turn] * 4 and stage.there.data_ptr() == address


def test_a_stage_written_while_its_copy_is_under_way_is_found_when_it_is_waited_for(device: InterpretedDevice) -> None:
    stage = device.stage(4)
    stage.send(4)
    stage.numbers[2] = 7
    with pytest.raises(OutOfOrder, match="written while"):
        stage.wait()


def test_a_stage_sent_again_without_waiting_is_found(device: InterpretedDevice) -> None:
    stage = device.stage(4)
    stage.send(4)
    with pytest.raises(OutOfOrder, match="sent again"):
        stage.send(4)


def test_with_two_turns_the_host_writes_while_the_last_copy_is_under_way(device: InterpretedDevice) -> None:
    stage = device.stage(4, 2)
    for turn in range(5):
        stage.wait()
        stage.numbers[:] = turn
        stage.send(4)
        assert stage.there.tolist() == [turn] * 4
    before = stage.numbers
    stage.wait()
    before[1] = 9
    stage.send(4)
    with pytest.raises(OutOfOrder, match="written while"):
        stage.wait()


def test_words_that_were_not_sent_may_be_written_meanwhile(device: InterpretedDevice) -> None:
    stage = device.stage(4)
    stage.send(2)
    stage.numbers[3] = 7
    stage.wait()


def test_results_read_before_they_have_arrived_are_found(device: InterpretedDevice) -> None:
    there = torch.tensor([1, 2])
    fetched = device.fetch(there)
    with pytest.raises(OutOfOrder, match="before they have arrived"):
        fetched.here.tolist()
    # The stream's order: what is written later isn't in the copy.
    there[0] = 9
    assert fetched.wait().tolist() == [1, 2] == fetched.here.tolist()


@triton.jit
def add_kernel(x, out, number, SCALE: tl.constexpr):
    at = tl.program_id(0)
    tl.store(out + at, tl.load(x + at) * SCALE + number)


class Step:
    """Reads `x`, adds `number` and leaves the result, through memory of its own, in `out`."""

    def __init__(self) -> None:
        self.x, self.out, self.number, self.again = torch.zeros(4), torch.zeros(4), 0, False

    def run(self) -> None:
        between = torch.empty(4)
        launch(add_kernel, (4,), self.x, between, self.number, SCALE=2)
        launch(add_kernel, (4,), between, self.out, 0, SCALE=1)
        if self.again:
            launch(add_kernel, (4,), between, self.out, 1, SCALE=1)


def test_a_graph_computes_with_what_lies_at_its_addresses_and_capturing_computes_nothing(
    device: InterpretedDevice,
) -> None:
    step = Step()
    step.x += 1
    replay = device.capture(step.run)
    assert step.out.tolist() == [0.0] * 4
    replay()
    assert step.out.tolist() == [2.0] * 4
    step.x += 1
    replay()
    assert step.out.tolist() == [4.0] * 4


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("x", torch.ones(4), "replays"),
        ("out", torch.ones(4), "replays"),
        ("number", 5, "replays"),
        ("again", True, "2 launches is replayed for 3"),
    ],
    ids=["an input elsewhere", "an output elsewhere", "another number", "another launch"],
)
def test_a_step_that_is_not_what_was_captured_is_found(
    device: InterpretedDevice, name: str, value: object, match: str
) -> None:
    step = Step()
    replay = device.capture(step.run)
    setattr(step, name, value)
    with pytest.raises(OutOfOrder, match=match):
        replay()


@pytest.mark.parametrize("what", ["wait", "send", "fetch"])
def test_a_capture_that_waits_or_sends_is_found(device: InterpretedDevice, what: str) -> None:
    stage = device.stage(4)

    def run() -> None:
        {"wait": stage.wait, "send": lambda: stage.send(4), "fetch": lambda: device.fetch(stage.there)}[what]()

    with pytest.raises(OutOfOrder, match="a capture"):
        device.capture(run)
    # And the device is of use again.
    stage.wait()
