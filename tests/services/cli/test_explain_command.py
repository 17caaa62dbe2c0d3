"""`specmesh explain 'COMMAND'`. The commands of the pages are in tests/first_hour/test_seeds.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.cli.explain_command import Translation, is_command, translations
from services.cli.main import main, parser

# The parser of our command.
UP = parser().parse_args(["explain"]).parser.commands["up"]


def translated(text: str) -> Translation:
    (found,) = translations(text, UP)
    return found


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("vllm serve m --max-model-len 8k -tp 2", "specmesh up --model m --max-context 8000 --tensor-parallel-size 2"),
        ("python -m vllm.entrypoints.openai.api_server --model m --no-enable-prefix-caching",
         "specmesh up --model m --no-prefix-cache"),
        ("llama-server -m ./m.gguf -np 4 -fa", "specmesh up --model ./m.gguf --max-sequences 4"),
        ("python3 -m sglang.launch_server --model-path m --speculative-algorithm NGRAM",
         "specmesh up --model m --method ngram"),
        ("nohup lmdeploy serve api_server 'a model' > log 2>&1 &", "specmesh up --model 'a model'"),
        ("CUDA_VISIBLE_DEVICES=1 vllm serve m", "CUDA_VISIBLE_DEVICES=1 specmesh up --model m"),
        ("""vllm serve m --speculative-config '{"method": "ngram", "num_speculative_tokens": 5}'""",
         "specmesh up --model m --method ngram --num-speculative-tokens 5"),
    ],
)  # fmt: skip
def test_a_command_is_ours(theirs: str, ours: str) -> None:
    assert translated(theirs).commands == (ours,)


def test_what_is_not_served_is_left_out_and_said() -> None:
    found = translated("vllm serve m --lora-modules a=b --port 1 --dtype half --max-modal-len 5")
    assert found.commands == ("specmesh up --model m --port 1",)
    assert {line.partition(": ")[0] for line in found.refused} == {"--max-modal-len", "5", "--lora-modules", "--dtype"}


def test_a_key_of_the_json_is_left_out_alone() -> None:
    config = '{"method": "eagle3", "model": "h", "draft_tensor_parallel_size": 2}'
    found = translated(f"vllm serve m --speculative-config '{config}'")
    assert found.commands == ("specmesh up --model m --method eagle3 --draft-model h",)
    assert found.refused[0].startswith("--speculative-config, draft_tensor_parallel_size: not served")


def test_a_settings_file_that_is_there_is_read_and_goes_behind_flags(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("max_model_len: 4096\nport: 1\n")
    found = translated(f"vllm serve m --port 2 --config {file}")
    assert found.commands == ("specmesh up --model m --port 2 --max-context 4096",)
    assert translated("vllm serve m --config gone.yaml").commands == ("specmesh up --config gone.yaml --model m",)


def test_each_machine_has_a_command_of_its_own() -> None:
    theirs = "python -m fastdeploy.entrypoints.openai.api_server --model m --ips a,b --tensor-parallel-size 8"
    found = translated(theirs)
    ours = "specmesh up --model m --tensor-parallel-size 8 --nnodes 2 --node-rank {} --master-addr a --keys-dir keys"
    assert found.commands == (ours.format(0), ours.format(1))


def test_what_the_same_name_means_elsewhere_is_said() -> None:
    assert any("write one less" in line for line in translated(
        "python -m sglang.launch_server --model m --speculative-num-draft-tokens 4").told)  # fmt: skip
    assert any("all slots" in line for line in translated("llama-server -m m.gguf -c 4096").told)
    fastdeploy = "python -m fastdeploy.entrypoints.openai.api_server --model m --workers 3"
    found = translated(fastdeploy)
    assert found.commands == ("specmesh up --model m --streamers 3",)
    assert any("topp" in line for line in found.told)
    assert not any("topp" in line for line in translated(f"{fastdeploy} --verify-strategy topp").told)


@pytest.mark.parametrize(
    ("names", "command"),
    [(["vllm serve m"], True), (["vllm", "serve", "m"], True), (["--max-num-seqs"], False), ([], False)],
)
def test_a_command_is_told_from_names(names: list[str], command: bool) -> None:
    assert is_command(names) == command


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "vllm serve m"]) == 0
    assert capsys.readouterr().out == "vLLM's command is here:\n    specmesh up --model m\n"
    assert main(["explain", "vllm", "serve", "m", "--dtype", "half"]) == 1
    assert "left out:\n  - --dtype: write --dtype bfloat16" in capsys.readouterr().out
    assert main(["explain", "make coffee"]) == 1
    assert "no server is started by this" in capsys.readouterr().err
    assert main(["explain", "vllm serve 'm"]) == 2
    assert main(["explain", "--json", "vllm serve m"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["commands"] == ["specmesh up --model m"] and found["server"] == "vLLM"
