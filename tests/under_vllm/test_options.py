"""What the engine's environment says."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from services.worker.running.load_torch_model import vocabulary_of as vocabulary_of_a_worker
from specmesh.vllm.options import Options, vocabulary_of


def test_without_any_it_is_this_users_proposer() -> None:
    options = Options.of({})
    assert options == (f"ipc:///tmp/specmesh-{os.getuid()}/proposer.sock", "", "", 0.02, False)
    assert Options.of({"XDG_RUNTIME_DIR": "/run/me"}).address == "ipc:///run/me/specmesh/proposer.sock"
    assert Options.of({"SPECMESH_RUN_DIR": "/sockets"}).address == "ipc:///sockets/proposer.sock"


def test_each_may_be_another() -> None:
    options = Options.of(
        {
            "DRAFTS_FROM": "tcp://proposer:7000", "SPECMESH_KEYS_DIR": "/keys", "DRAFTS_NAMESPACE": "support",
            "DRAFTS_DEADLINE_MS": "5", "DRAFTS_DEBUG": "1",
        }
    )  # fmt: skip
    assert options == ("tcp://proposer:7000", "/keys", "support", 0.005, True)


@pytest.mark.parametrize("text", ["0", "soon", "1e9", "nan"])
def test_a_deadline_that_is_none_stops_the_start(text: str) -> None:
    with pytest.raises(ValueError, match="DRAFTS_DEADLINE_MS"):
        Options.of({"DRAFTS_DEADLINE_MS": text})


def test_a_vocabulary_has_the_name_that_a_worker_gives_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    assert vocabulary_of(str(tmp_path), "main") == hashlib.sha256(b"{}").hexdigest()[:32]
    assert vocabulary_of(str(tmp_path), "main") == vocabulary_of_a_worker(tmp_path)
    assert vocabulary_of("nobody/has-this", "main") == "vllm:nobody/has-this"
