"""Prompts that the model writes itself: from its chat template, the same for a seed, each once, some held out."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from tiny_folder import write_tiny_model

from models.errors import ModelError
from services.cli.main import main
from services.training import answers
from services.training.answers import ModelAnswer
from services.training.job import Job, check
from services.training.loop import TrainingPlan
from services.training.prompts import HELD_OUT_OF, LEAST_OWN_TOKENS, OWN_PROMPTS, Asking, Opening, from_files
from services.training.train import train
from services.worker.running.load_torch_model import Wanted

WANTED = Wanted(dtype="float32", executor="compiled", threads=1, page_tokens=16, kv_cache_mb=8)
TEMPLATE = "w20 {{ messages[0]['content'] | trim }} w21 w22"


def write_model(folder: Path, template: str = TEMPLATE, special: tuple[int, ...] = (21,)) -> Path:
    """A tiny model that is asked through this template; some of its words are special tokens."""
    write_tiny_model(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    flags = {"special": True, "single_word": True, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer["added_tokens"] = [{"id": number, "content": f"w{number}", **flags} for number in special]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny")


def job_of(model: Path, folder: Path, own_prompts: int, *, data: tuple[Path, ...] = (), seed: int = 0) -> Job:
    return Job(
        "medusa", str(model), data, folder / "head", folder / "cache", vocabulary=100, max_tokens=8,
        own_prompts=own_prompts, plan=TrainingPlan(warm_up=2, seed=seed), wanted=WANTED,
    )  # fmt: skip


def trained_on(folder: Path) -> dict[int, list[int]]:
    """By number, the prompts that were answered."""
    texts = answers.read(folder / "head" / "work" / "answers.jsonl")
    return {text.number: text.ids[: text.prompt_tokens] for text in texts}


# The opening ----------------------------------------------------------------------------------------------------------


def test_the_template_is_cut_where_the_message_begins(model: Path, tmp_path: Path) -> None:
    assert Asking(model).opening() == Opening([20], [21], "w21")
    # A word that isn't special ends no message, and a template may end with the message.
    plain = write_model(tmp_path / "plain", special=())
    assert Asking(plain).opening() == Opening([20], [], "w21")
    assert Asking(write_model(tmp_path / "bare", "w1 w2 {{ messages[0]['content'] }}")).opening().follows == ""


@pytest.mark.parametrize(
    ("template", "why"),
    [("w20 w21", "leaves out the user's message"), ("{{ messages[0]['content'] }} w21", "has nothing before")],
)
def test_a_template_that_gives_no_opening_is_refused(template: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=why):
        Asking(write_model(tmp_path / "model", template)).opening()


def test_a_model_without_a_template_is_refused_by_name_before_it_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_model(tmp_path / "bare", hollow=True)
    command = ["train-drafter", "--own-prompts", "9", "--out", str(tmp_path / "head"), "--model", str(model)]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "bare has no chat template: it can't write prompts" in said and "fix: give --data" in said


def test_a_template_that_refuses_a_message_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "{{ raise_exception('no messages today') }}")
    with pytest.raises(ValueError, match="no messages today"):
        Asking(model).ids("w5")


# Which are kept -------------------------------------------------------------------------------------------------------


def test_a_prompt_is_a_whole_message_of_a_few_tokens_and_no_repeat(model: Path) -> None:
    asking = Asking(model)
    written = [
        ModelAnswer(0, 1, [20, 5, 6, 7, 8], stopped=True),
        ModelAnswer(1, 1, [20, 5, 6, 7, 9], stopped=False),
        ModelAnswer(2, 1, [20, *range(5, 4 + LEAST_OWN_TOKENS)], stopped=True),
        ModelAnswer(3, 1, [20, 5, 6, 7, 8], stopped=True),
        ModelAnswer(4, 1, [20, 30, 31, 32, 33], stopped=True),
        ModelAnswer(5, 1, [20, 5, 6, 21, 8, 9], stopped=True),
        ModelAnswer(6, 1, [20, 9, 8, 7, 6, 5], stopped=True),
    ]
    kept = asking.own(written, asking.opening(), ["w30 w31 w32 w33"])
    assert kept == {0: "w5 w6 w7 w8", 6: "w9 w8 w7 w6 w5"}


def test_a_message_with_the_templates_next_word_in_it_is_left_out(tmp_path: Path) -> None:
    asking = Asking(write_model(tmp_path / "model", special=()))
    written = [ModelAnswer(0, 1, [20, 5, 6, 21, 8], stopped=True), ModelAnswer(1, 1, [20, 5, 6, 7, 8], stopped=True)]
    assert asking.own(written, asking.opening(), []) == {1: "w5 w6 w7 w8"}


# Files of prompts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b'{"prompt": "w1"}\n' + b"[" * 100_000, "a.jsonl: line 2 is neither"),
        ("a.jsonl", b'{"prompt": ' + b'{"a":' * 100_000, "a.jsonl: line 1 is neither"),
        ("a.jsonl", b'{"prompt": "half of \\ud83d"}', "a.jsonl: line 1 is neither"),
        ("a.jsonl", b'{"messages": [{"role": "user"}]}', "a.jsonl: line 1 is neither"),
        ("a.jsonl", b'{"messages": [3]}', "a.jsonl: line 1 is neither"),
        ("a.jsonl", b'{"prompt": ' + b"9" * 5000 + b"}", "a.jsonl: line 1 is neither"),
        ("a.txt", b"w1\n\xff\xfe", "a.txt: byte 3 is not UTF-8"),
        ("a.txt", None, "a.txt: Is a directory"),
        ("b.txt", b"", "a.txt: No such file"),
    ],
)
def test_a_file_that_holds_no_prompts_is_refused_by_name(
    name: str, data: bytes | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    if data is None:
        file.mkdir()
    else:
        file.write_bytes(data)
    asked = tmp_path / said.partition(":")[0]
    with pytest.raises(ValueError, match=re.escape(f"{asked}{said.removeprefix(asked.name)}")):
        from_files([asked])


def test_lines_end_where_files_end_them(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes('{"prompt": "one\u2028line"}\r\n{"prompt": "two"}'.encode())
    text = tmp_path / "a.txt"
    text.write_bytes("one\u2028line\r\nthree\r\n".encode())
    assert from_files([file, text]) == ["one\u2028line", "two", "three"]


# Training with them ---------------------------------------------------------------------------------------------------


def test_a_head_is_trained_on_the_models_own_prompts(model: Path, tmp_path: Path) -> None:
    job = job_of(model, tmp_path, 250)
    found = train(job)
    asking = Asking(model)
    written = answers.read(tmp_path / "head" / "work" / "prompts.jsonl")
    assert sorted(text.number for text in written) == list(range(250))
    own = asking.own(sorted(written, key=lambda text: text.number), asking.opening(), [])
    held = {n for n, text in own.items() if int(hashlib.sha256(text.encode()).hexdigest(), 16) % HELD_OUT_OF == 0}
    assert held and found.prompts == len(held)
    assert trained_on(tmp_path) == {OWN_PROMPTS + number: asking.ids(own[number]) for number in own.keys() - held}
    card = (tmp_path / "head" / "README.md").read_text()
    assert f"{len(own) - len(held)} that the model wrote itself" in card and " from " not in card.split("passes")[0]


def test_prompts_depend_on_the_seed_alone(model: Path, tmp_path: Path) -> None:
    """Not on a break, nor on how many others there are; the seed of another training gives others."""
    train(job_of(model, tmp_path / "few", 60))
    train(job_of(model, tmp_path / "more", 120))
    few, more = trained_on(tmp_path / "few"), trained_on(tmp_path / "more")
    assert len(few) > 3 and few.items() < more.items()
    file = tmp_path / "few" / "head" / "work" / "prompts.jsonl"
    whole = answers.read(file)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:7]) + lines[7][:20])
    train(job_of(model, tmp_path / "few", 60))
    again = answers.read(file)
    assert again[:7] == whole[:7]
    assert sorted(again, key=lambda text: text.number) == sorted(whole, key=lambda text: text.number)
    train(job_of(model, tmp_path / "other", 60, seed=1))
    others = [ids for ids in trained_on(tmp_path / "other").values() if ids in more.values()]
    assert not others


def test_prompts_of_data_and_of_the_model_are_counted_apart(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    data.write_text("".join(f"w{number} w40 w41\n" for number in range(100, 130)))
    train(job_of(model, tmp_path, 60, data=(data,)))
    numbers = trained_on(tmp_path)
    own = sum(number >= OWN_PROMPTS for number in numbers)
    assert 0 < own < len(numbers)
    card = (tmp_path / "head" / "README.md").read_text()
    assert f"{len(numbers) - own} from data.txt, {own} that the model wrote itself" in card


def test_one_kind_of_prompt_must_be_asked_for(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give --data FILE or --own-prompts N"):
        check(job_of(model, tmp_path, 0))
    with pytest.raises(ValueError, match="--own-prompts is -1"):
        check(job_of(model, tmp_path, -1))
