"""A wheel puts `specmesh` into site-packages and nothing beside it, and works next to packages named as our rooms."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest

from bench.running_mesh import RunningMesh, descendants

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
MODEL = "smollm2-135m-instruct"
ROOMS = ("mesh", "kernels", "models", "services", "loadtest")
# Of a head that comes with specmesh; a dot in its folder's name is no package's.
HEAD = "models/heads/trained/of-some-2.5-model/medusa"
HEAD_FILES = ("config.json", "model.safetensors", "README.md", "training.json")
DATA = {".html", ".js", ".css", ".svg", ".json", ".safetensors", ".md", ".gz"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the image copies, with a head and the rest of an earlier build."""
    made = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, made)
    for name in (*ROOMS, "specmesh"):
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    (made / HEAD).mkdir(parents=True)
    for name in HEAD_FILES:
        (made / HEAD / name).write_text("{}")
    (made / "build" / "lib" / "services").mkdir(parents=True)
    (made / "build" / "lib" / "services" / "old.py").touch()
    return made


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wheel")
    offline = ("--no-build-isolation", "--no-deps", "--no-index", "-q")
    subprocess.run([sys.executable, "-m", "pip", "wheel", *offline, "-w", made, source], check=True, timeout=120)
    (file,) = made.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def packed(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as files:
        return set(files.namelist())


def test_nothing_but_the_package_and_its_metadata_is_in_it(packed: set[str]) -> None:
    assert {name.partition("/")[0] for name in packed} == {"specmesh", f"specmesh-{VERSION}.dist-info"}


def test_every_module_and_every_data_file_is_in_it_once(source: Path, packed: set[str]) -> None:
    wanted = {
        f"specmesh/_rooms/{file.relative_to(source).as_posix()}"
        for room in ROOMS
        for file in (source / room).rglob("*")
        if file.suffix in {".py", *DATA}
    }
    assert {f"specmesh/_rooms/{HEAD}/{name}" for name in HEAD_FILES} <= wanted
    assert {name for name in packed if name.startswith("specmesh/_rooms/")} == wanted


def test_the_drafter_for_vllm_is_in_it(source: Path, packed: set[str]) -> None:
    wanted = {f"specmesh/vllm/{file.name}" for file in (source / "specmesh" / "vllm").glob("*.py")}
    assert wanted and wanted <= packed


def test_type_checkers_are_told_of_its_annotations(packed: set[str]) -> None:
    assert "specmesh/py.typed" in packed


def test_the_citation_and_the_image_name_the_same_version() -> None:
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\nARG VERSION={VERSION}\n" in (ROOT / "Dockerfile").read_text()


def test_no_file_of_a_room_is_of_a_kind_that_is_left_out() -> None:
    for room in ROOMS:
        kinds = {file.suffix for file in (ROOT / room).rglob("*") if file.is_file() and "__pycache__" not in file.parts}
        assert kinds <= {".py", *DATA}, room


# Installed ------------------------------------------------------------------------------------------------------------


def install(venv: Path, *what: str | Path) -> Path:
    """An environment with the wheel, or what else pip is given, which sees the dependencies that are here. Not what is
    installed here with pip -e: Python reads the files that add it only in an environment's own folder."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=120)
    places = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (packages_of(venv) / "dependencies.pth").write_text("\n".join(places) + "\n")
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--no-index", "--no-deps", "-q", *what]
    subprocess.run(pip, check=True, timeout=120)
    return venv


def packages_of(venv: Path) -> Path:
    return venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def names_in(venv: Path) -> set[str]:
    return {entry.name for entry in packages_of(venv).iterdir()} - {"__pycache__", "dependencies.pth"}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("environment"), wheel)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody's project, with packages named as our rooms are."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("MINE = True\n")
    return tmp_path


def run(project: Path, *command: str | Path) -> str:
    """What it prints in the project, whose folder is on PYTHONPATH, too. It has a home of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPECMESH_", "NUMBA_"))}
    environment |= {name: str(project / "home") for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")}
    done = subprocess.run(
        command, cwd=project, env=environment | {"PYTHONPATH": str(project)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_command_and_the_module_are_there(installed: Path, project: Path) -> None:
    assert names_in(installed) == {"specmesh", f"specmesh-{VERSION}.dist-info"}
    for command in (installed / "bin" / "specmesh",), (installed / "bin" / "python", "-m", "specmesh"):
        assert run(project, *command, "--version") == f"specmesh {VERSION}\n"
        assert "usage: specmesh load" in run(project, *command, "load", "--help")


@pytest.mark.slow
def test_the_projects_packages_stay_its_own(installed: Path, project: Path) -> None:
    ours = f"import specmesh, {', '.join(ROOMS)}; assert all(each.MINE for each in ({', '.join(ROOMS)}))"
    run(project, installed / "bin" / "python", "-c", ours)


@pytest.mark.slow
def test_transformers_is_imported_beside_it_in_a_project_with_services_of_its_own(
    installed: Path, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "__init__.py").write_text("MINE = True\n")
    # What it looks for a package `kernels` for is imported with the layers of a model.
    both = "import services; from transformers import LlamaConfig, LlamaForCausalLM; assert services.MINE"
    run(tmp_path, installed / "bin" / "python", "-c", f"import specmesh; {both}")
    # In the other order, and in the process of a command.
    run(tmp_path, installed / "bin" / "python", "-c", f"{both}; import specmesh")
    assert run(tmp_path, installed / "bin" / "specmesh", "--version") == f"specmesh {VERSION}\n"


@pytest.mark.slow
def test_without_a_project_nobody_finds_our_rooms(installed: Path, tmp_path: Path) -> None:
    search = f"from importlib.util import find_spec; print([name for name in {ROOMS} if find_spec(name)])"
    assert run(tmp_path, installed / "bin" / "python", "-c", search) == "[]\n"


@pytest.mark.slow
@pytest.mark.model
def test_a_mesh_started_in_the_project_serves_and_runs_our_code(installed: Path, project: Path) -> None:
    """All roles, the tokenizer's process for chat templates among them."""
    folder = project / "of-the-mesh"
    folder.mkdir()
    mesh = RunningMesh(
        folder, {"engine": "mock", "mock_profile": '{"step_ms": 1}'}, specmesh=[str(installed / "bin" / "specmesh")],
        root=project, environment={"PYTHONPATH": str(project)},
    )  # fmt: skip
    try:
        mesh.wait_until_ready()
        body = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "What is a mesh?"}]}
        asked = urllib.request.Request(
            f"{mesh.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] > 0
        commands = [command for command in descendants(mesh.process.pid).values() if command]
        assert {"streamer", "tokenizer", "proposer", "worker"} <= mesh.processes().keys()
        assert [command for command in commands if str(installed / "lib") not in command] == []
        assert any("template_process" in command for command in commands)
    finally:
        assert mesh.stop() == 0


@pytest.mark.slow
def test_an_uninstall_after_clean_leaves_nothing(wheel: Path, tmp_path: Path, project: Path) -> None:
    """Loops are compiled into the installation, and pip doesn't know of them."""
    venv = install(tmp_path / "environment", wheel)
    python = venv / "bin" / "python"
    run(project, python, "-m", "specmesh.rooms", "services.proposer.fast.compiling")
    compiled = packages_of(venv) / "specmesh" / "_rooms" / "kernels" / "__pycache__" / "compiled"
    assert any(compiled.rglob("*.nbi"))
    assert str(compiled) in run(project, venv / "bin" / "specmesh", "clean", "--yes")
    run(project, python, "-m", "pip", "uninstall", "-y", "-q", "specmesh")
    assert names_in(venv) == set()


@pytest.mark.slow
def test_a_checkout_that_is_installed_in_place_keeps_its_rooms_to_itself(
    source: Path, tmp_path: Path, project: Path
) -> None:
    """As `make` installs it."""
    venv = install(tmp_path / "environment", "--no-build-isolation", "-e", source)
    assert run(project, venv / "bin" / "specmesh", "--version") == f"specmesh {VERSION}\n"
    where = "from specmesh import rooms; print(rooms.FOLDER, rooms.is_installed()); import services; services.MINE"
    assert run(project, venv / "bin" / "python", "-c", where) == f"{source} False\n"
