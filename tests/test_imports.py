"""Imports point one way, and the processes that need no model start without torch."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = {"mesh", "kernels", "models", "services", "loadtest", "bench", "specmesh"}

COMMAND_LINE, ENTRANCE = ROOT / "services" / "cli" / "main.py", ROOT / "specmesh" / "__main__.py"
# Found by Ray's processes, which know no other package of ours.
RAY_ENTRANCE = ROOT / "specmesh" / "ray_actors.py"
# A model in the caller's own process.
IN_PROCESS = ROOT / "specmesh" / "engine.py"

# Of ours, what a package may import besides itself.
DIRECTION = {
    "mesh": set(),
    "kernels": set(),
    "models": {"kernels"},
    "services": {"mesh", "kernels", "models", "specmesh"},
    "loadtest": set(),
    "specmesh": set(),
}
# Of others', what the lower packages may import at all.
OTHERS = {
    "mesh": {"zmq", "msgpack", "msgspec", "prometheus_client", "uvloop"},
    "kernels": {"torch", "triton", "numpy", "numba", "llvmlite"},
}
# What the half of the target that computes must not know: how requests come and how messages travel.
SOCKETS = {"zmq", "aiohttp", "msgpack", "mesh"}


class Imports(NamedTuple):
    """What a file imports anywhere in it, functions and TYPE_CHECKING blocks too."""

    packages: frozenset[str]  # the top-level ones
    sources: tuple[str, ...]  # X of `import X` and of `from X import y`
    members: tuple[str, ...]  # X.y of the latter: perhaps a module, too


@functools.cache
def imports_of(file: Path) -> Imports:
    """Each file is parsed once, however many tests ask for its imports."""
    packages, sources, members = set(), [], []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            sources += [alias.name for alias in node.names]
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            sources.append(node.module)
            members += [f"{node.module}.{alias.name}" for alias in node.names]
            packages |= {node.module.partition(".")[0]} if node.level == 0 else set()
    return Imports(frozenset(packages), tuple(sources), tuple(members))


def modules_of(file: Path) -> tuple[str, ...]:
    """By their full names; some are of what is in a module."""
    found = imports_of(file)
    return found.sources + found.members


def offenders(files: list[Path], forbidden: set[str]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in sorted(imports_of(file).packages & forbidden)
    ]


@pytest.mark.parametrize("package", DIRECTION)
def test_a_package_imports_only_packages_below_it(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    # One place hands over to the load harness, one to the command line, one to Ray's actors, one to the engine.
    files = [file for file in files if file not in (COMMAND_LINE, ENTRANCE, RAY_ENTRANCE, IN_PROCESS)]
    assert offenders(files, OURS - {package} - DIRECTION[package]) == []


def test_only_the_command_line_imports_the_load_harness_and_nobody_the_benchmarks() -> None:
    assert "bench" not in imports_of(COMMAND_LINE).packages
    assert OURS & imports_of(ENTRANCE).packages == {"services", "specmesh"}
    assert OURS & imports_of(RAY_ENTRANCE).packages == {"services", "specmesh"}
    assert OURS & imports_of(IN_PROCESS).packages == {"models", "services", "specmesh"}


@pytest.mark.parametrize("package", OTHERS)
def test_the_lower_packages_import_only_what_they_are_made_of(package: str) -> None:
    allowed = OTHERS[package] | {package} | set(sys.stdlib_module_names)
    for file in sorted((ROOT / package).rglob("*.py")):
        assert imports_of(file).packages - allowed == set(), file


def test_the_drafter_under_vllm_imports_what_vllm_has_and_of_ours_only_itself() -> None:
    """It is in the process of another server, whose packages have the names of our rooms."""
    # The last one inside a function, where it may be missing.
    allowed = {"specmesh", "zmq", "msgspec", "numpy", "huggingface_hub"} | set(sys.stdlib_module_names)
    files = sorted((ROOT / "specmesh" / "vllm").glob("*.py"))
    assert files
    for file in files:
        found = imports_of(file)
        assert found.packages <= allowed, file
        assert all(each.startswith("specmesh.vllm") for each in found.sources if each.startswith("specmesh")), file


ROLES = ("streamer", "tokenizer", "proposer", "worker")


@pytest.mark.parametrize("role", ROLES)
def test_a_role_imports_no_other_role(role: str) -> None:
    """What several of them need is in services/api or services/runtime."""
    others = ("services.cli.", *(f"services.{other}." for other in ROLES if other != role))
    files = sorted((ROOT / "services" / role).rglob("*.py"))
    assert files
    found = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in files
        for module in modules_of(file)
        if f"{module}.".startswith(others)
    ]
    assert found == []


def test_the_command_line_imports_no_role_and_what_roles_share_imports_none() -> None:
    """Roles are started by their names: services/runtime/process.py looks them up."""
    roles = tuple(f"services.{role}." for role in ROLES)
    files = [file for room in ("api", "runtime", "cli") for file in (ROOT / "services" / room).rglob("*.py")]
    found = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in files
        for module in modules_of(file)
        if f"{module}.".startswith(roles)
    ]
    assert found == []


# Folders of the streamer, each with those that it may import.
STREAMER_FOLDERS = {
    "agents": set(),
    "openai": {"agents"},
    "choice": {"openai", "agents"},
    "messages": {"openai", "agents", "choice"},
    "extras": {"openai", "choice"},
    "responses": {"openai", "agents", "choice"},
    "door": {"openai", "agents", "choice", "extras", "messages", "responses"},
}


@pytest.mark.parametrize("folder", STREAMER_FOLDERS)
def test_folders_of_the_streamer_import_only_those_below_them(folder: str) -> None:
    files = sorted((ROOT / "services" / "streamer" / folder).rglob("*.py"))
    assert files
    named = [(file, name.split(".")) for file in files for name in imports_of(file).sources]
    found = {(file.name, parts[2]) for file, parts in named if parts[:2] == ["services", "streamer"]}
    assert {each for each in found if each[1] not in {folder, *STREAMER_FOLDERS[folder]}} == set()


def folder_of(module: str) -> str:
    """services.worker.running.mock -> services.worker."""
    return ".".join(module.split(".")[:2])


def test_no_folders_of_the_services_import_each_other_in_a_circle() -> None:
    folders = [each for each in (ROOT / "services").iterdir() if each.is_dir()]
    graph: dict[str, set[str]] = {f"services.{each.name}": set() for each in folders}
    for file in (ROOT / "services").rglob("*.py"):
        own = ".".join(file.relative_to(ROOT).parts[:2])
        if own in graph:
            graph[own] |= ({folder_of(module) for module in modules_of(file)} & graph.keys()) - {own}
    assert graph["services.cli"] and circles(graph) == []


def test_only_the_command_line_imports_the_actors_of_ray() -> None:
    """They import services/placement, which is given their classes."""
    found = [file for file in (ROOT / "services").rglob("*.py") if "specmesh.ray_actors" in modules_of(file)]
    assert found == [ROOT / "services" / "cli" / "on_ray.py"]


def test_no_folders_of_the_worker_import_each_other_in_a_circle() -> None:
    """What lies in services/worker itself ties them together."""
    worker = ROOT / "services" / "worker"
    folders = [each for each in worker.iterdir() if (each / "__init__.py").exists()]
    graph: dict[str, set[str]] = {f"services.worker.{each.name}": set() for each in folders}
    for own in graph:
        files = (worker / own.rpartition(".")[2]).rglob("*.py")
        found = {".".join(module.split(".")[:3]) for file in files for module in modules_of(file)}
        graph[own] = (found & graph.keys()) - {own}
    assert graph["services.worker.running"] and circles(graph) == []


# Folders and modules of the proposer that others stand on, each with those that it may import. What lies beside them
# ties them together.
PROPOSER_PARTS = {
    "names": set(),
    "native": set(),
    "segments": {"native"},
    "plain": {"names", "native", "segments"},
    "fast": {"native", "segments", "plain"},
    "store": {"names", "segments"},
}


def test_no_folder_of_the_proposer_is_missing_in_the_order() -> None:
    folders = {each.parent.name for each in (ROOT / "services" / "proposer").glob("*/__init__.py")}
    assert folders == PROPOSER_PARTS.keys() - {"names", "native"}


@pytest.mark.parametrize("part", PROPOSER_PARTS)
def test_parts_of_the_proposer_import_only_those_below_them(part: str) -> None:
    path = ROOT / "services" / "proposer" / part
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    named = [(file, name.split(".")) for file in files for name in modules_of(file)]
    found = {(file.name, parts[2]) for file, parts in named if parts[:2] == ["services", "proposer"] and parts[2:]}
    # Names that `from services.proposer import x` may have, too.
    assert {each for each in found if each[1] not in {part, *PROPOSER_PARTS[part]}} == set()


# Who may look inside the suffix index, besides the proposer and its own tests.
INSIDE = ("services/proposer/", "tests/services/proposer/")
FAST = "services.proposer.fast"


def test_nothing_imports_the_inner_files_of_the_compiled_index() -> None:
    """They are reached through services/proposer/index.py."""
    found = []
    for package in (*sorted(OURS), "deploy"):
        for file in sorted((ROOT / package).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            if name.startswith(INSIDE):
                continue
            inner = [source for source in imports_of(file).sources if source.startswith(f"{FAST}.")]
            found += [f"{name} imports {each}" for each in inner]
    assert found == []


def test_kernels_models_and_the_torch_half_of_the_target_know_no_sockets() -> None:
    files = [*(ROOT / "kernels").rglob("*.py"), *(ROOT / "models").rglob("*.py")]
    running = ROOT / "services" / "worker" / "running"
    files += [running / "torch_model.py", running / "load_torch_model.py"]
    assert offenders(sorted(files), SOCKETS | {"msgspec", "orjson"}) == []


def test_scheduler_and_mock_engine_import_neither_torch_nor_sockets() -> None:
    worker = ROOT / "services" / "worker"
    files = [*(worker / "scheduling").glob("*.py"), worker / "running" / "mock.py"]
    assert offenders(files, {"torch", "zmq", "aiohttp"}) == []


def loaded_by(*statements: str) -> list[set[str]]:
    """The top-level modules in a fresh interpreter after each of the statements."""
    report = "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    code = "import sys, json\n" + "\n".join(f"{statement}\n{report}" for statement in statements)
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ}
    )
    assert finished.returncode == 0, finished.stderr
    return [set(json.loads(line)) for line in finished.stdout.splitlines()[-len(statements) :]]


def test_roles_without_a_model_the_supervisor_and_the_command_line_start_without_torch() -> None:
    """In one interpreter: what none of them loads, each of them doesn't."""
    roles = ("streamer", "tokenizer", "proposer")
    statements = [f"import services.runtime.process, services.{role}.actor" for role in roles]
    statements.append("import services.cli.main, services.cli.up")
    for statement, loaded in zip(statements, loaded_by(*statements), strict=True):
        assert not loaded & {"torch", "triton", "transformers"}, statement


