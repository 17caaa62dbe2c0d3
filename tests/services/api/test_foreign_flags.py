"""Flags of other servers: what is taken, and whether what a refusal tells to write is taken."""

from __future__ import annotations

import re
from typing import Any

import pytest

from services.api.foreign_flags import FLAGS, FOREIGN, Foreign, key_of, meant
from services.api.settings import ROWS, Settings, SettingsError, load_settings
from services.api.speculative_config import FLAGS as SPECULATION
from services.cli.flags import read_settings, spelled_out
from services.cli.main import parser

# For flags whose setting takes no number.
VALUES = {"prefix_cache": "true", "gpu_memory_utilization": "0.5", "model": "./m",
          "served_model_name": "m", "cache_dir": "/c", "host": "::1",
          "api_keys": "k", "log_level": "WARNING", "draft_model": "./d", "kv_cache_mb": "2G",
          "speculative_config": '{"method": "naive"}', "dtype": "float", "executor": "cuda",
          "max_step_tokens": "2k", "cors_origins": '["http://a.example"]',
          "phase": "prefill"}  # fmt: skip
# The numbers that are written for N, S and JSON in what a refusal tells to write.
WRITTEN = {"SHARE": "0.5", "N": "64", "S": "5", "JSON": "[[0]]", "NAME": "info", "FOLDER": "./m",
           "K": "1", "FIRST": "10.0.0.1"}  # fmt: skip
# What some settings need beside them.
WITH = {"nnodes": ("--tp=64", "--master-addr=a"), "node_rank": ("--tp=64", "--nnodes=64", "--master-addr=a")}


def typed(*words: str) -> Settings:
    return read_settings(parser().parse_args(spelled_out(["up", "--config", "/dev/null", *words])))


def refused(*words: str) -> str:
    with pytest.raises(SettingsError) as caught:
        typed(*words)
    (problem,) = caught.value.problems
    return problem


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})


def test_there_are_many_and_each_has_an_answer() -> None:
    assert len(FOREIGN) > 80
    for flag in FLAGS:
        assert flag.row in (*ROWS, "")
        assert flag.row or flag.nothing or flag.why, flag.names
        assert not flag.why or flag.why.startswith(("write ", "leave it out", "not served: ")), flag.names
        # Else it would be refused without a reason.
        assert flag.why or flag.row or {*flag.nothing} == {"true", "false"}, flag.names
    assert not {key_of(name) for name in SPECULATION} & {*FOREIGN}


@pytest.mark.parametrize("flag", [each for each in FLAGS if each.row], ids=lambda flag: flag.names[0])
def test_what_means_the_same_is_taken(flag: Foreign) -> None:
    value = next(iter(flag.values), "") or VALUES.get(flag.row, "16")
    words = [flag.names[0]] if flag.switch else [flag.names[0], value]
    settings = typed(*words, *WITH.get(flag.row, ()))
    default = load_settings()
    ours = getattr(settings, flag.row)
    origin = settings.origin(flag.row)
    assert origin == f"flag --{key_of(flag.names[0]).replace('_', '-')}"
    assert flag.values or flag.switch or ours != getattr(default, flag.row)


@pytest.mark.parametrize("flag", [each for each in FLAGS if each.nothing], ids=lambda flag: flag.names[0])
def test_what_asks_for_nothing_is_taken_and_changes_nothing(flag: Foreign) -> None:
    for name in flag.names:
        for value in flag.nothing:
            words = [f"{name}={value}"] if name.startswith("--") else [name, value]
            assert dict(typed(*words)) == dict(load_settings())


@pytest.mark.parametrize("flag", [each for each in FLAGS if each.why], ids=lambda flag: flag.names[0])
def test_what_is_refused_says_what_to_write_and_that_is_taken(flag: Foreign) -> None:
    wrong = "true" if flag.switch and flag.nothing != ("true",) else "false" if flag.switch else "something"
    for name in flag.names:
        words = [f"{name}={wrong}"] if name.startswith("--") else [name, wrong]
        told = refused(*words)
        assert told == f"flag --{key_of(name).replace('_', '-')}: {flag.why}"
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
        (["--speculative-ngram-match-type", "PROB"], "ngram_prefers", "frequent"),
        (["--splitwise-role", "prefill"], "phase", "prefill"),
        (["--splitwise-role", "mixed"], "phase", "all"),
        (["--disaggregation-mode", "null"], "phase", "all"),
        (["--disaggregation-mode", "decode"], "phase", "decode"),
        (["--role", "Prefill"], "phase", "prefill"),
        (["--role", "Hybrid"], "phase", "all"),
        (["--kv-transfer-config", '{"kv_connector": "X", "kv_role": "kv_consumer"}'], "phase", "decode"),
        (["--kv-transfer-config", '{"kv_role": "kv_both"}'], "phase", "all"),
    ],
)
def test_values_are_read_as_their_servers_read_them(words: list[str], row: str, value: Any) -> None:
    assert getattr(typed(*words), row) == value


def test_every_type_of_ours_is_taken_by_its_name() -> None:
    for name in ROWS["dtype"].choices:
        assert typed("--dtype", name).dtype == name


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
    assert meant("reasoning_parser", None).row == ""
    with pytest.raises(ValueError, match="not served"):
        meant("reasoning_parser", "qwen3")


def test_a_note_is_for_what_was_asked_in_vain() -> None:
    assert typed("--trust-remote-code").notes == (
        "flag --trust-remote-code: without effect: code of a model's folder is never run",
    )
    assert typed("--no-trust-remote-code").notes == ()
    assert typed("--speculate_method", "ngram", "--draft_model_name_or_path", "./m").notes == (
        "flag --draft_model_name_or_path: without effect: ngram uses no model",
    )
