"""`specmesh explain`: every name of every table has an answer, and the answer is what the start does with it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from services.api import foreign_flags, speculative_config
from services.api.foreign_flags import FLAGS, FOREIGN, SHORT, Foreign, key_of, meant
from services.api.settings import SETTINGS, flag_name
from services.api.speculative_config import ALIASES, COMBINED, KEYS, KEYS_TO_COME, METHODS_TO_COME, WITHOUT_EFFECT
from services.cli.explain import SERVERS, WIDTH, entries, near, server_named
from services.cli.main import main


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["explain", *words])
    return code, capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    """What --json prints of names that are all known."""
    code, out = explained(capsys, "--json", *words)
    assert code == 0
    return list(json.loads(out))


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.names[0])
def test_every_name_of_a_flag_leads_to_its_row(flag: Foreign, capsys: pytest.CaptureFixture[str]) -> None:
    for answer in told(capsys, *flag.names):
        (row,) = [each for each in answer["found"] if each["kind"] == "flag" and answer["name"] in each["names"]]
        assert row["here"] == foreign_flags.here(flag)
        assert row.get("setting", "") == flag.row
        assert {*row["servers"]} == {*flag.of.split(", ")}


@pytest.mark.parametrize("key", speculative_config.known_keys())
def test_every_key_is_told_as_it_is_translated(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    (answer,) = told(capsys, key)
    (row,) = [each for each in answer["found"] if each["kind"].startswith("key")]
    assert row.get("setting", "") == KEYS.get(key, "")
    assert [name for name in ALIASES.get(KEYS.get(key, ""), {}) if f"`{name}`" not in row["here"] and name] == []
    if key in KEYS_TO_COME:
        assert f"refused: not served: {KEYS_TO_COME[key][0]}" in row["here"]
    else:
        assert row["here"].startswith("taken; without effect" if key in WITHOUT_EFFECT else "`")
    assert {*row["servers"]} <= {*SERVERS, "Medusa", "specmesh"}


@pytest.mark.parametrize("flag", speculative_config.FLAGS)
def test_a_flag_for_speculation_is_told_as_its_key(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    key = speculative_config.FLAGS[flag]
    (row,) = [each for each in told(capsys, flag)[0]["found"] if flag in each["names"]]
    assert row["here"] == speculative_config.here(key) and row["servers"][0] in ("LMDeploy", "PaddleNLP")


def test_methods_that_are_refused_are_told_with_what_is_missing() -> None:
    text = speculative_config.here("method")
    assert all(f"`{name}` ({missing})" in text for name, missing in METHODS_TO_COME.items())
    assert {*COMBINED} <= {*speculative_config.known_keys()}


@pytest.mark.parametrize("setting", [row.name for row in SETTINGS])
def test_a_setting_of_ours_is_told_with_its_names(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (setting, flag_name(setting), f"SPECMESH_{setting.upper()}"):
        found = [each for each in told(capsys, name)[0]["found"] if each["kind"] == "setting"]
        assert [each["setting"] for each in found] == [setting], name


def test_what_is_told_to_be_refused_is_refused() -> None:
    for flag in (each for each in FLAGS if not each.row and not each.nothing and not each.idle):
        assert foreign_flags.here(flag).startswith("refused: ")
        with pytest.raises(ValueError, match=re.escape(flag.why)):
            meant(key_of(SHORT.get(flag.names[0], flag.names[0])), "a value")


@pytest.mark.parametrize(
    ("word", "setting"),
    [("SPECULATE_METHOD", "method"), ("LLAMA_ARG_CTX_SIZE", "max_context"), ("VLLM_API_KEY", "api_keys"),
     ("max-num-seqs", "max_sequences"), ("--max_num_seqs=8", "max_sequences"), ("-tp", "tensor_parallel_size"),
     ("-c", "max_context"), ("--no-enable-prefix-caching", "prefix_cache")],
)  # fmt: skip
def test_a_name_is_found_in_other_spellings(word: str, setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert setting in {each.get("setting") for each in told(capsys, word)[0]["found"]}


def test_letters_alone_are_told_apart_by_case(capsys: pytest.CaptureFixture[str]) -> None:
    (small,), (capital,) = (each["found"] for each in told(capsys, "-c", "-C"))
    assert "--ctx-size" in small["names"] and "--cpu-mask" in capital["names"]


def test_a_short_flag_is_no_flag_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = explained(capsys, "-hf", "-j")
    assert code == 0 and out.startswith("-hf, -hfr, --hf-repo  (flag of llama.cpp)\n    refused: write --model FILE")


def test_people_read_the_setting_with_its_range_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = explained(capsys, "--max-num-seqs")
    assert code == 0
    assert out.splitlines()[:3] == [
        "--max-num-seqs  (flag of vLLM and FastDeploy)",
        "    `--max-sequences`",
        "here: --max-sequences, SPECMESH_MAX_SEQUENCES, or max_sequences in a settings file",
    ]
    assert "a whole number from 0 to 1024, default 0" in out


def test_a_flag_and_a_key_of_the_same_meaning_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = explained(capsys, "speculate_method")
    assert out.count("autoregressive") == 1
    assert "--speculate_method  (flag" in out and "speculate_method  (key" in out


@pytest.mark.parametrize("server", SERVERS)
def test_all_names_of_a_server_are_told(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    (answer,) = told(capsys, "--from", server.lower())
    names = {name for each in answer["found"] for name in each["names"]}
    assert {name for flag in FLAGS if server in flag.of for name in flag.names} <= names
    assert len(names) < len({name for each in entries() for name in each.names}) / 2
    code, out = explained(capsys, "--from", server)
    assert code == 0 and all(name in out for name in names)
    assert max(map(len, (line for line in out.splitlines() if line[0] == " "))) <= WIDTH


def test_names_of_other_servers_are_left_out_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    (answer,) = told(capsys, "--from=vllm", "model")
    assert answer["found"] and all("vLLM" in each["servers"] for each in answer["found"])
    assert "of older llama.cpp)" in explained(capsys, "--draft-min")[1]


def test_an_unknown_name_gets_near_ones_and_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = explained(capsys, "--max-modal-len", "--tp")
    assert code == 1
    assert out.startswith("--max-modal-len: no such flag, environment name or key; near: --max-model-len")
    assert "--tp  (flag of SGLang and LMDeploy)" in out
    assert near("zzzzzzzz") == []


def test_an_unknown_server_and_no_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--from", "triton"]) == 2
    assert "known are vLLM, SGLang" in capsys.readouterr().err
    assert main(["explain"]) == 2
    assert server_named("llama-server") == server_named("llamacpp") == "llama.cpp"


def test_every_long_flag_that_the_start_knows_is_known_here() -> None:
    known = {key for each in entries() for key in each.keys}
    assert {key.lower() for key in FOREIGN} <= known
