"""Checks an image for a GPU on a machine without one, inside a container with compose's mounts and user.

The doctor finds compiler, headers and a cache folder to load from; kernels are compiled for sm_90 into that folder; a
tiny model runs through the GPU's executor in Triton's interpreter. deploy/docker_e2e.sh mounts this file and
tests/tiny_folder.py at /checks and starts it with the image's python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from specmesh import rooms

# The worker's own check would find no driver here.
NEEDS = ("compiler", "triton cache")


def main() -> int:
    if sys.argv[1:] == ["tiny"]:
        return tiny_model_in_the_interpreter()
    assert os.getuid() == 10001, f"user {os.getuid()}"
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    found = doctor()
    for name in NEEDS:
        assert found[name]["level"] == "ok", found[name]
    print(f"   doctor: {found['compiler']['what']}; {found['triton cache']['what']}; gpu: {found['gpu']['what']}")
    on_tmp = doctor(TRITON_CACHE_DIR="/tmp/triton")["triton cache"]
    assert on_tmp["level"] == "bad" and "noexec" in on_tmp["what"], on_tmp
    print(f"   doctor, with the cache on compose's /tmp: {on_tmp['what']}")
    run(rooms.command("kernels.ahead_of_time", "90", "kv_store", "norm_rope_act"))
    kernels = list(cache.rglob("*.cubin"))
    assert kernels, f"nothing was compiled into {cache}"
    print(f"   {len(kernels)} kernels compiled for sm_90 into {cache}")
    print(run((sys.executable, __file__, "tiny"), TRITON_INTERPRET="1"), end="")
    return 0


def run(command: tuple[str, ...], **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, f"{command}: {done.stderr[-3000:]}"
    return done.stdout


def doctor(**environment: str) -> dict[str, Any]:
    """Its findings by name. Exit code 1: there is no driver."""
    command = ("specmesh", "doctor", "--json", "--executor", "triton")
    told = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    return {finding["name"]: finding for finding in json.loads(told.stdout)}


def tiny_model_in_the_interpreter() -> int:
    rooms.put_first()
    sys.path.append("/checks")
    from tiny_folder import write_tiny_model

    from models.batch import Stretch, make_batch
    from models.config import read_network
    from models.executor import Options
    from models.gpu.executor import GpuExecutor
    from models.weights import Weights

    with tempfile.TemporaryDirectory() as folder:
        place = write_tiny_model(Path(folder) / "tiny")
        options = Options("float32", 8, 16, 64, strict=True)
        executor = GpuExecutor(read_network(place), Weights(place), options, device="cpu")
        chunk = executor.forward(make_batch([Stretch([5, 6, 7, 8], 0, [0], 0)], 16)).logits
        single = executor.forward(make_batch([Stretch([8], 3, [0], 0)], 16)).logits
    assert chunk.isfinite().all() and (chunk[3] == single[0]).all()
    print(f"   a tiny model: {executor.path}; a row alone has the bits it has in a chunk")
    return 0


if __name__ == "__main__":
    sys.exit(main())
