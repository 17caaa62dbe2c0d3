"""Variables of other servers: none is read, and each that is set is told with what to write, which is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.api.foreign_environment import GPUS, VARIABLES, Variable, here, instead, told
from services.api.settings import ROWS, Settings
from services.cli.flags import read_settings, spelled_out
from services.cli.main import parser

VALUES = {"SPECULATE_METHOD": "mtp", "SPECULATE_MODEL_PATH": "./d", "SPECULATE_MODEL_QUANT_TYPE": "weight_only_int8",
          "POD_IPS": "10.0.0.1,10.0.0.2", "POD_0_IP": "10.0.0.1", "MODEL_DIR": "./m"}  # fmt: skip
# What a setting needs beside it.
WITH = {"MP_NNODE": ("--tp=64", "--master-addr=a", "--keys-dir=keys")}
OURS = [each for each in VARIABLES.values() if each.flag and each.flag != "--ips"]


def typed(*words: str) -> Settings:
    return read_settings(parser().parse_args(spelled_out(["up", "--config", "/dev/null", *words])))


def default(_: str) -> str:
    return "default"


@pytest.mark.parametrize("variable", VARIABLES.values(), ids=VARIABLES)
def test_each_is_one_of_our_settings_or_has_no_effect(variable: Variable) -> None:
    assert bool(variable.flag) != bool(variable.note)
    assert not variable.note or variable.note.startswith("without effect: ")
    assert not variable.flag or variable.flag == "--ips" or variable.row in ROWS
    assert here(variable).startswith(("not read: write --", "without effect: "))


@pytest.mark.parametrize("variable", OURS, ids=lambda each: each.name)
def test_what_is_told_to_write_is_taken_and_then_nothing_is_told(variable: Variable) -> None:
    value = VALUES.get(variable.name, "16")
    assert instead(variable, value) == f"write {variable.flag} {value}"
    settings = typed(variable.flag, value, *WITH.get(variable.name, ()))
    assert settings.origin(variable.row) != "default"
    both = {variable.name: value, "BLOCK_BS": "5"}
    assert [f"environment {variable.name}: " in line for line in told(both, default)] == [True, False]
    (other,) = told(both, settings.origin)
    assert other.startswith("environment BLOCK_BS: ")


def test_a_name_that_others_use_counts_beside_one_that_they_do_not(tmp_path: Path) -> None:
    assert list(told({"BATCH_SIZE": "8"}, default, tmp_path)) == []
    first, _ = told({"BATCH_SIZE": "8", "BLOCK_BS": "5"}, default, tmp_path)
    assert first == "environment BATCH_SIZE: not read: write --max-sequences 8"


@pytest.mark.parametrize("value", ["", "tcp://10.0.0.1:8080"])
def test_an_empty_one_and_that_of_a_service_of_kubernetes_are_none(value: str, tmp_path: Path) -> None:
    assert list(told({"SERVICE_HTTP_PORT": value}, default, tmp_path)) == []


def test_gpus_are_told_where_there_is_none(tmp_path: Path) -> None:
    assert list(told({GPUS: "0,1"}, default, tmp_path)) == [f"environment {GPUS}: without effect: there is no GPU here"]
    for nothing in ("", "-1"):
        assert list(told({GPUS: nothing}, default, tmp_path)) == []
    (tmp_path / "nvidia0").touch()
    assert list(told({GPUS: "0,1"}, default, tmp_path)) == []
