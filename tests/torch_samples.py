"""What torch.save writes: state dicts with every type, view and sharing that folders have."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

_NUMBERS = torch.arange(-12, 12)


def _typed(dtype: torch.dtype) -> Callable[[], Any]:
    return lambda: {"w": _NUMBERS.to(dtype).reshape(4, 6), "b": _NUMBERS[:5].to(dtype)}


def _shared() -> dict[str, torch.Tensor]:
    whole = torch.randn(8, 4)
    return {"embed": whole, "head": whole, "row": whole[3], "part": whole[2:6, 1:3]}


def _module() -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Embedding(7, 3))
    return module.state_dict()


def _training() -> Any:
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    module(torch.ones(3)).sum().backward()
    optimizer.step()
    return {
        "state_dict": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "best": 0.5, "notes": None,
    }  # fmt: skip


def _eagle3() -> Any:
    """In the layout of the public heads."""
    return OrderedDict(
        {
            "d2t": torch.arange(64), "t2d": torch.arange(128) % 2 == 0, "fc.weight": torch.randn(16, 48).half(),
            "midlayer.hidden_norm.weight": torch.ones(16).half(), "norm.weight": torch.ones(16).half(),
        }
    )  # fmt: skip


# Name: what is saved, and which of it is written.
SAMPLES: dict[str, Callable[[], Any]] = {
    "float64": _typed(torch.float64),
    "float32": _typed(torch.float32),
    "float16": _typed(torch.float16),
    "bfloat16": _typed(torch.bfloat16),
    "int64": _typed(torch.int64),
    "int32": _typed(torch.int32),
    "int16": _typed(torch.int16),
    "int8": _typed(torch.int8),
    "uint8": _typed(torch.uint8),
    "bool": _typed(torch.bool),
    "uint16": _typed(torch.uint16),
    "uint64": _typed(torch.uint64),
    "float8": lambda: {"a": torch.randn(9).to(torch.float8_e4m3fn), "b": torch.randn(9).to(torch.float8_e5m2)},
    "transposed": lambda: {"w": torch.randn(5, 7, 3).permute(2, 0, 1), "v": torch.randn(5, 7).t()},
    "steps and offsets": lambda: {"w": torch.randn(20, 9)[3::4, 1:8:3], "v": torch.arange(30)[7::5]},
    "expanded": lambda: {"w": torch.randn(1, 3).expand(4, 3), "v": torch.tensor(2.5).expand(3, 2)},
    "shared": _shared,
    "empty and scalar": lambda: {
        "a": torch.empty(0), "b": torch.empty(3, 0, 2), "c": torch.tensor(7), "d": torch.tensor(True),
    },
    "parameters": lambda: {"p": torch.nn.Parameter(torch.randn(3)), "q": torch.nn.Parameter(torch.randn(2, 2), False)},
    "bits of no number": lambda: {"w": torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])},
    "module": _module,
    "ordered": lambda: OrderedDict((f"layers.{i}.weight", torch.full((2, 2), i)) for i in range(300)),
    "training": _training,
    "model": lambda: {"model": {"w": torch.randn(3)}, "step": 7},
    "eight dimensions": lambda: {"w": torch.randn(1, 2, 1, 2, 1, 2, 1, 2).transpose(1, 7)},
    "names": lambda: {"ünï.code": torch.ones(1), 'a"b\\c': torch.ones(2), "x" * 300: torch.ones(3)},
    "eagle3": _eagle3,
}  # fmt: skip


def tensors_of(saved: Any) -> dict[str, torch.Tensor]:
    return saved.get("state_dict") or saved.get("model") or saved


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tuple(tensor.shape), bytes(raw.numpy())
