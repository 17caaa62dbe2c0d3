"""Flags of other servers: what is taken, and whether what a refusal tells to write is taken."""

from __future__ import annotations

import argparse
import functools
import re
from pathlib import Path
from typing import Any

import pytest

from services.api.foreign_flags import FLAGS, FOREIGN, SHORT, Foreign, key_of, meant
from services.api.settings import ROWS, Settings, SettingsError, load_settings
from services.api.speculative_config import FLAGS as SPECULATION
from services.cli.flags import read_settings, spelled_out
from services.cli.main import main, parser

# For flags whose setting takes no number.
VALUES = {"prefix_cache": "true", "gpu_memory_utilization": "0.5", "model": "./m",
          "served_model_name": "m", "cache_dir": "/c", "host": "::1",
          "api_keys": "k", "log_level": "WARNING", "draft_model": "./d", "kv_cache_mb": "2G",
          "speculative_config": '{"method": "naive"}', "dtype": "float", "executor": "cuda",
          "max_step_tokens": "2k", "cors_origins": '["http://a.example"]',
          "phase": "prefill", "otlp_traces_endpoint": "http://collector:4318",
          "api_keys_file": str(Path(__file__).with_name("keys.txt"))}  # fmt: skip
# The numbers that are written for N, S and JSON in what a refusal tells to write.
WRITTEN = {"SHARE": "0.5", "N": "64", "S": "5", "JSON": "[[0]]", "NAME": "info", "FOLDER": "./m",
           "K": "1", "M": "2", "FIRST": "10.0.0.1", "FILE": "./m.gguf"}  # fmt: skip
# What some settings need beside them.
MANY = ("--tp=64", "--master-addr=a", "--keys-dir=keys")
WITH = {"nnodes": MANY, "node_rank": (*MANY, "--nnodes=64"), "ssl_keyfile": ("--ssl-certfile=c",)}

# Made once: it takes longer than what is parsed by it.
one_parser = functools.cache(parser)


def typed(*words: str) -> Settings:
    return read_settings(one_parser().parse_args(spelled_out(["up", "--config", "/dev/null", *words])))


def refused(*words: str) -> str:
    with pytest.raises(SettingsError) as caught:
        typed(*words)
    (problem,) = caught.value.problems
    return problem


def told_as(name: str) -> str:
    """As notes and refusals name it."""
    return "--" + key_of(SHORT.get(name, name)).replace("_", "-")


def words_of(flag: Foreign, name: str, value: str) -> list[str]:
    if name.startswith("--"):
        return [f"{name}={value}"]
    if flag.switch:
        return [name] if value == "true" else [f"{SHORT[name]}={value}"]
    return [name, value]


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})


def test_there_are_many_and_each_has_an_answer() -> None:
    assert len(FOREIGN) > 200
    for flag in FLAGS:
        assert flag.row in (*ROWS, "")
        assert flag.row or flag.nothing or flag.why or flag.idle, flag.names
        assert not flag.why or flag.why.startswith(("write ", "leave it out", "not served: ")), flag.names
        # Else it would be refused without a reason.
        assert flag.why or flag.row or flag.idle or {*flag.nothing} == {"true", "false"}, flag.names
        assert not flag.idle or (flag.note.startswith("without effect: ") and not flag.why), flag.names
    # Else the later one would replace the other.
    long = [key_of(name) for flag in FLAGS for name in flag.names if name.startswith("--")]
    assert len(long) == len({*long})
    assert not {key_of(name) for name in SPECULATION} & {*FOREIGN}


@pytest.mark.parametrize("flag", [each for each in FLAGS if each.row], ids=lambda flag: flag.names[0])
def test_what_means_the_same_is_taken(flag: Foreign) -> None:
    value = next(iter(flag.values), "") or VALUES.get(flag.row, "16")
    words = [flag.names[0]] if flag.switch else [flag.names[0], value]
    settings = typed(*words, *WITH.get(flag.row, ()))
    default = load_settings()
    ours = getattr(settings, flag.row)
    origin = settings.origin(flag.row)
    assert origin == f"flag {told_as(flag.names[0])}"
    assert flag.values or flag.switch or ours != getattr(default, flag.row)


