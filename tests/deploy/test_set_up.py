"""deploy/venv.py, constraints.txt and deploy/locks/: what is installed is pinned, verified, and installed once."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy_script import deploy_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def venv_script() -> ModuleType:
    return deploy_script("venv")


@pytest.fixture
def installs(venv_script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """pip calls, which succeed and do nothing."""
    calls: list[list[str]] = []

    def pip(command: list[str], log: Path) -> int:
        calls.append(command)
        return 0

    monkeypatch.setattr(venv_script, "create", lambda venv: venv.mkdir(exist_ok=True))
    monkeypatch.setattr(venv_script, "run_pip", pip)
    return calls


@pytest.fixture
def no_torch_settings(venv_script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And no GPU."""
    monkeypatch.setattr(venv_script, "GPU", tmp_path / "no-gpu")
    for name in ("GPU", "TORCH_INDEX", "TORCH_UNVERIFIED"):
        monkeypatch.delenv(name, raising=False)


def locked(*names: str) -> dict[str, str]:
    """Name -> version of every entry of these locks. Each has a hash."""
    entries: dict[str, str] = {}
    for name in names:
        text = (ROOT / "deploy" / "locks" / f"{name}.txt").read_text().replace("\\\n", "")
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            found = re.fullmatch(r"([A-Za-z0-9_.-]+)==([A-Za-z0-9_.+]+)( +--hash=sha256:[0-9a-f]{64})+", line)
            assert found, f"{name}.txt: {line[:80]}"
            entries[canonicalize_name(found[1])] = found[2]
    return entries


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    parsed = [re.fullmatch(r"([A-Za-z0-9_.-]+)==([A-Za-z0-9_.]+)", line) for line in lines]
    assert all(parsed), "a line of constraints.txt is not NAME==VERSION"
    return {canonicalize_name(found[1]): found[2] for found in parsed if found}


def test_a_second_installation_does_nothing(venv_script: ModuleType, installs: list, tmp_path: Path) -> None:
    venv_script.install(tmp_path / "v", dev=False)
    once = len(installs)
    venv_script.install(tmp_path / "v", dev=False)
    assert len(installs) == once


def test_what_developers_installed_serves_users_but_not_the_other_way_round(
    venv_script: ModuleType, installs: list, tmp_path: Path
) -> None:
    venv_script.install(tmp_path / "v", dev=False)
    venv_script.install(tmp_path / "v", dev=True)
    venv_script.install(tmp_path / "v", dev=False)
    packages = [command for command in installs if any(word.endswith("run.txt") for word in command)]
    assert [any(word.endswith("dev.txt") for word in command) for command in packages] == [False, True]


def test_what_is_installed_is_compiled_after_it_and_what_is_no_python_is_passed_over(
    venv_script: ModuleType, installs: list, tmp_path: Path
) -> None:
    venv = tmp_path / "v"
    packages = venv / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(sys.executable)
    (packages / "good.py").write_text("a = 1\n")
    (packages / "template.py").write_text("{{ name }} = = 1\n")
    assert venv_script.install(venv, dev=True) == 0
    assert installs and all("--no-compile" in command for command in installs)
    assert [path.name.partition(".")[0] for path in packages.glob("__pycache__/*.pyc")] == ["good"]


@pytest.mark.parametrize("extra", ["ray", "nixl"])
def test_an_extra_is_installed_once_and_only_for_those_who_ask(
    extra: str, venv_script: ModuleType, installs: list, tmp_path: Path
) -> None:
    def with_it() -> int:
        return sum(any(word.endswith(f"{extra}.txt") for word in command) for command in installs)

    venv_script.install(tmp_path / "v", dev=True)
    assert with_it() == 0
    for _ in range(2):
        venv_script.install(tmp_path / "v", dev=True, extras=[extra])
        venv_script.install(tmp_path / "v", dev=False)
    assert with_it() == 1


def test_a_failed_installation_is_repeated_by_the_next_call(
    venv_script: ModuleType,
    installs: list,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
) -> None:
    def failing(command: list[str], log: Path) -> int:
        log.write_text("ERROR: no such version\n")
        return 1

    monkeypatch.setattr(venv_script, "run_pip", failing)
    assert venv_script.install(tmp_path / "v", dev=False) == 1
    assert "no such version" in capfd.readouterr().err
    monkeypatch.setattr(venv_script, "run_pip", lambda command, log: installs.append(command) or 0)
    assert venv_script.install(tmp_path / "v", dev=False) == 0
    assert installs[-1][-2:] == ["-e", str(ROOT)]


