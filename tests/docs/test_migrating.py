"""docs/use/migrating.md and the fields of docs/use/http.md against the code: what is typed, taken or refused is so.

Settings that docs/operate/tuning.md, security.md and others name exist, too.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from fences import ROOT

from services.api.settings import ROWS, Settings, load_settings
from services.cli.explain import SERVERS
from services.cli.flags import read_settings, spelled_out
from services.cli.main import parser
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import RequestLimits, parse_chat, parse_completion

PAGE = (ROOT / "docs" / "use" / "migrating.md").read_text()
HTTP = (ROOT / "docs" / "use" / "http.md").read_text()
CODE = re.compile(r"`([^`]+)`")
# What a client would send that means it. Fields that aren't here are refused, whatever they hold.
WISHES: dict[str, Any] = {
    "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 1, "ignore_eos": True, "stop_token_ids": [1],
    "bad_words": ["a"], "bad_words_token_ids": [1, [2, 3]], "allowed_token_ids": [1], "priority": 1, "cache_salt": "a",
    "return_token_ids": True, "temperature": 2, "top_p": 0.5, "presence_penalty": 0.1, "frequency_penalty": 0.1,
    "logit_bias": {"1": 1}, "logprobs": 1, "seed": 1, "stop": ["a"], "n": 2, "max_tokens": 5,
    "prediction": {"type": "content", "content": "a"}, "return_speculate_metrics": True, "user": "a",
    "metadata": {"enable_thinking": "label"}, "safety_identifier": "a",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto", "parallel_tool_calls": False, "chat_template_kwargs": {"a": 1},
    "include_reasoning": False, "functions": [{"name": "f"}], "function_call": {"name": "f"},
    "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}, "guided_json": {},
    "guided_regex": "a", "guided_choice": ["a"], "guided_grammar": 'start: "a"', "guided_json_object": True,
    "reasoning_effort": "low", "suffix": "a", "store": True, "prompt_logprobs": 1,
}  # fmt: skip

# Fields of other servers that the page doesn't name.
REFUSED = (
    "chat_template", "enable_thinking", "disable_chat_template", "continue_final_message", "mm_processor_kwargs",
    "truncate_prompt_tokens", "logits_processors", "kv_transfer_params", "repeat_last_n", "typical_p", "mirostat",
    "dry_multiplier", "xtc_probability", "samplers", "cache_prompt", "id_slot", "grammar", "json_schema",
    "timings_per_token", "return_progress", "reasoning_max_tokens", "temp_scaled_logprobs", "structural_tag",
    "top_p_normalized_logprobs",
)  # fmt: skip
# Fields that the table made from the code has.
TAKEN = (
    "top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "bad_words_token_ids",
    "allowed_token_ids", "priority", "cache_salt", "return_token_ids", "temperature", "top_p", "presence_penalty",
    "frequency_penalty", "logit_bias", "logprobs", "seed", "max_tokens", "prompt_logprobs",
    "return_speculate_metrics",
)  # fmt: skip
# What the page changes in a command, beside the program: by the server, in the order of the page.
CHANGED: list[set[str]] = [set(), {"3"}, {"4096"}, {"--verify-strategy", "topp"}, set(), set()]


def typed(words: list[str]) -> Settings:
    return read_settings(parser().parse_args(spelled_out(["up", "--config", "/dev/null", *words])))


def rows(name: str) -> list[list[str]]:
    """Of the table of http.md behind the comment of that name, without its head."""
    (table,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- end -->", HTTP, re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.strip().splitlines()[2:]]


def commands() -> list[tuple[list[str], list[str]]]:
    """Theirs and ours, line by line."""
    ((theirs, ours),) = re.findall(r"```text\n(.*?)```.*?```console\n(.*?)```", PAGE, re.DOTALL)
    pairs = zip(theirs.splitlines(), ours.splitlines(), strict=True)
    return [(shlex.split(one), shlex.split(other.removeprefix("$ "))) for one, other in pairs]


@pytest.mark.parametrize("place", range(len(SERVERS)))
def test_a_command_of_another_server_is_what_the_page_tells_to_type(place: int) -> None:
    theirs, ours = commands()[place]
    assert ours[0] == "specmesh" and ours[1] in ("up", "serve")
    assert typed(ours[2:]).notes == ()
    # The rest of the command is as it was.
    assert {*ours[2:]} - {*theirs} == CHANGED[place]
    assert len(commands()) == len(CHANGED) == len(SERVERS)


def test_the_yaml_of_the_page_is_a_settings_file(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "config.yaml"
    file.write_text(text)
    settings = load_settings({}, {}, file)
    assert (settings.max_context, settings.max_sequences) == (4096, 16)
    assert (settings.method, settings.num_speculative_tokens) == ("suffix", 8)


def outcome(field: str) -> set[str]:
    """Of both routes together: taken, or refused with its name."""
    found = set()
    for parse, base in (
        (parse_chat, {"model": "m", "messages": [{"role": "user", "content": "a"}]}),
        # Another name of it is refused beside it.
        (parse_completion, {"model": "m", **({} if field == "text" else {"prompt": "a"})}),
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


@pytest.mark.parametrize("field", TAKEN)
def test_a_field_of_the_made_table_is_taken(field: str) -> None:
    assert f"| `{field}`" in HTTP
    assert outcome(field) == {"taken"}


@pytest.mark.parametrize("field", REFUSED)
def test_a_field_that_nobody_names_is_refused(field: str) -> None:
    assert outcome(field) == {"refused"}


@pytest.mark.parametrize(
    ("field", "here"), [(field, here) for fields, here in rows("fields") for field in CODE.findall(fields)]
)
def test_a_field_is_taken_or_refused_as_the_page_says(field: str, here: str) -> None:
    # The other route refuses what is of one.
    of_one = here.startswith(("taken in chats", "taken in completions"))
    taken = {"taken", "refused"} if of_one else {re.split(r"\W", here)[0]}
    assert outcome(field) == taken


def test_a_flag_nobody_knows_stops_the_start() -> None:
    with pytest.raises(ValueError, match="--max-modal-len: no such setting"):
        load_settings({"max_modal_len": "10"}, {}, None)


@pytest.mark.parametrize("name", ["operate/tuning.md", "use/methods.md", "operate/security.md", "use/not-promised.md"])
def test_settings_these_pages_name_exist(name: str) -> None:
    page = (ROOT / "docs" / name).read_text()
    tables = re.findall(r"^\| setting .*\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = re.findall(r"^\| (`[a-z_`, ]+`) \|", "".join(tables), re.MULTILINE)
    named = {word for cell in cells for word in CODE.findall(cell)}
    assert named <= {*ROWS}, named - {*ROWS}
    assert len(named) > 20 or name != "operate/tuning.md"
