"""The model's own template, in the dialect of the hub, and what the sandbox keeps from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.errors import ModelError
from services.api.chat_templates import TemplateSource, read_template
from services.tokenizer.chat_template import ChatTemplate, TemplateError

USER = [{"role": "user", "content": "hi <b>&</b> 🙂"}]


def render(text: str, turns: list[dict[str, Any]] = USER, max_chars: int = 1000, **special: Any) -> str:
    return ChatTemplate(TemplateSource(text, special), max_chars).render(turns, True)


def test_the_template_of_a_folder_is_rendered_with_its_special_tokens(tiny_folder: Path) -> None:
    source = read_template(tiny_folder)
    assert source is not None
    assert source.special_tokens == {"bos_token": "<|start|>", "eos_token": "<|end|>"}
    template = ChatTemplate(source, 1000)
    assert template.render(USER, False) == "<|start|>user\nhi <b>&</b> 🙂<|end|>\n"
    assert template.render(USER, True).endswith("<|start|>assistant\n")


def test_a_template_file_beats_the_one_in_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}))
    (tmp_path / "chat_template.jinja").write_text("new")
    source = read_template(tmp_path)
    assert source is not None and source.text == "new"


@pytest.mark.parametrize("raw", [b"\xff\xfe\0", b"x" * (1 << 21)])
def test_a_template_file_that_cannot_be_one_is_named(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(raw)
    with pytest.raises(ModelError, match=r"chat_template\.jinja"):
        read_template(tmp_path)


def test_of_several_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    source = read_template(tmp_path)
    assert source is not None and source.text == "d"


def test_a_folder_without_a_template_has_none(tmp_path: Path) -> None:
    assert read_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert read_template(tmp_path) is None


def test_blocks_leave_no_blank_lines_behind() -> None:
    assert render("{% if true %}\n  {% for m in messages %}\nx\n  {% endfor %}\n{% endif %}\n") == "x\n"


def test_tojson_escapes_nothing_for_html() -> None:
    assert render("{{ messages[0]['content'] | tojson }}") == '"hi <b>&</b> 🙂"'
    assert (
        render("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}")
        == '{\n "a": [\n  2\n ],\n "b": 1\n}'
    )


def test_helpers_of_the_dialect_exist() -> None:
    assert render("{{ strftime_now('%Y') }}").startswith("20")
    assert render("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}") == "1"
    assert render("{% generation %}{{ messages[0].role }}{% endgeneration %}") == "user"
    assert render("{{ bos_token }}{{ tools }}{{ no_such_token }}", bos_token="<s>") == "<s>None"


def test_what_the_template_raises_reaches_the_user_word_for_word() -> None:
    with pytest.raises(TemplateError, match=r"^roles must alternate$"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_broken_template_is_found_before_the_first_request() -> None:
    with pytest.raises(TemplateError, match="broken"):
        ChatTemplate(TemplateSource("{% for %}", {}), 10)


@pytest.mark.parametrize(
    "escape",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__code__ }}",
        "{{ ''.format.__self__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ (1).__class__.__bases__[0].__subclasses__() }}",
    ],
)
def test_the_sandbox_lets_nothing_out(escape: str) -> None:
    turns = [dict(turn) for turn in USER]
    try:
        text = render(escape, turns)
    except TemplateError:
        text = ""
    assert "class" not in text and "module" not in text and "root:" not in text
    assert turns == USER


@pytest.mark.parametrize(
    "greedy",
    [
        "{% for i in range(90000) %}xxxxxxxxxx{% endfor %}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% for i in range(10000000) %}x{% endfor %}",
    ],
)
def test_a_template_that_wants_too_much_is_refused(greedy: str) -> None:
    with pytest.raises(TemplateError):
        render(greedy)


def test_a_template_that_trips_over_a_conversation_says_so() -> None:
    with pytest.raises(TemplateError, match="cannot render this conversation: ZeroDivisionError"):
        render("{{ 1 / 0 }}")


def test_content_is_data_never_template() -> None:
    turns = [{"role": "user", "content": "{{ 7 * 6 }}{% for %}"}]
    assert render("{{ messages[0]['content'] }}", turns) == "{{ 7 * 6 }}{% for %}"
