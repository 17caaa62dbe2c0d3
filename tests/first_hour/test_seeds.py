"""What the pages about speculation of FastDeploy (older and newest), LMDeploy and PaddleNLP tell to type, pasted whole.

Each command is typed with `specmesh up` in place of its program, and given to `specmesh explain`. No flag is unknown,
and none is ignored in silence. Read by the real parser; test_seeds_start.py starts servers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from player import Ended, corrected
from seeds_read import SEEDS, text_of, words_of

from services.api.foreign_environment import told
from services.api.settings import Settings, SettingsError
from services.cli.explain_command import translations
from services.cli.flags import read_settings, spelled_out
from services.cli.main import main, parser
from services.cli.shell_words import statements

CONFIG = {"quantization": "wint4", "max_sequences": 96, "max_context": 32768, "gpu_memory_utilization": 0.8}
GPUS = "CUDA_VISIBLE_DEVICES"
# The parser of our command.
UP = parser().parse_args(["explain"]).parser.commands["up"]
ALL_GPUS = f"{GPUS}=0,1,2,3,4,5,6,7 "


@dataclass(frozen=True)
class Expected:
    """`settings`: what it becomes where it is typed. `notes`: flags and keys that are told to have no effect, or
    another one. `refused`: flags and how what is told to write begins. `variables`: those of the environment that are
    told. `ours`: what `explain` translates it to."""

    ours: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    variables: set[str] = field(default_factory=set)
    # Told by `explain` to be missing here.
    left_out: set[str] = field(default_factory=set)


def ernie(ours: str, notes: set[str] | None = None, config: bool = True, **settings: Any) -> Expected:
    """FastDeploy's commands, most of them with a settings file."""
    of_file = "--max-sequences 96 --max-context 32768 --gpu-memory-utilization 0.8 " if config else ""
    first = "specmesh up --model ./ernie " + ("--quantization wint4 " if config else "")
    return Expected(
        ours=(f"{first}{ours} {of_file}--tensor-parallel-size 4",),
        settings={"model": "./ernie", "tensor_parallel_size": 4} | (CONFIG if config else {}) | settings,
        notes={*(notes or ()), *(("kv_cache_ratio",) if config else ())},
    )


def deepseek(
    first: str,
    last: str = "",
    machines: int = 1,
    address: str = "192.168.0.1",
    refused: dict[str, str] | None = None,
    left_out: set[str] | None = None,
    variables: set[str] | None = None,
    **settings: Any,
) -> Expected:
    """PaddleNLP's commands, on eight GPUs of each machine."""
    ranks = f"--tensor-parallel-size {8 * machines}"
    nodes = [f" --nnodes 2 --node-rank {rank} --master-addr {address} --keys-dir keys" for rank in range(machines)]
    return Expected(
        ours=tuple(f"{ALL_GPUS}specmesh up {first} {ranks}{node if machines > 1 else ''}" for node in nodes),
        refused=refused or {},
        variables={GPUS, *(variables or ())},
        left_out=left_out or set(),
        settings=settings,
    )


def typed_as_predictor(**more: str) -> dict[str, str]:
    flags = {"--" + name.replace("_", "-"): why for name, why in more.items()}
    return {"--gpus": "write --tensor-parallel-size N", **flags}


MTP = "--method mtp --draft-model ./ernie-mtp --num-speculative-tokens 1"
OF_MTP = {"method": "mtp", "draft_model": "./ernie-mtp", "num_speculative_tokens": 1}
SUFFIX = {"suffix_decoding_max_tree_depth", "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob"}
ON_EACH = "write --nnodes M --node-rank K --master-addr FIRST --keys-dir FOLDER --tensor-parallel-size N on each of M"
R1 = "deepseek-ai/DeepSeek-R1"
LENGTH = "--max-context 8192"
EXPORTED = "not served: static graphs; name the folder that the model was exported from"
NOT_EXPORTED = "leave it out: nothing is exported"
SPECULATE = {
    "SPECULATE_METHOD", "SPECULATE_MODEL_PATH", "SPECULATE_MODEL_QUANT_TYPE", "SPECULATE_MAX_DRAFT_TOKEN_NUM",
}  # fmt: skip


