"""The doctor on a GPU's machine: each fault is made, as far as it can be without a GPU, and found with its fix."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.api.settings import Settings
from services.cli.doctor import gpu
from services.cli.doctor.finding import Finding
from services.cli.doctor.run import CHECKS

A_GPU = {"cuda": "13.0", "found": True, "gpus": [["NVIDIA H100", 9, 0]]}


def only(findings: list[Finding], level: str) -> Finding:
    [finding] = findings
    assert finding.level == level and (level == "ok" or finding.fix)
    return finding


@pytest.fixture
def settings() -> Settings:
    return Settings.for_tests(executor="triton")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is there, with a driver for CUDA 13.0."""
    monkeypatch.setattr(gpu, "has_gpu", lambda: True)
    monkeypatch.setattr(gpu, "driver_version", lambda: (13, 0))


def test_where_no_gpu_is_nothing_of_it_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "has_gpu", lambda: False)
    assert only(gpu.gpu(Settings.for_tests(executor="auto")), "ok").what == gpu.NO_GPU
    for other in ({"executor": "compiled"}, {"executor": "triton", "engine": "mock"}):
        assert only(gpu.gpu(Settings.for_tests(**other)), "ok").what == "not asked for"
    assert CHECKS["gpu"] is gpu.gpu


# The driver


def test_a_gpu_that_is_asked_for_and_not_there(
    settings: Settings, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "has_gpu", lambda: False)
    levels = {finding.name: finding.level for finding in gpu.gpu(settings)}
    assert set(levels) == {"gpu", "compiler", "triton cache"} and levels["gpu"] == "bad"
    assert "container toolkit" in only(gpu.driver(), "bad").fix


def test_a_device_without_its_drivers_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that was given the device alone."""
    monkeypatch.setattr(gpu, "has_gpu", lambda: True)
    monkeypatch.setattr(gpu.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(f"{name}: cannot open")))
    finding = only(gpu.driver(), "bad")
    assert "libcuda.so.1" in finding.what and "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in finding.fix


@pytest.mark.parametrize(
    ("facts", "what", "fix"),
    [
        ({"cuda": None}, "build for CPUs", "TORCH_INDEX"),
        ({"cuda": "14.1"}, "built for CUDA 14.1, the driver runs 13.0", "newer driver"),
        ({"found": False}, "torch sees no GPU", "CUDA_VISIBLE_DEVICES"),
        ({"gpus": [["Tesla T4", 7, 5]]}, "Tesla T4: older than sm_80", "--executor compiled"),
    ],
)
def test_a_torch_that_does_not_fit_the_driver_or_the_gpu(
    facts: dict[str, Any], what: str, fix: str, device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "torch_facts", lambda: A_GPU | facts)
    finding = only(gpu.driver(), "bad")
    assert what in finding.what and fix in finding.fix


def test_a_gpu_that_fits_is_named(device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "torch_facts", lambda: A_GPU | {"cuda": "12.8"})
    assert only(gpu.driver(), "ok").what == "NVIDIA H100 (sm_90); CUDA 13.0, torch for 12.8"


def test_torch_is_asked_in_a_process_of_its_own() -> None:
    facts = gpu.torch_facts()
    assert set(facts) == {"cuda", "found", "gpus"} and isinstance(facts["found"], bool)


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.triton() == []
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    finding = only(gpu.triton(), "bad")
    assert "not installed" in finding.what and ".[gpu]" in finding.fix


# The compiler


def test_this_machine_builds_a_module() -> None:
    assert only(gpu.compiler(), "ok").what.endswith("with Python's headers")


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = only(gpu.compiler(), "bad")
    assert "no C compiler" in finding.what and finding.fix.startswith("apt install gcc") and "GPU=1" in finding.fix


def test_a_compiler_that_compiles_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As one without the libraries that belong to it."""
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'cannot find crti.o' >&2\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setenv("CC", str(broken))
    assert "cannot find crti.o" in only(gpu.compiler(), "bad").what


def test_no_headers_of_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "include_folder", lambda: str(tmp_path))
    finding = only(gpu.compiler(), "bad")
    assert str(tmp_path / "Python.h") in finding.what and "python3-dev" in finding.fix


# The folder that Triton loads from


def test_a_folder_that_can_be_written_and_loaded_from_is_left_as_it_was(cache: Path) -> None:
    assert only(gpu.cache_folder(), "ok")
    assert list(cache.iterdir()) == []


@pytest.fixture
def noexec(tmp_path: Path) -> Iterator[Path]:
    """As compose's /tmp."""
    place = tmp_path / "mount"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "tmpfs", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting takes root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_folder_on_a_noexec_mount_is_told(noexec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(noexec / "triton"))
    finding = only(gpu.cache_folder(), "bad")
    assert finding.what == f"{noexec}/triton is mounted noexec: what Triton compiles there can't be loaded"
    assert "TRITON_CACHE_DIR" in finding.fix and "volume, not a tmpfs" in finding.fix


def test_a_noexec_mount_is_told_by_what_the_kernel_answers(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For machines on which tests may not mount."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(gpu.mmap, "mmap", refused)
    assert "noexec" in only(gpu.cache_folder(), "bad").what


def test_a_folder_that_cannot_be_written_is_told(cache: Path) -> None:
    cache.touch()
    finding = only(gpu.cache_folder(), "bad")
    assert "cannot be written" in finding.what and "TRITON_CACHE_DIR" in finding.fix


def test_the_folder_is_the_one_that_triton_uses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from triton import knobs

    for name in ("TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert gpu.triton_cache() == Path(knobs.cache.dir)
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    assert gpu.triton_cache() == Path(knobs.cache.dir) == tmp_path / ".triton" / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", f"{tmp_path}/own")
    assert gpu.triton_cache() == Path(knobs.cache.dir) == Path(os.environ["TRITON_CACHE_DIR"])
