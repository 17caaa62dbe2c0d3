"""For all tests. Threads of torch that wait must not spin: beside other work on few cores that makes a step
tens of times slower. The target's process gets the same settings (services/runtime/process.py); OpenMP reads them
once, when torch is imported, which is why they stand here. Triton's interpreter is chosen in the same way.
"""

from __future__ import annotations

import os

from kernels import interpreter

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("KMP_BLOCKTIME", "0")

interpreter.use_without_gpu()