def phase(port: int, sequences: int, file: dict[str, str], left_out: set[str]) -> Expected:
    return Expected(
        ours=(
            f"{GPUS}=0,1,2,3 specmesh up --model ./ernie --quantization wint4 --port {port} {MTP} --max-sequences"
            f" {sequences} --max-context 32768 --gpu-memory-utilization 0.85 --tensor-parallel-size 4 --metrics-port"
            f" {port + 1} --prefill-workers 1 --decode-workers 1 --streamers 2",
        ),
        refused={"--workers": "write --streamers N", "enable_prefix_caching": "leave it out", **file},
        variables={"FD_LOG_DIR", GPUS},
        left_out=left_out,
    )


EXPECTED: dict[str, Expected] = {
    "fastdeploy-mtp": ernie(MTP, **OF_MTP),
    "fastdeploy-prefill": phase(8180, 16, {}, set()),
    "fastdeploy-decode": phase(
        8190, 128, {"enable_chunked_prefill": "write --max-step-tokens N"}, {"--enable-chunked-prefill"}
    ),
    "fastdeploy-mtp-and-ngram": ernie(
        "--draft-model ./ernie/mtp --num-model-steps 2 --num-speculative-tokens 5", config=False,
        draft_model="./ernie/mtp", num_model_steps=2, num_speculative_tokens=5,
    ),
    "fastdeploy-ngram": ernie("--method ngram --num-speculative-tokens 1", method="ngram", num_speculative_tokens=1),
    "fastdeploy-older-ngram": ernie(
        "--method mtp --draft-model '${mtp_model_path}' --num-speculative-tokens 1",
        **(OF_MTP | {"draft_model": "${mtp_model_path}"}),
    ),
    "fastdeploy-suffix": ernie(
        "--method mtp --num-speculative-tokens 4 --suffix-decoding-max-cached-requests 10000", SUFFIX,
        method="mtp", num_speculative_tokens=4, suffix_decoding_max_cached_requests=10000,
    ),
    "fastdeploy-naive": ernie(
        "--method naive --num-speculative-tokens 1", config=False, method="naive", num_speculative_tokens=1,
    ),
    "fastdeploy-greedy": ernie(f"{MTP} --verify-strategy greedy", config=False, verify_strategy="greedy", **OF_MTP),
    "fastdeploy-accept-all": ernie(
        "--method mtp --num-speculative-tokens 1 --accept-policy accept_all", config=False, method="mtp",
        num_speculative_tokens=1, accept_policy="accept_all",
    ),
    "fastdeploy-wint4-drafter": ernie(
        "--method mtp --draft-model ./ernie-mtp --draft-dtype int8 --num-speculative-tokens 1", {"quantization"},
        config=False, draft_dtype="int8", **OF_MTP,
    ),
    "lmdeploy-eagle3": Expected(
        ours=("specmesh up --model meta-llama/Llama-3.1-8B-Instruct --port 24545 --method eagle3 --draft-model"
              " yuhuili/EAGLE3-LLaMA3.1-Instruct-8B --num-speculative-tokens 3 --max-sequences 128",),
        settings={"model": "meta-llama/Llama-3.1-8B-Instruct", "port": 24545, "method": "eagle3",
                  "draft_model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3,
                  "max_sequences": 128},
        notes={"--backend"},
    ),
    **dict.fromkeys(("lmdeploy-mtp", "lmdeploy-mtp-guided"), Expected(
        ours=("specmesh up --model deepseek-ai/DeepSeek-V3 --port 24545 --method mtp --num-speculative-tokens 3"
              " --max-sequences 128 --tensor-parallel-size 16",),
        settings={"model": "deepseek-ai/DeepSeek-V3", "port": 24545, "method": "mtp", "num_speculative_tokens": 3,
                  "max_sequences": 128, "tensor_parallel_size": 16},
        notes={"--backend"},
    )),
    "paddlenlp-reference": Expected(
        ours=("specmesh up --model meta-llama/Llama-2-7b-chat --method ngram --num-speculative-tokens 5"
              " --max-ngram-size 2",),
        refused={"--dtype": "write --dtype bfloat16"},
        left_out={"--dtype"},
    ),
    "paddlenlp-mtp-two-machines": deepseek(
        f"--model {R1} --dtype bfloat16 --quantization wint8 --method mtp --draft-model {R1}-MTP --draft-dtype int8"
        f" --num-speculative-tokens 1 {LENGTH}", machines=2, refused=typed_as_predictor(ips=ON_EACH),
    ),
    "paddlenlp-mtp-two-machines-fp8": deepseek(
        f"--model {R1}-FP8 --dtype bfloat16 --method mtp --draft-model {R1}-MTP-FP8 --num-speculative-tokens 1"
        f" {LENGTH}", machines=2, refused=typed_as_predictor(ips=ON_EACH),
    ),
    "paddlenlp-mtp-one-machine": deepseek(
        f"--model {R1} --dtype bfloat16 --quantization wint4 --method mtp --draft-model {R1}-MTP --draft-dtype int8"
        f" --num-speculative-tokens 1 {LENGTH}", refused=typed_as_predictor(),
    ),
    "paddlenlp-export": deepseek(
        f"--model {R1} --dtype bfloat16 --quantization wint8 --method ngram {LENGTH}", machines=2,
        refused=typed_as_predictor(ips=ON_EACH, output_path=NOT_EXPORTED),
    ),
    "paddlenlp-export-fp8": deepseek(
        f"--model {R1}-FP8 --dtype bfloat16 --method ngram {LENGTH}", machines=2,
        refused=typed_as_predictor(ips=ON_EACH, output_path=NOT_EXPORTED),
    ),
    "paddlenlp-static-mtp": deepseek(
        f"--model ./exported --dtype bfloat16 --quantization wint8 --method mtp --draft-model {R1}-MTP --draft-dtype"
        f" int8 --num-speculative-tokens 1 {LENGTH}", machines=2,
        refused=typed_as_predictor(ips=ON_EACH, mode=EXPORTED), left_out={"--mode"},
    ),
    "paddlenlp-static-mtp-fp8": deepseek(
        f"--model ./exported --dtype bfloat16 --method mtp --draft-model {R1}-MTP-FP8 --num-speculative-tokens 1"
        f" {LENGTH}", machines=2, refused=typed_as_predictor(ips=ON_EACH, mode=EXPORTED), left_out={"--mode"},
    ),
    "paddlenlp-mpirun": deepseek(
        f"--model {R1}-FP8 --dtype bfloat16 {LENGTH}",
        refused=typed_as_predictor(weight_block_size="leave it out"),
        variables={"MAX_DEC_LEN", "FLAGS_mla_use_tensorcore", "FLAGS_cascade_attention_max_partition_size"},
    ),
    "paddlenlp-container": deepseek(
        f"--model {R1} --method mtp --draft-model /models-mtp --num-speculative-tokens 1 --max-sequences 128",
        variables={*SPECULATE, "MP_NUM", "BLOCK_BS", "BLOCK_RATIO", "BATCH_SIZE"},
        model=f"{R1}-MTP/a8w8_fp8_wint4",
    ),
    "paddlenlp-container-two-machines": deepseek(
        f"--model {R1} --quantization wint8 --port 9965 --method mtp --draft-model /models-mtp --draft-dtype int8"
        " --num-speculative-tokens 1", machines=2,
        variables={*SPECULATE, "MP_NUM", "MP_NNODE", "POD_IPS", "POD_0_IP", "SERVICE_HTTP_PORT"},
        model=f"{R1}-MTP-2nodes/weight_only_int8",
    ),
    "paddlenlp-mpirun-server": deepseek(
        "--model /models", machines=2, address="10.0.0.1",
        variables={"MP_NUM", "MP_NNODE", "POD_IPS", "POD_0_IP", "MODEL_DIR"},
    ),
    "paddlenlp-server": Expected(
        ours=(f"{GPUS}=0 specmesh up --model /models --port 9965 --max-waiting 128 --max-sequences 48 --max-context"
              " 8192 --metrics-port 8722",),
        variables={GPUS, "HEALTH_HTTP_PORT", "SERVICE_GRPC_PORT", "METRICS_HTTP_PORT", "INTER_PROC_PORT",
                   "SERVICE_HTTP_PORT", "MAX_SEQ_LEN", "MAX_DEC_LEN", "BATCH_SIZE", "BLOCK_BS", "BLOCK_RATIO",
                   "MAX_CACHED_TASK_NUM", "MODEL_DIR", "MP_NUM", "PUSH_MODE_HTTP_WORKERS"},
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def a_user_among_the_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without settings of this machine."""
    monkeypatch.setattr("os.environ", {"SPECMESH_CONFIG": ""})
    monkeypatch.chdir(Path(__file__).parent / "seeds")


def typed(words: list[str]) -> Settings:
    """By the real parser; what it doesn't know fails the test."""
    options, unknown = parser().parse_known_args(spelled_out(["up", *words]))
    assert unknown == []
    return read_settings(options)


def changed(settings: Settings) -> dict[str, Any]:
    default = Settings.for_tests()
    return {name: value for name, value in settings
            if name not in ("speculative_config", "store_dir") and value != getattr(default, name)}  # fmt: skip


def named(told: str) -> str:
    """The flag, the key or the variable that a line is about."""
    before = told.partition(": ")[0]
    return before.rpartition(", key ")[2].rpartition(", ")[2].rpartition(" ")[2]


def test_every_seed_has_a_row(ended: Ended) -> None:
    assert sorted(EXPECTED) == SEEDS and len(SEEDS) > 20
    ended("worked")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pasted_command_is_taken_or_refused_with_what_to_type(seed: str, ended: Ended) -> None:
    expected = EXPECTED[seed]
    words, _ = words_of(seed)
    if not expected.refused:
        settings = typed(words)
        assert changed(settings) == expected.settings
        assert {named(note) for note in settings.notes} == expected.notes
        ended("worked")
        return
    with pytest.raises(SettingsError) as caught:
        typed(words)
    found = {named(problem): problem.partition(": ")[2] for problem in caught.value.problems}
    assert found.keys() == expected.refused.keys()
    assert all(found[name].startswith(what) for name, what in expected.refused.items()), found
    if any(problem.startswith("file ") for problem in caught.value.problems):
        # What is wrong in the file is corrected there.
        del words[words.index("--config") : words.index("--config") + 2]
    again = corrected(words, "\n".join(caught.value.problems))
    assert typed(again) is not None
    ended("said what to do")


@pytest.mark.parametrize("seed", SEEDS)
def test_no_variable_of_the_environment_is_ignored_in_silence(seed: str, tmp_path: Path, ended: Ended) -> None:
    _, environment = words_of(seed)
    lines = list(told(environment, Settings.for_tests().origin, tmp_path))
    assert {named(line) for line in lines} == EXPECTED[seed].variables
    assert all(": not read: write --" in line or ": without effect: " in line for line in lines)
    ended("worked")


@pytest.mark.parametrize("seed", SEEDS)
def test_explain_says_the_whole_command_as_ours(seed: str, ended: Ended) -> None:
    expected = EXPECTED[seed]
    (found,) = translations(text_of(seed), UP)
    assert found.commands == expected.ours
    assert {line.partition(": ")[0] for line in found.refused} == expected.left_out
    for command in found.commands:
        (ours,) = statements(command)
        assert ours.words[:2] == ("specmesh", "up")
        # It is taken, and nothing of it is without effect.
        assert typed(list(ours.words[2:])).notes == ()
    # What is refused where it is typed is said here, too, or translated.
    said = " ".join([*found.told, *found.refused, *found.commands])
    flags = {"--workers": "--streamers", "--ips": "--nnodes", "--gpus": "--tensor-parallel-size"}
    for name in expected.refused:
        flag = "--" + name.lstrip("-").replace("_", "-")
        assert flags.get(flag, flag) in said
    ended("said what to do" if expected.left_out else "worked")


@pytest.mark.parametrize("seed", ["fastdeploy-prefill", "paddlenlp-container", "paddlenlp-mpirun"])
def test_explain_prints_the_command_to_be_copied(
    seed: str, capsys: pytest.CaptureFixture[str], ended: Ended
) -> None:
    assert main(["explain", text_of(seed)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert next(line.strip() for line in out if "specmesh up --" in line) == EXPECTED[seed].ours[0]
    assert "what is different, or has no effect:" in out
    ended("worked")