def test_the_target_starts_without_an_http_server_and_the_mock_engine_without_torch() -> None:
    [loaded] = loaded_by("import services.runtime.process, services.worker.actor, services.worker.running.mock")
    assert not loaded & {"aiohttp", "torch"}


def test_the_foreign_package_with_a_name_of_ours_is_not_installed() -> None:
    """docs/internals/decisions/0004: with it, transformers imports names from our folder and fails."""
    import importlib.metadata

    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.distribution("kernels")


# Import circles ------------------------------------------------------------------------------------------------------


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of more than one that all reach each other."""
    reached: dict[str, set[str]] = {}
    for node in graph:
        seen, left = set(), [node]
        while left:
            new = graph[left.pop()] - seen
            seen |= new
            left += new
        reached[node] = seen
    groups = {tuple(sorted(other for other in seen if node in reached[other])) for node, seen in reached.items()}
    return sorted([*group] for group in groups if len(group) > 1)


def edges(files: list[Path]) -> dict[str, set[str]]:
    """Module -> modules of the same files that it imports, anywhere in it."""
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    found: dict[str, set[str]] = {}
    for name, file in names.items():
        imports = imports_of(file)
        # `from a.b import c` takes c, which is a module or something in a.b.
        taken = {each if each in names else each.rpartition(".")[0] for each in imports.members}
        whole = set(imports.sources) - {each.rpartition(".")[0] for each in imports.members}
        found[name] = (taken | whole) & names.keys() - {name}
    return found


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []


@pytest.mark.parametrize("package", ["mesh", "kernels", "models", "services", "specmesh"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    """Imports for the type checker alone and inside functions count, too."""
    files = sorted((ROOT / package).rglob("*.py"))
    assert files and circles(edges(files)) == []
