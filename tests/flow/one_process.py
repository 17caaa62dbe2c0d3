"""What a tiny model says in this process, without a mesh: the truth for meshes whose worker is several processes, or
computes in another way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

from engine_room import EngineRoom


def texts(model: Path, prompts: list[list[int]], sampling: list[dict[str, Any]], executor: str) -> list[str]:
    from services.worker.running.load_torch_model import Wanted, load_torch_model
    from services.worker.running.torch_runner import TorchRunner

    wanted = Wanted(dtype="float32", executor=executor, threads=1, page_tokens=16, kv_cache_mb=4)
    with EngineRoom(TorchRunner(load_torch_model(model, wanted)), prefix_cache=False) as room:
        sequence_ids = [room.send(prompt, **how) for prompt, how in zip(prompts, sampling, strict=True)]
        room.run(sequence_ids)
        assert not room.failures
        return [words(model, room.tokens[sequence_id]) for sequence_id in sequence_ids]


def words(model: Path, ids: list[int]) -> str:
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    by_id = {token: word for word, token in vocabulary.items()}
    return "".join(f" {by_id[token]}" for token in ids)
