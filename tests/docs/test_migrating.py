"""docs/migrating.md against the code: each key, flag and field it names is taken, refused or missing as it says.

Settings that docs/tuning.md, use/methods.md and security.md name exist, too.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from fences import ROOT

from services.api.foreign_flags import FLAGS as FOREIGN_FLAGS
from services.api.foreign_flags import LLAMA, OLDER_LLAMA
from services.api.foreign_flags import here as in_words
from services.api.methods import METHODS
from services.api.settings import ROWS, Settings, load_settings
from services.api.speculative_config import FLAGS, KEYS, KEYS_TO_COME, METHODS_TO_COME, WITHOUT_EFFECT, translate
from services.cli.flags import read_settings, spelled_out
from services.cli.main import parser
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import RequestLimits, parse_chat, parse_completion

PAGE = (ROOT / "docs" / "migrating.md").read_text()
CODE = re.compile(r"`([^`]+)`")
# What a client would send that means it. Fields that aren't here are refused, whatever they hold.
WISHES: dict[str, Any] = {
    "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 1, "ignore_eos": True, "stop_token_ids": [1],
    "bad_words": ["a"], "bad_words_token_ids": [1, [2, 3]], "allowed_token_ids": [1], "priority": 1, "cache_salt": "a",
    "return_token_ids": True, "temperature": 2, "top_p": 0.5, "presence_penalty": 0.1, "frequency_penalty": 0.1,
    "logit_bias": {"1": 1}, "logprobs": 1, "seed": 1, "stop": ["a"], "n": 2, "max_tokens": 5,
    "prediction": {"type": "content", "content": "a"}, "return_speculate_metrics": True, "user": "a",
    "metadata": {"enable_thinking": "label"}, "safety_identifier": "a", "tools": [{"type": "function"}],
    "response_format": {"type": "json_object"}, "reasoning_effort": "low", "suffix": "a", "store": True,
    "prompt_logprobs": 1,
}  # fmt: skip

# The words of a command that the page changes.
CHANGED = {"vllm serve": set[str](), "llama-server": {"4096"}}


def typed(words: list[str]) -> Settings:
    return read_settings(parser().parse_args(spelled_out(["up", "--config", "/dev/null", *words])))


def rows(name: str) -> list[list[str]]:
    """Of the table behind the comment of that name, without its head."""
    (table,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.strip().splitlines()[2:]]


def made(name: str) -> list[list[str]]:
    """Of the table that deploy/docs.py makes."""
    return rows(f"made: {name}")


def test_every_key_is_told_as_it_is_translated() -> None:
    told = {key: here for keys, _, here in rows("keys") for key in CODE.findall(keys)}
    # PaddleNLP's, which are flags, are below.
    flags = {*FLAGS.values()} - {*KEYS}
    assert {*KEYS_TO_COME} - flags == {key for key, here in told.items() if here.startswith("refused")}
    assert {*WITHOUT_EFFECT} - flags == {key for key, here in told.items() if here.startswith("taken")}
    # Their older names, and the names of settings themselves, are in docs/settings.md.
    begins = ("speculate_", "typical_", "draft_model_")
    ours = {key for key in KEYS if key.startswith(begins) or key == "draft_trees"}
    # It stands for several settings.
    assert "`auto`" in told.pop("mtp_strategy")
    assert {key for key, here in told.items() if not here.startswith(("refused", "taken"))} == {*KEYS} - ours
    for key, here in told.items():
        if not here.startswith(("refused", "taken", "the same")):
            assert KEYS[key] in CODE.findall(here), key


def test_every_flag_for_speculation_is_told_as_it_is_read() -> None:
    told = {flag: here for flags, _, here in rows("speculation flags") for flag in CODE.findall(flags)}
    assert told.keys() == FLAGS.keys()
    for flag, here in told.items():
        key = FLAGS[flag]
        first = "refused" if key in KEYS_TO_COME else "taken" if key in WITHOUT_EFFECT else f"`{KEYS[key]}`"
        assert here.startswith(first), flag


def test_methods_to_come_are_refused_and_the_others_taken() -> None:
    (here,) = [here for keys, _, here in rows("keys") if keys == "`method`"]
    for name in CODE.findall(here):
        translated, problems = translate({"method": name})
        assert bool(problems) == (name in METHODS_TO_COME), name
        assert problems or translated["method"][1] in METHODS


def test_the_page_has_every_flag_with_what_it_is_here() -> None:
    told = {name: here for names, _, here in made("foreign_flags") for name in CODE.findall(names)}
    of_llama = {name: here for names, here in made("llama_flags") for name in CODE.findall(names)}
    assert told | of_llama == {
        name: in_words(flag).replace("|", "\\|") for flag in FOREIGN_FLAGS for name in flag.names
    }
    for flag in FOREIGN_FLAGS:
        assert ({*flag.names} <= {*told}) == (flag.of not in (LLAMA, OLDER_LLAMA)), flag.names
        assert ({*flag.names} <= {*of_llama}) == (LLAMA in flag.of), flag.names


@pytest.mark.parametrize("server", ["vllm serve", "llama-server"])
def test_a_command_of_another_server_is_what_the_page_tells_to_type(server: str) -> None:
    """In a fence, and the same for here in the next one."""
    ((theirs, ours),) = re.findall(rf"```text\n({server} .*?)```.*?```console\n\$ (.*?)```", PAGE, re.DOTALL)
    words = shlex.split(theirs.replace("\\\n", ""))[len(server.split()) :]
    mine = shlex.split(ours.replace("\\\n", ""))
    assert mine[:2] == ["specmesh", "up"]
    assert typed(mine[2:]).notes == ()
    # The rest of the command is as it was.
    assert {*mine[2:]} - {*words} <= CHANGED[server]


def test_the_yaml_of_the_page_is_a_settings_file(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "config.yaml"
    file.write_text(text)
    settings = load_settings({}, {}, file)
    assert (settings.served_model_name, settings.max_context, settings.max_sequences) == ("small", 4096, 16)
    assert (settings.method, settings.num_speculative_tokens) == ("suffix", 8)


def outcome(field: str) -> set[str]:
    """Of both routes together: taken, or refused with its name."""
    found = set()
    for parse, base in (
        (parse_chat, {"model": "m", "messages": [{"role": "user", "content": "a"}]}),
        (parse_completion, {"model": "m", "prompt": "a"}),
    ):
        wish = WISHES.get(field, "a")
        value = True if field == "logprobs" and parse is parse_chat else wish
        try:
            parse({**base, field: value}, RequestLimits())
            found.add("taken")
        except ApiError as error:
            assert error.status == 400 and error.param == field
            found.add("refused")
    return found


@pytest.mark.parametrize(
    ("field", "here"), [(field, here) for fields, here in rows("fields") for field in CODE.findall(fields)]
)
def test_a_field_is_taken_or_refused_as_the_page_says(field: str, here: str) -> None:
    assert outcome(field) == {re.split(r"\W", here)[0]}


def test_a_flag_nobody_knows_stops_the_start() -> None:
    with pytest.raises(ValueError, match="--max-modal-len: no such setting"):
        load_settings({"max_modal_len": "10"}, {}, None)


@pytest.mark.parametrize("name", ["tuning.md", "use/methods.md", "security.md", "not-promised.md"])
def test_settings_these_pages_name_exist(name: str) -> None:
    page = (ROOT / "docs" / name).read_text()
    tables = re.findall(r"^\| setting .*\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = re.findall(r"^\| (`[a-z_`, ]+`) \|", "".join(tables), re.MULTILINE)
    named = {word for cell in cells for word in CODE.findall(cell)}
    assert named <= {*ROWS}, named - {*ROWS}
    assert len(named) > 20 or name != "tuning.md"
