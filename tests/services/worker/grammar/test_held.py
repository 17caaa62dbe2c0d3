"""A worker holds the grammars of its sequences from their arrival to their end: none is compiled between steps."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from any_model import END, SIZE, TOKENIZER, AnyModel
from driving import request
from mesh_around import MeshAround, all_of, mesh_around, until

from services.api.grammars import started
from services.streamer.agents.grammars import choice, regex
from services.worker.grammar import compiled
from services.worker.grammar.compiled import Grammars
from services.worker.running.torch_runner import TorchRunner


@pytest.fixture
def compiled_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads in which grammars were compiled."""
    threads: list[str] = []

    def noted(vocabulary: Any, grammar: str) -> Any:
        threads.append(threading.current_thread().name.split("_")[0])
        return started(vocabulary, grammar)

    monkeypatch.setattr(compiled, "started", noted)
    monkeypatch.setattr(compiled, "MOST_IDLE", 2)
    return threads


def runner(folder: Path) -> TorchRunner:
    TOKENIZER.save(str(folder / "tokenizer.json"))
    return TorchRunner(AnyModel(), grammars=Grammars(folder / "tokenizer.json", SIZE, (END,)))


def grammars_of(mesh: MeshAround) -> Grammars:
    assert mesh.worker._grammars is not None
    return mesh.worker._grammars


async def test_more_grammars_than_are_kept_are_compiled_once_each(tmp_path: Path, compiled_in: list[str]) -> None:
    async with mesh_around(tmp_path, runner(tmp_path), method="naive", pull_pages=False, max_sequences=2) as mesh:
        texts = ["a" * length for length in range(1, 13)]
        answers = await all_of(mesh, [request([5, 6], name=each, grammar=choice([each])) for each in texts])
        assert [TOKENIZER.decode(each.ids) for each in answers] == texts
        assert compiled_in == ["compile-grammar"] * len(texts)
        grammars = grammars_of(mesh)
        await until(lambda: not grammars._held)
        assert len(grammars) == compiled.MOST_IDLE


async def test_a_client_that_leaves_lets_go_of_its_grammar(tmp_path: Path, compiled_in: list[str]) -> None:
    async with mesh_around(tmp_path, runner(tmp_path), method="naive", pull_pages=False) as mesh:
        endless = request([5, 6], grammar=regex("[a-z]{200,}"), max_tokens=240)
        async with mesh.ref.stream(endless, timeout=30.0, window=64) as stream:
            await anext(stream)
            assert list(grammars_of(mesh)._held) == [endless.sampling.grammar]
        await until(lambda: not grammars_of(mesh)._held)
        assert compiled_in == ["compile-grammar"]


async def test_one_that_is_refused_holds_none(tmp_path: Path, compiled_in: list[str]) -> None:
    async with mesh_around(tmp_path, runner(tmp_path), method="naive", pull_pages=False) as mesh:
        outside = request([5, SIZE + 1], grammar=choice(["a"]))
        for wrong, reason in ((request(grammar=regex("((")), "grammar"), (outside, "invalid")):
            assert (await mesh.generate(wrong)).end.reason == reason
        await until(lambda: not grammars_of(mesh)._held)
