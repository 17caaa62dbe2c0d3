"""What the benchmark reads of a vLLM with our drafts. Real servers are measured, not tested."""

from __future__ import annotations

import logging
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import served
from bench.__main__ import parser as bench_parser
from bench.oracles import vllm_drafter
from loadtest.flags import parser as load_parser
from specmesh.vllm import Drafter


def test_the_time_in_the_engines_thread_is_read_from_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPECMESH_RUN_DIR", str(tmp_path))
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(rank=0, tensor_parallel_size=1),
        model_config=SimpleNamespace(
            tokenizer="words", tokenizer_revision=None, model="words", served_model_name="m", max_model_len=64
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=8),
    )
    made = Drafter(config)
    log = tmp_path / "log"
    with caplog.at_level(logging.INFO, "vllm.specmesh"):
        made._say()
        log.write_text(caplog.text)
        assert vllm_drafter.step_ms(log) == {}
        made.drafting.figures.steps, made.drafting.figures.seconds = 4, 0.01
        made.drafting.figures.waited_seconds = 0.004
        made._say()
    log.write_text(caplog.text)
    assert vllm_drafter.step_ms(log) == {"whole": 2.5, "waited": 1.0}


@pytest.mark.parametrize(("sides", "said"), [("off,magic", "no side magic"), ("off", "no .*/bin/vllm")])
def test_what_it_cannot_run_it_says(tmp_path: Path, sides: str, said: str) -> None:
    if "magic" in sides:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "vllm").touch()
    with pytest.raises(SystemExit, match=said):
        vllm_drafter.measure(Namespace(vllm=tmp_path, sides=sides, model="smollm2-135m-instruct"))


def test_what_the_warm_side_answered_before_are_the_requests_that_all_sides_get() -> None:
    options = bench_parser("vllm_drafter").parse_args(["--vllm=x", "--requests=5", "--waves=3", "--tokens=9", "--cold"])
    options.served = ["label=off;url=http://127.0.0.1:1", "label=warm;url=http://127.0.0.1:2"]
    compared = load_parser().parse_args(served.command("edit", 4, options)[2:])
    taught = load_parser().parse_args(vllm_drafter.lesson("edit", 4, "http://127.0.0.1:2", options)[2:])
    own = {"ab", "url_flag", "model"}
    assert {key: value for key, value in vars(compared).items() if key not in own} == {
        key: value for key, value in vars(taught).items() if key not in own
    }
    assert taught.url_flag == "http://127.0.0.1:2" and taught.requests == 12
