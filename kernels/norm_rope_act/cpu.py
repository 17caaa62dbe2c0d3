"""The per-row operations as compiled loops: one call instead of a dozen small torch operations.

Arrays are flat; `rows` of them are read and written. Inputs that a linear just made come as addresses
(kernels/cpu_numbers.py). A row never reads another row, so its bits don't depend on its batch.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu_numbers import at_address, compiled, exp, get, load, put, store


@compiled
def embed(tokens, table, residual, rows, hidden):
    for row in range(rows):
        start = np.int64(tokens[row]) * hidden
        for i in range(hidden):
            put(residual, row * hidden + i, load(table, start + i))


@compiled
def add_norm(residual, delta_address, weight, epsilon, out, rows, hidden):
    """residual += delta (none at address 0); out = RMSNorm(residual)."""
    delta = at_address(delta_address, rows * hidden, out)
    for row in range(rows):
        start = row * hidden
        if delta_address != 0:
            for i in range(hidden):
                put(residual, start + i, get(residual, start + i) + load(delta, start + i))
        squares = np.float32(0.0)
        for i in range(hidden):
            squares += get(residual, start + i) * get(residual, start + i)
        scale = np.float32(1.0) / np.sqrt(squares / np.float32(hidden) + np.float32(epsilon))
        for i in range(hidden):
            store(out, start + i, get(residual, start + i) * scale * get(weight, i))


@compiled
def silu_gate(gate_up_address, out, rows, width):
    """out = silu(gate) · up, of rows that hold gate and up side by side."""
    gate_up = at_address(gate_up_address, rows * width * 2, out)
    for row in range(rows):
        gate, up = row * 2 * width, (row * 2 + 1) * width
        for i in range(width):
            x = load(gate_up, gate + i)
            silu = x / (np.float32(1.0) + exp(-x))
            store(out, row * width + i, silu * load(gate_up, up + i))