def test_changed_pins_and_a_moved_folder_are_installed_anew(
    venv_script: ModuleType, installs: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyproject.toml", "setup.py"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "run.txt").write_text("torch==0\n")
    monkeypatch.setattr(venv_script, "ROOT", tmp_path)
    monkeypatch.setattr(venv_script, "LOCKS", tmp_path)
    venv_script.install(tmp_path / "v", dev=False)
    (tmp_path / "run.txt").write_text("torch==1\n")
    venv_script.install(tmp_path / "v", dev=False)
    (tmp_path / "v").rename(tmp_path / "w")
    venv_script.install(tmp_path / "w", dev=False)
    assert len([command for command in installs if "-e" in command]) == 3


def test_a_venv_whose_pip_works_is_kept(venv_script: ModuleType, tmp_path: Path) -> None:
    python = tmp_path / "v" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    venv_script.create(tmp_path / "v")
    assert python.read_text() == "#!/bin/sh\nexit 0\n"


def test_where_python_has_no_ensurepip_the_outer_pip_brings_pip(
    venv_script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian without python3-venv: `python3 -m venv` fails, with --without-pip it doesn't."""
    real_run, ran = subprocess.run, []

    def run(command: list[object], **more: object) -> subprocess.CompletedProcess[bytes]:
        words = [str(word) for word in command]
        ran.append(words)
        if words[1:3] == ["-m", "venv"] and "--without-pip" not in words:
            return subprocess.CompletedProcess(command, 1)
        if words[1:3] == ["-m", "pip"]:
            return subprocess.CompletedProcess(command, 0)
        return real_run(words, **more)

    monkeypatch.setattr(venv_script.subprocess, "run", run)
    venv_script.create(tmp_path / "v")
    assert (tmp_path / "v" / "bin" / "python").exists()
    assert ran[-1][1:4] == ["-m", "pip", "--python"]
    assert "--require-hashes" in ran[-1] and ran[-1][-1].endswith("pip.txt")


def test_everything_required_directly_or_indirectly_is_pinned() -> None:
    needed = required("dev")
    assert needed - set(pins()) == set()
    assert len(needed) > 30


def required(extra: str) -> set[str]:
    """What specmesh with this extra requires here, directly or indirectly."""
    needed: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [("specmesh", extra)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            dependency = canonicalize_name(requirement.name)
            needed.add(dependency)
            try:
                importlib.metadata.distribution(dependency)
            except importlib.metadata.PackageNotFoundError:
                continue
            waiting += [(dependency, more) for more in ("", *requirement.extras)]
    return needed


def test_torch_is_pinned_without_a_build_and_the_name_of_ours_is_kept_out() -> None:
    assert pins()["torch"] == "2.13.0"
    assert "kernels" not in pins()
    assert not [name for name in pins() if name.startswith("nvidia")]


def test_every_package_is_verified_and_only_the_project_itself_is_not(
    venv_script: ModuleType, installs: list, tmp_path: Path, no_torch_settings: None
) -> None:
    venv_script.install(tmp_path / "v", dev=True, extras=["ray", "nixl"])
    *packages, project = installs
    assert any(word.endswith("ray.txt") for command in packages for word in command)
    for command in packages:
        assert {"--require-hashes", "--no-deps"} <= set(command)
    assert project[-4:] == ["--no-deps", "--no-build-isolation", "-e", str(ROOT)]


def test_a_wheel_that_is_not_the_tested_one_is_refused(
    venv_script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_torch_settings: None
) -> None:
    """With the real pip, and a wheel of the right name and version."""
    wheel = make_wheel(tmp_path / "index", "1 + 1")
    good = hashlib.sha256(wheel.read_bytes()).hexdigest()
    for name in ("run", "torch-cpu"):
        (tmp_path / f"{name}.txt").write_text(f"tested==1.0 --hash=sha256:{good}\n")
    monkeypatch.setattr(venv_script, "LOCKS", tmp_path)

    def install(target: str) -> int:
        pip = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(tmp_path / "index")]
        pip += ["--disable-pip-version-check", "--no-input", "--target", str(tmp_path / target)]
        return venv_script.install_packages(pip, tmp_path / "pip.log", dev=False)

    assert install("good") == 0
    assert (tmp_path / "good" / "tested.py").read_text() == "1 + 1"
    make_wheel(tmp_path / "index", "print('mine')")
    assert install("bad") != 0
    assert not (tmp_path / "bad" / "tested.py").exists()
    assert "DO NOT MATCH THE HASHES" in (tmp_path / "pip.log").read_text()


def make_wheel(folder: Path, code: str) -> Path:
    """A wheel of the package tested, version 1.0."""
    folder.mkdir(exist_ok=True)
    files = {
        "tested.py": code,
        "tested-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tested\nVersion: 1.0\n",
        "tested-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for name, text in files.items()
    }
    record = "".join(f"{name},sha256={digests[name]},{len(text)}\n" for name, text in files.items())
    files["tested-1.0.dist-info/RECORD"] = f"{record}tested-1.0.dist-info/RECORD,,\n"
    wheel = folder / "tested-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return wheel


@pytest.fixture
def offered(venv_script: ModuleType, monkeypatch: pytest.MonkeyPatch, no_torch_settings: None) -> Callable[..., list]:
    """Which locks are installed, each with its index, when pip says `said` to torch's CPU build."""

    def install(folder: Path, said: str) -> list[tuple[str, str]]:
        calls: list[tuple[str, str]] = []

        def pip(command: list[str], log: Path) -> int:
            names = [Path(word).stem for word in command if word.endswith(".txt")]
            index = command[command.index("--index-url") + 1] if "--index-url" in command else ""
            calls.append(("+".join(names) or command[-1], index))
            log.write_text(said)
            return int(bool(said) and names == ["torch-cpu"])

        monkeypatch.setattr(venv_script, "run_pip", pip)
        venv_script.install_packages(["pip"], folder / "pip.log", dev=False)
        return calls

    return install


NONE_OFFERED = "ERROR: No matching distribution found for torch==2.13.0+cpu"


@pytest.fixture(params=[False, True], ids=["no GPU", "a GPU"])
def gpu(
    request: pytest.FixtureRequest, venv_script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> bool:
    monkeypatch.setattr(venv_script, "GPU", tmp_path if request.param else tmp_path / "nowhere")
    return bool(request.param)


def test_without_a_gpu_the_cpu_build_of_torch_is_taken_and_said(
    offered: Callable[..., list], tmp_path: Path, gpu: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = offered(tmp_path, "")
    said = capsys.readouterr().err
    if gpu:
        assert calls == [("run", ""), ("torch", ""), ("cuda", "")] and said == ""
    else:
        assert calls == [("run", ""), ("torch-cpu", "")] and "CPU build" in said


def test_without_a_cpu_build_the_ordinary_one_is_taken_and_its_cost_is_said(
    offered: Callable[..., list], tmp_path: Path, gpu: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [name for name, _ in offered(tmp_path, NONE_OFFERED)]
    said = capsys.readouterr().err
    if gpu:
        assert calls == ["run", "torch", "cuda"] and said == ""
    else:
        assert calls == ["run", "torch-cpu", "torch", "cuda"]
        assert "several GB" in said and "make up TORCH_INDEX=URL" in said


def test_an_index_that_was_named_is_asked_for_its_cpu_build_also_where_a_gpu_is(
    offered: Callable[..., list], tmp_path: Path, gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_INDEX", "file:///there")
    there = "file:///there"
    assert offered(tmp_path, "") == [("run", ""), ("torch-cpu", there)]
    assert offered(tmp_path, NONE_OFFERED) == [("run", ""), ("torch-cpu", there), ("torch", there), ("cuda", "")]


def test_an_image_for_a_gpu_gets_torch_for_cuda_although_none_is_there_while_it_is_built(
    offered: Callable[..., list], tmp_path: Path, gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU", "1")
    assert offered(tmp_path, "") == [("run", ""), ("torch", ""), ("cuda", "")]


def test_a_cpu_build_with_a_wrong_hash_ends_the_installation(offered: Callable[..., list], tmp_path: Path) -> None:
    said = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."
    assert [name for name, _ in offered(tmp_path, said)] == ["run", "torch-cpu"]


def test_torch_index_serves_torch_and_nothing_else(
    offered: Callable[..., list], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_INDEX", "file:///there")
    assert offered(tmp_path, "") == [("run", ""), ("torch-cpu", "file:///there")]
    monkeypatch.setenv("TORCH_UNVERIFIED", "1")
    assert offered(tmp_path, "") == [("run", ""), (f"torch=={pins()['torch']}", "")]


def test_the_locks_have_the_versions_of_the_constraints() -> None:
    pinned = pins()
    for name, version in locked("run", "dev", "ray", "nixl", "torch", "pip").items():
        assert pinned[name] == version
    assert locked("torch-cpu") == {"torch": f"{pinned['torch']}+cpu"}
    assert all(re.match("nvidia|cuda|triton$", name) for name in locked("cuda"))


def test_the_locks_have_everything_that_is_required() -> None:
    """--no-deps installs what is listed and nothing else."""
    users, developers = locked("run", "torch"), locked("run", "torch", "dev")
    assert required("") <= set(users)
    assert required("dev") <= set(developers)
    for extra in ("ray", "nixl"):
        assert required(extra) <= set(locked("run", "torch", extra)) and extra not in developers
    # It builds the project.
    assert "setuptools" in users