@pytest.mark.parametrize("flag", [each for each in FLAGS if each.nothing], ids=lambda flag: flag.names[0])
def test_what_asks_for_nothing_is_taken_and_changes_nothing(flag: Foreign) -> None:
    for name in flag.names:
        for value in flag.nothing:
            assert dict(typed(*words_of(flag, name, value))) == dict(load_settings())


@pytest.mark.parametrize("flag", [each for each in FLAGS if each.idle], ids=lambda flag: flag.names[0])
def test_what_has_no_effect_is_taken_and_told(flag: Foreign) -> None:
    for name in flag.names:
        settings = typed(*words_of(flag, name, "off" if flag.alone else "17"))
        assert dict(settings) == dict(load_settings())
        assert settings.notes == (f"flag {told_as(name)}: {flag.note}",)
        for value in flag.nothing:
            assert typed(*words_of(flag, name, value)).notes == ()


@pytest.mark.parametrize("flag", [each for each in FLAGS if each.why], ids=lambda flag: flag.names[0])
def test_what_is_refused_says_what_to_write_and_that_is_taken(flag: Foreign) -> None:
    wrong = "true" if flag.switch and flag.nothing != ("true",) else "false" if flag.switch else "something"
    for name in flag.names:
        told = refused(*words_of(flag, name, wrong))
        assert told == f"flag {told_as(name)}: {flag.why}"
        for ours, value in re.findall(r"(--[a-z-]+)(?: ([A-Z]+|[a-z0-9]+))?", flag.why):
            row = ROWS[key_of(ours)]
            given = [] if row.kind == "bool" else [WRITTEN.get(value, value)]
            assert getattr(typed(ours, *given, *WITH.get(row.name, ())), row.name) is not None


@pytest.mark.parametrize(
    ("words", "row", "value"),
    [
        (["--max-model-len", "8k"], "max_context", 8000),
        (["--max-model-len", "8K"], "max_context", 8192),
        (["--max-model-len", "25.6k"], "max_context", 25600),
        (["--max-model-len=-1"], "max_context", 0),
        (["--max-model-len", "auto"], "max_context", 0),
        (["--kv-cache-memory-bytes", str(3 << 30)], "kv_cache_mb", 3072),
        (["--no-enable-prefix-caching"], "prefix_cache", False),
        (["--disable-radix-cache"], "prefix_cache", False),
        (["--quantization", "WINT8"], "quantization", "wint8"),
        (["--quantization", "wint4"], "quantization", "wint4"),
        (["--quant_type", "weight_only_int4"], "quantization", "wint4"),
        (["--speculative-algorithm", "EAGLE3"], "method", "eagle3"),
        (["--speculative-algorithm", "NEXTN"], "method", "mtp"),
        (["--speculative-algorithm", "STANDALONE"], "method", "draft_model"),
        (["--speculative-use-rejection-sampling"], "verify_strategy", "rejection"),
        (["--speculative-draft-model-quantization", "w8a8_int8"], "draft_dtype", "int8"),
        (["--splitwise-role", "prefill"], "phase", "prefill"),
        (["--splitwise-role", "mixed"], "phase", "all"),
        (["--disaggregation-mode", "null"], "phase", "all"),
        (["--disaggregation-mode", "decode"], "phase", "decode"),
        (["--role", "Prefill"], "phase", "prefill"),
        (["--role", "Hybrid"], "phase", "all"),
        (["--kv-transfer-config", '{"kv_connector": "X", "kv_role": "kv_consumer"}'], "phase", "decode"),
        (["--kv-transfer-config", '{"kv_role": "kv_both"}'], "phase", "all"),
        (["-c", "0"], "max_context", 0),
        (["-np", "-1"], "max_sequences", 0),
        (["-t", "-1"], "threads", 0),
        (["-t", "3"], "threads", 3),
        (["-ngl", "0"], "executor", "compiled"),
        (["-ngl", "99"], "executor", "auto"),
        (["-dev", "none"], "executor", "compiled"),
        (["--no-cache-prompt"], "prefix_cache", False),
        (["--tool-call-parser", "hermes"], "tool_call_parser", "hermes"),
        (["--tool-call-parser", "llama3"], "tool_call_parser", "llama3_json"),
        (["--reasoning-parser", "deepseek-r1"], "reasoning_parser", "deepseek_r1"),
        (["--reasoning-format", "deepseek"], "reasoning_parser", "auto"),
        (["--chat-template", "./chat.jinja"], "chat_template", "chat.jinja"),
        (["-v"], "log_level", "debug"),
        (["-lv", "2"], "log_level", "warning"),
        (["--log-jsonl"], "log_format", "json"),
        (["--spec-type", "none"], "method", "naive"),
        (["--spec-type", "ngram-map-k4v"], "method", "ngram"),
        (["--spec-type", "ngram-mod"], "method", "suffix"),
        (["--spec-type", "draft-eagle3,ngram-mod"], "method", "auto"),
        (["--spec-draft-sampling", "probabilistic"], "verify_strategy", "rejection"),
        # PaddleNLP's, with a dash, too; llama-server's of this name is -b.
        (["--batch-size", "8"], "max_sequences", 8),
    ],
)
def test_values_are_read_as_their_servers_read_them(words: list[str], row: str, value: Any) -> None:
    assert getattr(typed(*words), row) == value


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_one_phase_alone_is_told_to_know_no_other_mesh(role: str) -> None:
    (note,) = typed("--splitwise-role", role).notes
    assert note.endswith("--prefill-workers 1 --decode-workers 1")
    assert typed("--splitwise-role", "mixed").notes == ()


