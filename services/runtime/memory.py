"""How much memory this process may still take: the least that the machine and each control group around it allow."""

from __future__ import annotations

from pathlib import Path

# kv_cache_mb: -1 is by device, and what a CPU's pages get then.
BY_DEVICE, CPU_KV_MB = -1, 1024


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process can still take without swapping and without being killed."""
    return max(0, min([_machine(proc), *_groups(proc, cgroups)]))


def _machine(proc: Path) -> int:
    for line in (proc / "meminfo").read_text("utf-8").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise ValueError(f"{proc}/meminfo has no MemAvailable")


def _groups(proc: Path, cgroups: Path) -> list[int]:
    """What is left in each group that has a limit, this process's own and those around it."""
    try:
        lines = (proc / "self" / "cgroup").read_text("utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = ("memory.max", "memory.current", "inactive_file")
            root = cgroups
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = cgroups / "memory"
        else:
            continue
        # In a container the path may be the host's and lie outside what is mounted: its root is read anyway.
        folder = root / path.lstrip("/")
        while True:
            left = _left(folder, *names)
            if left is not None:
                found.append(left)
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent
    return found


def _left(folder: Path, limit_name: str, used_name: str, reclaimable: str) -> int | None:
    """None: there is no limit here. Inactive file pages count as free: the kernel reclaims them."""
    try:
        limit = (folder / limit_name).read_text("utf-8").strip()
        used = int((folder / used_name).read_text("utf-8"))
        stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text("utf-8").splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return int(limit) - used + int(stat.get(reclaimable, 0))
