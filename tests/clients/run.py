"""make test-clients: installs the clients in an environment of their own, starts a mesh as a user of tools would, and
runs the tests of this folder there. Further words go to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent / "first_hour")]

from client_packages import NoClients, clients  # noqa: E402

from bench.running_mesh import running_mesh  # noqa: E402


def main(words: list[str]) -> int:
    try:
        environment = clients()
    except (NoClients, OSError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    # Of this project's tests and their settings nothing is read there.
    apart = ["-c", os.devnull, f"--rootdir={HERE}", f"--confcutdir={HERE}", "-p", "no:cacheprovider", "-W", "ignore"]
    with running_mesh(tool_call_parser="hermes") as mesh:
        found = {"SPECMESH_CLIENTS_URL": mesh.url, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        pytest = [environment.folder / "bin" / "python", "-m", "pytest", *apart, HERE, *words]
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(pytest, env={**kept, **found}, cwd=HERE).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