def test_workers_beside_flags_of_fastdeploy_are_asked_back() -> None:
    """There they are processes for HTTP."""
    assert refused("--workers", "2", "--scheduler-ttl", "9000").startswith(
        "flag --workers: write --streamers N for N processes of the HTTP server, as with --scheduler-ttl beside it"
    )
    assert typed("--workers", "2", "--metrics-port", "9000").workers == 2
    assert typed("--workers", "2", "--max-num-seqs", "8").workers == 2


def test_fp8_of_paddlenlp_is_what_the_folder_says() -> None:
    settings = typed("--quant_type", "a8w8_fp8")
    assert settings.quantization == "none" and "is read as its config.json says" in settings.notes[0]
    assert "is read as its config.json says" in typed("--draft_model_quant_type", "a8w8_fp8").notes[0]


@pytest.mark.parametrize("words", [["--inference_model"], ["--append_attn", "1"], ["--mla_use_matrix_absorption=1"]])
def test_a_switch_of_paddlenlp_has_a_value_or_none(words: list[str]) -> None:
    settings = typed(*words, "--dtype", "float32")
    assert settings.dtype == "float32" and len(settings.notes) == 1


def test_every_type_of_ours_is_taken_by_its_name() -> None:
    for name in ROWS["dtype"].choices:
        assert typed("--dtype", name).dtype == name


# What people type for llama-server, and what that is here.
LLAMA_SERVER = (
    "-m ./qwen.gguf -a small -c 8192 -np 4 -ngl 99 -t 8 -tb 8 -b 2048 -ub 512 -fa on -ctk f16 -ctv f16 -s -1 -n -1"
    " -cb --jinja --no-mmap --mlock --metrics --no-slots --host 0.0.0.0 --port 8080 --api-key a,b"
    " --draft-max 16 --draft-min 0 --draft-p-min 0.75 --no-warmup --no-context-shift --cache-reuse 256"
)
OURS = (
    "--model ./qwen.gguf --served-model-name small --max-context 8192 --max-sequences 4 --threads 8"
    " --max-step-tokens 512 --host 0.0.0.0 --port 8080 --api-keys a,b --num-speculative-tokens 16"
)


def test_a_whole_command_of_llama_server_is_ours() -> None:
    settings = typed(*LLAMA_SERVER.split())
    assert dict(settings) == dict(typed(*OURS.split()))
    told = {note.split(":")[0].removeprefix("flag ") for note in settings.notes}
    # No more than what was asked for in vain.
    assert told == {"--gpu-layers", "--threads-batch", "--b", "--flash-attn", "--mlock", "--draft-p-min",
                    "--cache-reuse"}  # fmt: skip


