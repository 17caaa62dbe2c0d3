"""What the engine's environment says: --speculative-config has no place for it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Options(NamedTuple):
    """`address` of the proposer; `keys_dir` for one that isn't ipc; `namespace` that all requests draft from and are
    learned in, ""; the name of the model; `deadline`: the longest that a step waits, in seconds; `debug` compares every
    row with the text it is taken for."""

    address: str
    keys_dir: str
    namespace: str
    deadline: float
    debug: bool

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Options:
        """Raises ValueError with the name of what is wrong."""
        text = environment.get("DRAFTS_DEADLINE_MS", "") or "20"
        try:
            deadline = float(text)
        except ValueError:
            deadline = 0.0
        if not 1 <= deadline <= 1000:
            raise ValueError(f"DRAFTS_DEADLINE_MS: {text} isn't from 1 to 1000")
        return cls(
            environment.get("DRAFTS_FROM", "") or f"ipc://{_run_dir(environment)}/proposer.sock",
            environment.get("SPECMESH_KEYS_DIR", ""),
            environment.get("DRAFTS_NAMESPACE", ""),
            deadline / 1000,
            environment.get("DRAFTS_DEBUG", "") not in ("", "0"),
        )


def _run_dir(environment: Mapping[str, str]) -> str:
    """Where a proposer of this user has its socket."""
    if folder := environment.get("SPECMESH_RUN_DIR"):
        return folder
    runtime = environment.get("XDG_RUNTIME_DIR")
    return f"{runtime}/specmesh" if runtime else f"/tmp/specmesh-{os.getuid()}"


def vocabulary_of(tokenizer: str, revision: str) -> str:
    """What proposers know the vocabulary by: the same for all models with this tokenizer, under vLLM and specmesh."""
    file = Path(tokenizer, "tokenizer.json")
    if not file.is_file():
        found = _downloaded(tokenizer, revision)
        if found is None:
            return f"vllm:{tokenizer}"
        file = found
    return hashlib.sha256(file.read_bytes()).hexdigest()[:32]


def _downloaded(name: str, revision: str) -> Path | None:
    """vLLM has downloaded it before it makes a drafter."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(name, "tokenizer.json", revision=revision)
    return Path(found) if isinstance(found, str) else None
