"""generation_config.json of a model's folder: what is taken from it, and what is ignored with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.api.sampling import OF_MODEL
from services.api.sampling_defaults import FILE, LARGEST, SamplingDefaults, sampling_of


def written(folder: Path, values: Any) -> Path:
    (folder / FILE).write_text(values if isinstance(values, str) else json.dumps(values))
    return folder


def test_values_of_the_models_file_are_the_defaults(tmp_path: Path) -> None:
    values = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05}
    found = sampling_of(written(tmp_path, {**values, "eos_token_id": [1], "do_sample": True}), "auto")
    assert found.defaults == SamplingDefaults(**values)
    assert found.ignored == ()


def test_the_setting_vllm_leaves_the_file_alone(tmp_path: Path) -> None:
    assert sampling_of(written(tmp_path, {"temperature": 0.6}), "vllm").defaults == SamplingDefaults()
    assert sampling_of(written(tmp_path, "{"), "vllm").ignored == ()


def test_what_is_not_given_is_the_apis(tmp_path: Path) -> None:
    found = sampling_of(written(tmp_path, {"top_p": 0.9, "temperature": None, "top_k": -1}), "auto")
    assert found.defaults.changed() == {"top_p": 0.9}
    assert (found.defaults.temperature, found.defaults.top_k, found.ignored) == (1.0, 0, ())
    assert sampling_of(tmp_path / "nowhere", "auto").ignored == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.5), ("temperature", "hot"), ("temperature", float("nan")), ("temperature", -1),
        ("top_p", 0), ("top_p", 1.5), ("top_p", [0.9]), ("top_k", 20.5), ("top_k", True), ("top_k", 2**31),
        ("top_k", -2), ("min_p", -0.1), ("repetition_penalty", 0), ("repetition_penalty", 10**400),
    ],
)  # fmt: skip
def test_a_value_that_no_request_could_have_is_ignored_and_named(tmp_path: Path, name: str, value: Any) -> None:
    other = "min_p" if name != "min_p" else "top_p"
    found = sampling_of(written(tmp_path, {name: value, other: 0.5}), "auto")
    assert found.defaults.changed() == {other: 0.5}
    (said,) = found.ignored
    assert f"{name} " in said and OF_MODEL[name].range in said and len(said) < 400 + len(str(tmp_path))


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000, '{"top_p": 0.9, "x": "' + "y" * LARGEST + '"}'])
def test_a_damaged_file_suggests_nothing_and_is_named(tmp_path: Path, text: str) -> None:
    found = sampling_of(written(tmp_path, text), "auto")
    assert found.defaults == SamplingDefaults()
    assert str(tmp_path / FILE) in found.ignored[0]