@pytest.mark.parametrize("words", [["-fa"], ["-fa", "on"], ["-fa", "off"], ["-fa", "-1"], ["--flash-attn=on"]])
def test_a_flag_whose_value_may_be_left_out_swallows_no_other_word(words: list[str]) -> None:
    assert typed(*words, "./m.gguf").model == "./m.gguf"
    assert typed(*words, "-c", "64").max_context == 64
    assert typed(*words).notes == ("flag --flash-attn: without effect: an executor has one kernel for attention",)


@pytest.mark.parametrize(
    ("words", "told", "written"),
    [
        (["-a", "one,two"], "flag --alias: write --served-model-name NAME: ", ["--served-model-name", "one"]),
        (["-md", "./d.GGUF"], "flag --model-draft: write --draft-model FOLDER: ", ["--draft-model", "./d"]),
        (["--batch-size", "512"], "flag --batch-size: write --max-sequences N ", ["--max-sequences", "512"]),
        (["--batch-size", "2048"], "flag --batch-size: write --max-sequences N ", ["-b", "2048"]),
        (["--spec-type", "ngram-mod,draft-mtp"], "flag --spec-type: write --method auto, and --draft-model own ",
         ["--method", "auto", "--draft-model", "own"]),
        (["--spec-type", "draft-tree"], "flag --spec-type: 'draft-tree' is not one of ", ["--spec-type", "none"]),
        (["-nocb"], "flag --cont-batching: leave it out: ", ["-cb"]),
        (["-nkvo"], "flag --kv-offload: not served: ", ["-kvo"]),
    ],
)  # fmt: skip
def test_a_value_that_means_something_else_is_refused(words: list[str], told: str, written: list[str]) -> None:
    assert refused(*words).startswith(told)
    assert typed(*written) is not None


@pytest.mark.parametrize("word", ["-cfoo", "-np4", "-nglx", "-x"])
def test_a_short_flag_is_only_what_is_written_in_the_table(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        typed(word)
    assert f"unknown: {word}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--warmup=1"], ["--warmup", "0"], ["-m", "small"]])
def test_the_load_test_gets_its_flags_as_they_were_typed(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr("loadtest.cli.main", seen.append)
    main(["load", *words])
    assert seen == [words]


def test_no_short_flag_of_ours_has_another_meaning() -> None:
    root = one_parser()
    (commands,) = [each.choices for each in root._actions if isinstance(each, argparse._SubParsersAction)]
    ours = {name for each in (root, *commands.values()) for name in each._option_string_actions}
    assert "-h" in ours and not ours & {*SHORT}


def test_a_number_out_of_range_is_refused_by_the_name_that_was_typed() -> None:
    assert refused("--max-num-seqs", "99999").startswith("flag --max-num-seqs: '99999' is not a whole number from 0 to")
    assert "'many' is not a whole number" in refused("--max-model-len", "many")
    assert "is not a whole number" in refused("--max-model-len", "9" * 5000)


def test_two_names_of_one_setting_agree_or_are_refused() -> None:
    assert typed("--max-context", "64", "--max-model-len", "64").max_context == 64
    assert "contradicts 64 of flag --max-context" in refused("--max-context", "64", "--max-model-len", "65")


def test_an_environment_name_of_theirs_is_told_as_ours() -> None:
    with pytest.raises(SettingsError, match="no such setting \\(here it is SPECMESH_MAX_CONTEXT\\)"):
        load_settings({}, {"SPECMESH_MAX_MODEL_LEN": "5"})
    assert load_settings({}, {"SPECMESH_MAX_CONTEXT": "5"}).max_context == 5


def test_null_asks_for_nothing_where_no_setting_is_meant() -> None:
    assert meant("lora_modules", None).row == ""
    with pytest.raises(ValueError, match="not served"):
        meant("lora_modules", "qwen3")


def test_a_note_is_for_what_was_asked_in_vain() -> None:
    assert typed("--trust-remote-code").notes == (
        "flag --trust-remote-code: without effect: code of a model's folder is never run",
    )
    assert typed("--no-trust-remote-code").notes == ()
    assert typed("--speculate_method", "ngram", "--draft_model_name_or_path", "./m").notes == (
        "flag --draft_model_name_or_path: without effect: ngram uses no model",
    )
