"""Programmatic dependent launch, from sm_90 on: the programs of a kernel are started as soon as those of the one before
it end, and wait in their first line until all that it wrote can be read. A step of a small model is more than three
hundred kernels, and this hides a part of what lies between two of them (docs/operate/gpu.md).

Each kernel that is started so has to wait, also for what a kernel further back wrote or still read: that one had ended
before the one in between went on. `launch` starts the kernels so that have the line.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait


@triton.jit
def wait_for_kernel_before():
    if tl.target_info.cuda_capability_geq(9, 0):
        gdc_wait()
