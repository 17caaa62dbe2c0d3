"""What `specmesh generate` asks for and prints."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from services.cli.field_flags import given_fields
from services.cli.flags import spelled_out
from services.cli.generate import CHATS, COMPLETIONS, Printed, prompts_of, requests
from services.cli.main import parser
from services.cli.server_used import OptionsError


@pytest.mark.parametrize(
    ("name", "text", "prompts"),
    [
        ("a.txt", "One\n\n  Two \r\nThree", ["One", "  Two ", "Three"]),
        ("a.jsonl", '{"prompt": "One\\nTwo"}\n\n{"src": "Three", "tgt": "Four"}\n', ["One\nTwo", "Three"]),
        ("a.json", '\ufeff{"src": "{}"}', ["{}"]),
        ("-", '{"not": "json here"}\n', ['{"not": "json here"}']),
    ],
)
def test_a_prompt_a_line_is_read(
    name: str, text: str, prompts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    (tmp_path / name).write_bytes(text.encode())
    assert list(prompts_of(name if name == "-" else str(tmp_path / name))) == prompts


@pytest.mark.parametrize("line", ["{", '["One"]', '{"text": "One"}', '{"src": ["One"]}'])
def test_a_line_that_is_no_prompt_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"src": "One"}\n' + line)
    with pytest.raises(OptionsError, match=r"a\.jsonl, line 2: no"):
        list(prompts_of(str(tmp_path / "a.jsonl")))


def test_a_prompt_is_a_completion_or_a_message() -> None:
    fields = {"model": "m", "temperature": 0.5}
    (plain,), (chat,) = (list(requests(["Hi"], fields, chat)) for chat in (False, True))
    assert (plain.url, json.loads(plain.body)) == (COMPLETIONS, {**fields, "prompt": "Hi"})
    assert (chat.url, json.loads(chat.body)) == (CHATS, {**fields, "messages": [{"role": "user", "content": "Hi"}]})


@pytest.mark.parametrize(
    ("as_json", "lines"),
    [
        (False, ["A", "", "C"]),
        (True, [{"src": "a", "output": "A"}, {"src": "b", "error": "hot"}, {"src": "c", "output": "C"}]),
    ],
)
def test_texts_are_printed_in_the_order_of_the_prompts(
    as_json: bool, lines: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    printed = Printed(["a", "b", "c"], as_json)
    printed.put(2, {"error": "hot"})
    assert capsys.readouterr().out == "" and printed.count == 0
    printed.put(1, {"output": "A"})
    assert printed.count == 2
    printed.put(3, {"output": "C"})
    out = capsys.readouterr().out.splitlines()
    assert (list(map(json.loads, out)) if as_json else out) == lines


def fields_of(words: str) -> dict[str, Any]:
    return given_fields(parser().parse_args(spelled_out(["generate", "Hi", *shlex.split(words)])))


def test_fields_that_were_typed_are_sent() -> None:
    assert fields_of("--max-num-seqs 4") == {}
    assert fields_of("--temperature 0 --top_p=0.5 --top-k -1 --ignore-eos --seed 7") == {
        "seed": 7, "temperature": 0.0, "top_p": 0.5, "top_k": -1, "ignore_eos": True,
    }  # fmt: skip


@pytest.mark.parametrize("words", ["--temperature 3", "--top-p 0", "--top-k 1.5", "--min-p nan", "--max-tokens 0"])
def test_a_value_out_of_its_range_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fields_of(words)
    assert f"argument {words.split()[0]}" in capsys.readouterr().err
