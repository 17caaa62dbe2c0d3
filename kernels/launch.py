"""How a Triton kernel is started, and the small plain functions that sizes come from.

A launch allocates nothing and looks at no data: what varies from step to step (how many rows, which pages) is
read by the kernels from tensors of a fixed size, so a launch can be captured in a CUDA graph and replayed.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from kernels import interpreter

# Multiprocessors that the interpreter pretends to have: few, so that a persistent program takes several items.
INTERPRETED_MULTIPROCESSORS = 3
# The compute capability from which a kernel can start while the one before it runs (kernels/dependent.py).
DEPENDENT_FROM = 90

log = logging.getLogger("specmesh.kernels")


class Launched(NamedTuple):
    """What `launch` was called with."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    warps: int
    stages: int
    fp_fusion: bool
    constants: dict[str, Any]


@dataclass(slots=True)
class _State:
    # Set by `seal`: whatever is compiled from then on makes a request wait.
    sealed: bool = False
    compiled_late: int = 0
    only_compiling: bool = False
    noted: list[Launched] | None = None
    # The architecture that launches are listed for; 0: they are started.
    listed_for: int = 0


_state = _State()


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two(n: int, least: int = 1) -> int:
    """The smallest power of two that is not under n."""
    return max(least, 1 << max(n - 1, 0).bit_length())


def multiprocessors(device: torch.device) -> int:
    if interpreter.in_use() or _state.listed_for:
        return INTERPRETED_MULTIPROCESSORS
    return _multiprocessors(device)


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def architecture(device: torch.device) -> int:
    """90 for compute capability 9.0. The interpreter counts as the oldest we compile for."""
    if _state.listed_for:
        return _state.listed_for
    return 80 if interpreter.in_use() else _architecture(device)


@lru_cache
def _architecture(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


# Compiled kernels by what they were specialised for; in the interpreter, where nothing is compiled, None for each.
_compiled: dict[tuple[Any, ...], Any] = {}


def seal() -> None:
    """All that requests need is compiled. What is compiled afterwards is counted, and named in the log."""
    _state.sealed = True


def compiled_late() -> int:
    """Launches since `seal` that needed a kernel which wasn't compiled."""
    return _state.compiled_late


def computes() -> bool:
    """Whether launches start kernels: False while they are only compiled or listed."""
    return not (_state.only_compiling or _state.listed_for)


@contextmanager
def only_compiling() -> Iterator[None]:
    """Launches compile their kernel, all of them side by side, and start nothing: what they would have written is not
    written."""
    was, _state.only_compiling = _state.only_compiling, True
    try:
        if was or interpreter.in_use() or _state.listed_for:
            yield
        else:
            with _side_by_side():
                yield
    finally:
        _state.only_compiling = was


@contextmanager
def _side_by_side() -> Iterator[None]:
    """Kernels are compiled by a thread for each core: Triton's compiler releases the interpreter's lock for most of its
    time."""
    from triton import AsyncCompileMode, FutureKernel

    known = set(_compiled)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool, AsyncCompileMode(pool, ignore_errors=True):
        yield
    for key in _compiled.keys() - known:
        compiled, in_order = _compiled[key]
        # Raises what its compilation raised.
        _compiled[key] = compiled.result() if isinstance(compiled, FutureKernel) else compiled, in_order


@contextmanager
def listing(arch: int) -> Iterator[list[Launched]]:
    """All launches, in their order, as on a GPU of this architecture that need not be there: nothing is compiled or
    started."""
    _state.listed_for = arch
    try:
        with noting() as noted:
            yield noted
    finally:
        _state.listed_for = 0


def listed() -> bool:
    """Whether launches are only listed."""
    return bool(_state.listed_for)


@contextmanager
def noting() -> Iterator[list[Launched]]:
    """All launches, in their order."""
    assert _state.noted is None
    _state.noted = noted = []
    try:
        yield noted
    finally:
        _state.noted = None


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *args: Any,
    warps: int = 4,
    stages: int = 2,
    fp_fusion: bool = True,
    **constants: Any,
) -> None:
    """Start `kernel` with `args`, in the order of its signature, and its constexprs by name. Without `fp_fusion`
    a product is rounded before something is added to it.

    The compiled kernel is kept by what it was specialised for: its constexprs, the types of the arguments, and whether
    pointers are multiples of 16. Numbers that aren't constexprs are in each kernel's `do_not_specialize`, so that the
    rows of a step compile nothing.
    """
    grid = (*grid, 1, 1)[:3]
    if _state.noted is not None:
        _state.noted.append(Launched(kernel, grid, args, warps, stages, fp_fusion, constants))
        if _state.listed_for:
            return
    key = (kernel, args[0].device.index, warps, stages, fp_fusion, *constants.items(), *map(kind, args))
    found = _compiled.get(key)
    if found is None:
        found = _compiled[key] = _compile(kernel, grid, args, constants, warps, stages, fp_fusion)
        if _state.sealed:
            _state.compiled_late += 1
            log.warning("%s was compiled while requests waited: %s", kernel.__name__, key[2:])
    if _state.only_compiling:
        return
    if interpreter.in_use():
        kernel[grid](*args, **constants)
        return
    compiled, in_order = found
    compiled[grid](*args, *in_order)


def _compile(
    kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any], warps: int, stages: int,
    fp_fusion: bool,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    in_order = tuple(constants[name] for name in kernel.arg_names if name in constants)
    if interpreter.in_use():
        interpreter.mend_rows()
        interpreter.mend_bfloat16()
        interpreter.mend_speed()
        return None, in_order
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": fp_fusion}
    if architecture(args[0].device) >= DEPENDENT_FROM and _waits(kernel):
        options["launch_pdl"] = True
    return kernel.warmup(*args, **constants, **options, grid=grid), in_order


@lru_cache
def _waits(kernel: Any) -> bool:
    """Whether it may be started before the kernel in front of it has ended (kernels/dependent.py)."""
    return "    wait_for_kernel_before()\n" in inspect.getsource(kernel.fn)


def kind(arg: Any) -> Any:
    """What Triton compiles another kernel for. Two arguments of one kind may share a compiled kernel."""
    if isinstance(arg, torch.Tensor):
        return arg.dtype, arg.data_ptr() % 16 == 0
    if isinstance(arg, int):
        assert -(2**31) <= arg < 2**31, "numbers of a launch are int32"
        return int
    return type(arg)
