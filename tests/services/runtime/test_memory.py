"""How much memory a process may still take."""

from __future__ import annotations

from pathlib import Path

from services.runtime.memory import available_bytes

GB = 1 << 30
MB = 1 << 20


def machine(folder: Path, available: int, cgroup: str = "") -> Path:
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable:   {available // 1024} kB\nBuffers: 1 kB\n")
    if cgroup:
        (folder / "self" / "cgroup").write_text(cgroup)
    return folder


def group(folder: Path, limit: int | str, used: int, inactive: int = 0, version: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if version == 2:
        names, field = ("memory.max", "memory.current"), "inactive_file"
    else:
        names, field = ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_inactive_file"
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{field} {inactive}\n")


def test_without_groups_it_is_what_the_machine_has(tmp_path: Path) -> None:
    assert available_bytes(machine(tmp_path / "proc", 3 * GB), tmp_path / "none") == 3 * GB


def test_the_tightest_group_around_the_process_decides(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", 30 * GB, "0::/pod/container\n")
    groups = tmp_path / "groups"
    group(groups / "pod", 4 * GB, 3 * GB)
    group(groups / "pod" / "container", 8 * GB, 1 * GB)
    assert available_bytes(proc, groups) == 1 * GB


def test_file_pages_nobody_looks_at_count_as_free(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", 30 * GB, "0::/a\n")
    group(tmp_path / "groups" / "a", 4 * GB, 4 * GB, inactive=2 * GB)
    assert available_bytes(proc, tmp_path / "groups") == 2 * GB


def test_a_group_without_a_limit_limits_nothing(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", 30 * GB, "0::/a\n")
    group(tmp_path / "groups" / "a", "max", 4 * GB)
    assert available_bytes(proc, tmp_path / "groups") == 30 * GB


def test_in_a_container_its_own_root_is_looked_at(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", 30 * GB, "0::/docker/abc/not/mounted/here\n")
    group(tmp_path / "groups", 2 * GB, 1 * GB)
    assert available_bytes(proc, tmp_path / "groups") == 1 * GB


def test_older_groups_are_understood(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", 30 * GB, "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n")
    group(tmp_path / "groups" / "memory" / "x", 2 * GB, 1 * GB, version=1)
    assert available_bytes(proc, tmp_path / "groups") == 1 * GB


def test_more_used_than_allowed_is_nothing_left(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", 30 * GB, "0::/a\n")
    group(tmp_path / "groups" / "a", 1 * GB, 2 * GB)
    assert available_bytes(proc, tmp_path / "groups") == 0


def test_this_machine_has_some() -> None:
    assert available_bytes() > 0
