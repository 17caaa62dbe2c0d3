"""Clients of other makers, in an environment of their own: their dependencies are none of this project.

Made once, and kept in SPECMESH_TEST_CLIENTS or the user's cache. Knows pip and venv, nothing of the clients.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = (
    "openai>=2.10", "langchain-openai>=1", "litellm>=1.80", "llm>=0.27", "instructor>=1.13",
    "pydantic-ai-slim[openai]>=1", "pytest>=9",
)  # fmt: skip
SCRIPTS = Path(__file__).parent / "scripts"
PATIENCE = 900  # s: downloads, on a machine with other work


class NoClients(Exception):
    """They can't be installed here."""


@dataclass(frozen=True, slots=True)
class Clients:
    folder: Path

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command of the environment. It sees no settings of this project, and no keys of the user."""
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
        # LiteLLM fetches its table of prices when it is imported, unless it is told to use the one it has.
        kept |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"} | environment
        return subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]], env=kept, cwd=self.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip

    def answers(self, script: str, *words: str) -> dict[str, Any]:
        """What a script of scripts/ prints."""
        done = self.run("python", str(SCRIPTS / script), *words)
        assert done.returncode == 0, done.stderr[-4000:]
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found


def clients() -> Clients:
    """Raises NoClients with pip's last line."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("SPECMESH_TEST_CLIENTS") or cache / "specmesh-test-clients").absolute()
    # Written last: an environment without it is made again.
    made, wanted = folder / "made.txt", "\n".join([sys.version, *PACKAGES])
    if made.is_file() and made.read_text() == wanted:
        return Clients(folder)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, timeout=PATIENCE)
    install = [folder / "bin" / "python", "-m", "pip", "install", "--retries=1", "-q", *PACKAGES]
    done = subprocess.run(install, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["pip failed"]
        raise NoClients(f"clients can't be installed: {said[-1]}")
    made.write_text(wanted)
    return Clients(folder)
