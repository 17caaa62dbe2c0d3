"""One linear as a program of its own (models/projection.py). For the few rows of a step torch takes several times as
long as the product does, and so would threads: it runs on the caller's."""

from __future__ import annotations

import torch

from kernels.cpu_program import ROWS, Program
from kernels.linear.cpu import STORE, linear, quantize_rows
from kernels.linear.packing import PackedMemory, pack
from models.cpu.builder import activation_dtype
from models.cpu.memory import Buffer
from models.executor import Options
from models.spec import Linear
from models.weights import Weights

MAX_ROWS = 64


class CpuProjection:
    def __init__(self, one: Linear, weights: Weights, options: Options) -> None:
        kind, use = options.dtype, options.instructions
        dtype = activation_dtype(kind, use)
        stored = weights.linear(one)
        dense = stored.dense(torch.bfloat16 if kind == "bfloat16" else torch.float32)
        self._weight, self._bias = pack(dense, kind, memory=PackedMemory(area=0)), stored.bias(torch.float32)
        self._outputs = one.outputs
        self._in = self._read = Buffer.of(MAX_ROWS, one.inputs, dtype)
        self._out = Buffer.of(MAX_ROWS, one.outputs, torch.float32)
        ops = []
        if kind == "int8":
            self._read = Buffer.of(MAX_ROWS, one.inputs, torch.uint8)
            ops.append(quantize_rows(self._in.rows, dtype, one.inputs, self._read.rows))
        ops.append(linear(self._weight, self._read.rows, self._out.rows, torch.float32, STORE, use=use))
        self._program = Program(ops, threads=1)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        made = torch.empty(len(rows), self._outputs)
        for some, into in zip(rows.split(MAX_ROWS), made.split(MAX_ROWS), strict=True):
            self._in.view(len(some)).copy_(some)
            self._program.step[ROWS] = len(some)
            self._program.run()
            into.copy_(self._out.view(len(some)))
        return made if self._bias is None else made.add_(self._bias)
