"""Settings files: TOML and YAML, and whether what a message tells to do helps."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.api.settings import SettingsError, load_settings
from services.api.settings_file import LARGEST, FileError, read_file

VLLM = """\
model: ./some-model
served-model-name: small
host: "0.0.0.0"
port: 8123
max-model-len: 8k
max-num-seqs: 16
enable-prefix-caching: false
tensor-parallel-size: 1
speculative-config:
  method: ngram
  num_speculative_tokens: 5
  prompt_lookup_max: 4
  model: ./some-model
"""


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def fix(path: Path) -> str:
    with pytest.raises(FileError) as caught:
        read_file(path)
    return str(caught.value).partition("\n  fix: ")[2]


@pytest.mark.parametrize("name", ["vllm.yaml", "vllm.yml", "VLLM.YAML"])
def test_a_file_of_vllm_is_read_as_it_is(tmp_path: Path, name: str) -> None:
    settings = load_settings({}, {}, write(tmp_path, name, VLLM))
    assert (settings.model, settings.served_model_name, settings.host) == ("./some-model", "small", "0.0.0.0")
    assert (settings.port, settings.max_context, settings.max_sequences) == (8123, 8000, 16)
    assert settings.prefix_cache is False
    assert (settings.method, settings.num_speculative_tokens, settings.max_ngram_size) == ("ngram", 5, 4)
    assert settings.origin("max_context") == f"file {tmp_path / name}, key max_model_len"
    assert settings.notes == (
        f"file {tmp_path / name}, key speculative_config, model: without effect: ngram uses no model",
    )


def test_other_servers_keys_are_refused_in_a_file_as_on_the_command_line(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "mem-fraction-static: 0.9\nspeculative-algorithm: eagle\n")
    with pytest.raises(SettingsError) as caught:
        load_settings({}, {}, file)
    assert [each.partition(": write ")[0] for each in caught.value.problems] == [
        f"file {file}, key mem_fraction_static"
    ]
    file.write_text("speculative-algorithm: eagle\nspeculative_draft_model: ./head\n")
    settings = load_settings({}, {}, file)
    assert (settings.method, settings.draft_model) == ("eagle", "./head")


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    for name in ("a.yaml", "a.toml"):
        assert read_file(write(tmp_path, name, "# nothing yet\n")) == {}


def test_yaml_under_the_name_of_toml_is_read_once_it_is_renamed(tmp_path: Path) -> None:
    file = write(tmp_path, "my config.toml", VLLM)
    told = fix(file)
    command, new = re.fullmatch(r"it looks like YAML: (mv .*), and --config (.*)", told).groups()  # type: ignore[union-attr]
    subprocess.run(shlex.split(command), check=True)
    assert load_settings({}, {}, new).port == 8123


def test_toml_under_the_name_of_yaml_is_read_once_it_is_renamed(tmp_path: Path) -> None:
    told = fix(write(tmp_path, "a.yaml", 'port = 8123\nmodel = "x: [y"\n[mock_profile]\nseed = 1\n'))
    command, new = re.fullmatch(r"it looks like TOML: (mv .*), and --config (.*)", told).groups()  # type: ignore[union-attr]
    subprocess.run(shlex.split(command), check=True)
    assert load_settings({}, {}, new).port == 8123


@pytest.mark.parametrize(
    ("name", "wrong", "line"), [("a.toml", "port = = 3", "port = 3"), ("a.yaml", "a: [", "port: 3")]
)
def test_a_line_that_is_wrong_is_told_with_one_that_is_right(tmp_path: Path, name: str, wrong: str, line: str) -> None:
    file = write(tmp_path, name, wrong)
    assert "correct that line" in fix(file)
    file.write_text(line)
    assert load_settings({}, {}, file).port == 3


def test_a_missing_file_is_told_with_what_makes_it(tmp_path: Path) -> None:
    file = tmp_path / "no where.toml"
    command = fix(file).removeprefix("make it: ").partition(";")[0]
    subprocess.run(shlex.split(command), check=True)
    assert load_settings({}, {}, file) == load_settings()


def test_a_folder_is_told_with_a_file_in_it(tmp_path: Path) -> None:
    told = fix(tmp_path)
    write(tmp_path, "config.toml", "port = 3\n")
    assert load_settings({}, {}, told.partition("--config ")[2]).port == 3


def test_a_file_without_the_right_to_read_is_told_with_the_command_that_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "a.toml", "port = 3\n")
    file.chmod(0)
    opened = Path.open

    def as_for_others(path: Path, *more: Any) -> Any:
        # Root may read everything, so the kernel's answer is ours here.
        if not path.stat().st_mode & 0o400:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *more)

    monkeypatch.setattr(Path, "open", as_for_others)
    subprocess.run(shlex.split(fix(file)), check=True)
    assert load_settings({}, {}, file).port == 3


def test_without_pyyaml_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "pip install pyyaml, or write the settings as TOML" in fix(write(tmp_path, "a.yaml", "port: 3\n"))
    assert load_settings({}, {}, write(tmp_path, "a.toml", "port = 3\n")).port == 3


@pytest.mark.parametrize(
    "text",
    ["[1, 2]", "5", "1: 2", "!!python/object/apply:os.system [ls]", "a: &a [1]\nb: *a", "[" * 2000, "a: \x00",
     "a: 1\n- b"],
)
def test_what_holds_no_names_with_values_or_more_than_values_is_refused(tmp_path: Path, text: str) -> None:
    assert fix(write(tmp_path, "a.yaml", text))


def test_bytes_without_end_are_not_read(tmp_path: Path) -> None:
    assert "--config" in fix(write(tmp_path, "a.yaml", "#" * (LARGEST + 1)))
    assert "--config" in fix(Path("/dev/zero"))
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    assert "--config" in fix(tmp_path / "b.toml")


@pytest.mark.parametrize("name", ["a.yaml", "a.toml"])
@pytest.mark.parametrize("bracket", ["[", "{a: ", "{a = "])
def test_deep_values_are_refused_at_once(tmp_path: Path, name: str, bracket: str) -> None:
    before = "method" + (": " if name.endswith("yaml") else " = ")
    file = write(tmp_path, name, before + bracket * 20_000 + "\n")
    with pytest.raises(FileError, match=re.escape(str(file))):
        read_file(file)


def test_values_as_deep_as_settings_are_read(tmp_path: Path) -> None:
    text = "speculative-config: " + "[" * 31 + "]" * 31
    assert "speculative-config" in read_file(write(tmp_path, "a.yaml", text))
