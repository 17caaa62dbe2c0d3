"""The list of all kernels that a model's steps and questions can need on a GPU, each with what it is specialised for.

    python -m models.gpu.specialisations FOLDER 90 [dtype]      compiles them: one line of JSON for each

It is made by what the worker runs before it is ready, `GpuExecutor.prepare` and `OnDevice.prepare`, with the launches
noted instead of started. No GPU is needed, and no interpreter may be in use. Of a GPU, the architecture alone matters.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from kernels.ahead_of_time import Compilation, compile_for, signature_of
from kernels.launch import Launched, listing
from kernels.verify.on_device import OnDevice
from models.config import read_network
from models.executor import Options
from models.gpu.executor import GpuExecutor
from models.weights import Weights

_TYPES = {
    torch.float64: "*fp64", torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16",
    torch.float8_e4m3fn: "*fp8e4nv", torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8",
    torch.uint8: "*u8",
}  # fmt: skip


def specialisations(folder: Path, arch: int, dtype: str = "bfloat16", strict: bool = True) -> list[Compilation]:
    """Of the model in a folder, with trees, on a GPU of this architecture."""
    network = read_network(folder)
    options = Options(dtype, pages=1, page_tokens=32, max_context=64, branch_pages=1, strict=strict, states=1)
    with listing(arch) as launched, torch.inference_mode():
        GpuExecutor(network, Weights(folder), options, device="cpu", graphs=False).prepare()
        OnDevice().prepare(torch.zeros(2, network.vocab_size))
    found: dict[str, Compilation] = {}
    for each in launched:
        made = compilation_of(each)
        found.setdefault(repr(made), made)
    return list(found.values())


def compilation_of(launched: Launched) -> Compilation:
    kernel, constants = launched.kernel, launched.constants
    given = dict(zip((name for name in kernel.arg_names if name not in constants), launched.args, strict=True))
    types = {name: _type(value) for name, value in given.items()}
    told = ",".join(f"{name}={value}" for name, value in constants.items())
    return Compilation(
        f"{kernel.__name__}({told})", kernel, signature_of(kernel, types, constants), constants, launched.warps,
        launched.stages, launched.fp_fusion, tuple(name for name, value in given.items() if _between(value)),
    )  # fmt: skip


def _type(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return _TYPES[value.dtype]
    return "i32" if isinstance(value, int) else "fp32"


def _between(value: object) -> bool:
    """Whether a pointer is no multiple of 16, if its memory begins at one, as a GPU's does."""
    return isinstance(value, torch.Tensor) and value.storage_offset() * value.element_size() % 16 != 0


def main(folder: str, arch: str, dtype: str = "bfloat16") -> None:
    began = time.perf_counter()
    listed = specialisations(Path(folder), int(arch), dtype)
    print(json.dumps({"specialisations": len(listed), "seconds_to_list": time.perf_counter() - began}), flush=True)
    for each in listed:
        print(json.dumps(asdict(compile_for(each, int(arch)))), flush=True)
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
