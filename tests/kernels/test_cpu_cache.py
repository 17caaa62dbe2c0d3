"""Code kept on disk is found again, and never after an edit of anything that went into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernels import cpu_cache

PACKAGE = Path(cpu_cache.__file__).parent
OUTER = """
from kernels import middle
from kernels.cpu_program import compiled, op_chunks


@op_chunks
def answer(args, step):
    return middle.number()


@compiled
def other():
    return middle.number()
"""
MIDDLE = """
import numba

from kernels.inner import NUMBER


@numba.njit
def number():
    return NUMBER
"""
ASK = """
from kernels.outer import answer, other
print(answer(0, 0), other(), answer.compiled.cache_hits + sum(other.stats.cache_hits.values()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The sources, with a loop that calls another file's, which reads a third one's number."""
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    for name in ("__init__", "cpu_cache", "cpu_program"):
        shutil.copy(PACKAGE / f"{name}.py", kernels)
    for name, text in {"outer": OUTER, "middle": MIDDLE, "inner": "NUMBER = 1\n", "unrelated": ""}.items():
        (kernels / f"{name}.py").write_text(text)
    return tmp_path


def ask(folder: Path, **environment: str) -> str:
    """What both loops say, and how many of them were found on disk."""
    own = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    own.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=own | environment, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_edit_of_an_imported_file_is_seen_and_old_code_found_again(folder: Path) -> None:
    inner = folder / "kernels" / "inner.py"
    assert ask(folder) == "1 1 0"
    (folder / "kernels" / "unrelated.py").write_text("# nobody imports it\n")
    assert ask(folder) == "1 1 2"
    # The length and the time stay as they are.
    before = inner.stat()
    inner.write_text("NUMBER = 2\n")
    os.utime(inner, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ask(folder) == "2 2 0"
    inner.write_text("NUMBER = 1\n")
    assert ask(folder) == "1 1 2"


def test_code_for_other_features_of_a_processor_is_not_found(folder: Path) -> None:
    few = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert ask(folder) == "1 1 0"
    assert ask(folder, **few) == "1 1 0"
    assert ask(folder, **few) == "1 1 2"


def test_code_lies_where_numba_is_told_to_keep_it(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "told"
    assert ask(folder, NUMBA_CACHE_DIR=str(place)) == "1 1 0"
    assert ask(folder, NUMBA_CACHE_DIR=str(place)) == "1 1 2"
    assert not (folder / "kernels" / "__pycache__").exists()
    assert {one.name.rpartition("-")[0] for one in (place / "compiled").iterdir()} == {
        "kernels.outer",
        "kernels.cpu_program",
    }


def test_where_nothing_can_be_written_code_is_compiled_at_every_start(folder: Path) -> None:
    blocked = folder / "a_file"
    blocked.write_text("")
    (folder / "kernels" / "__pycache__").write_text("")
    nowhere = {"NUMBA_CACHE_DIR": f"{blocked}/numba", "XDG_CACHE_HOME": f"{blocked}/cache"}
    assert ask(folder, **nowhere) == "1 1 0"
    assert ask(folder, **nowhere) == "1 1 0"
    # The next place is taken where only the first can't be.
    assert ask(folder, **nowhere | {"XDG_CACHE_HOME": f"{folder}/cache"}) == "1 1 0"
    assert ask(folder, **nowhere | {"XDG_CACHE_HOME": f"{folder}/cache"}) == "1 1 2"


def test_the_latest_three_states_of_a_module_are_kept(tmp_path: Path) -> None:
    for age, name in enumerate(("a.b-1", "a.b-2", "a.b-3", "a.b-4", "a.b-c-5", "a.c-6")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    cpu_cache._remove_old(tmp_path, tmp_path / "a.b-4")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.b-1", "a.b-2", "a.b-4", "a.b-c-5", "a.c-6"]


def test_a_digest_is_of_all_that_a_module_imports_of_the_kernels() -> None:
    sources = cpu_cache._sources(PACKAGE / "linear" / "cpu.py")
    assert {PACKAGE / "cpu_vectors.py", PACKAGE / "cpu_program.py", PACKAGE / "linear" / "tiles.py"} <= sources
    assert PACKAGE / "paged_attention" / "cpu_ops.py" not in sources


def test_code_that_checks_bounds_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = cpu_cache.digest(PACKAGE / "cpu_cache.py")
    monkeypatch.setattr(cpu_cache.numba.config, "BOUNDSCHECK", 1)
    assert cpu_cache.digest(PACKAGE / "cpu_cache.py") != plain
