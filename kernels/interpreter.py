"""Where there is no GPU, Triton's kernels run in its interpreter: slow, on CPU tensors, and good for checking
results. Triton reads the switch when a kernel is defined, so it is set before anything imports triton. No torch.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

SWITCH = "TRITON_INTERPRET"
# What the drivers of a GPU put there: Linux, and Linux inside of Windows.
DEVICES = ("/dev/nvidiactl", "/dev/dxg")


def has_gpu() -> bool:
    return any(Path(device).exists() for device in DEVICES)


def in_use() -> bool:
    return os.environ.get(SWITCH, "") not in ("", "0")


def use_without_gpu() -> None:
    """For tests and other programs that are about kernels; nothing that serves calls it."""
    if has_gpu() or in_use():
        return
    assert "triton" not in sys.modules, "triton was imported before its interpreter was chosen"
    os.environ[SWITCH] = "1"


@functools.lru_cache
def mend_bfloat16() -> None:
    """The interpreter keeps bfloat16 as its bits. It multiplies matrices of bits, and cuts where a GPU rounds to
    nearest, ties to even: seen with Triton 3.9. Where an interpreter does better, this changes nothing."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast, multiply = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def cast_and_round(self: Any, source: Any, to: Any) -> Any:
        if source.dtype.scalar != tl.float32 or to.scalar != tl.bfloat16:
            return cast(self, source, to)
        bits = np.asarray(source.data, np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
        rounded = np.where(np.isnan(source.data), np.uint32(0x7FC0), rounded)
        return TensorHandle(rounded.astype(np.uint16), tl.bfloat16)

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16 or handle.data.dtype != np.uint16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, widened(a), widened(b), *rest)

    InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot = cast_and_round, create_dot


@functools.lru_cache
def mend_rows() -> None:
    """The interpreter multiplies by NumPy's BLAS, and what some of those make of a row depends on where in a tile it
    lies (OpenBLAS 0.3.31 for processors that it takes for Haswell; on a GPU it doesn't). Row by row it can't."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    multiply = InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if not (np.issubdtype(a.data.dtype, np.floating) and np.issubdtype(b.data.dtype, np.floating)):
            return multiply(self, a, b, d, *rest)
        rows, columns = (each.data.astype(d.data.dtype, copy=False) for each in (a, b))
        product = np.matmul(rows[..., :, None, :], columns[..., None, :, :])[..., 0, :]
        return TensorHandle(product + d.data, d.dtype.scalar)

    InterpreterBuilder.create_dot = create_dot


@functools.lru_cache
def mend_speed() -> None:
    """The interpreter spends most of its time on what it has worked out before; with this it takes half as long, and
    its results are the same. Seen with Triton 3.7."""
    from triton.runtime import interpreter

    _patch_once(interpreter)
    _find_types_by_name(interpreter)
    _keep_shapes()
    # Computes each sum and product of integers once more, in 64 bits, for an assertion that is made with `debug` only.
    if not interpreter.interpreter_builder.options.debug:
        interpreter.interpreter_semantic.binary_op_sanitize_overflow_impl = lambda lhs, rhs, binary_op: None


def _patch_once(interpreter: Any) -> None:
    """It puts its own functions into triton.language when a kernel starts, which is right, and looks through all of
    triton.language again for every function that a kernel calls. What is in place already is left alone here."""
    import inspect

    import triton.language as tl

    patch = interpreter._patch_lang

    @functools.cache
    def languages(fn: Any) -> list[Any]:
        return [value for value in fn.__globals__.values() if inspect.ismodule(value) and value in (tl, tl.core)]

    def patch_once(fn: Any) -> Any:
        seen = languages(fn)
        if not seen or any(tl.core.is_builtin(language.load) for language in seen):
            return patch(fn)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = patch_once


def _find_types_by_name(interpreter: Any) -> None:
    """It makes a table of all of NumPy's types for each look into it."""
    make, known = interpreter._get_np_dtype, {}

    def numpy_type(of: Any) -> Any:
        found = known.get(of.name)
        if found is None:
            found = known[of.name] = make(of)
        return found

    interpreter._get_np_dtype = numpy_type


def _keep_shapes() -> None:
    """Each tensor has a type of its own, and both check and wrap their shape anew. A type and the shapes that go with
    it are made once here; nothing writes to them."""
    import triton.language as tl

    whole, scalar, known = tl.block_type.__init__, tl.tensor(None, tl.int32), {}

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(each.value if isinstance(each, tl.constexpr) else each for each in shape))
        found = known.get(key)
        if found is None:
            whole(self, element_ty, shape)
            found = known[key] = dict(vars(self))
            like = tl.tensor.__new__(tl.tensor)
            of_tensors(like, None, self)
            found["of_tensors"] = like.shape, like.numel
        vars(self).update(found, element_ty=element_ty)

    of_tensors = tl.tensor.__init__

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.of_tensors if type.is_block() else (scalar.shape, scalar.numel)

    tl.block_type.__init__, tl.tensor.__init__ = block_type, tensor
