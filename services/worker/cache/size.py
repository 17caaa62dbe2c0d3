"""How much memory the pages get: what the setting says, or a share of what is free once the model is loaded.

What is free is the least that the machine and each control group around this process allow.
"""

from __future__ import annotations

from pathlib import Path

# Of what is free: the rest is for the step's own buffers, for the other processes and for the file cache.
SHARE = 0.6
MEBIBYTE = 1 << 20


def kv_cache_bytes(
    setting_mb: int, available: int, page_bytes: int, needed_tokens: int = 0, page_tokens: int = 1
) -> int:
    """Bytes for pages, a whole number of them; never more than is there when the setting leaves it open.

    `setting_mb` 0 leaves it open. `needed_tokens`: more than that many tokens could never be used (running
    sequences times context); 0: no such bound. Raises ValueError when not one page fits.
    """
    if setting_mb:
        wanted = setting_mb * MEBIBYTE
    else:
        wanted = int(available * SHARE)
        if needed_tokens:
            wanted = min(wanted, -(-needed_tokens // page_tokens) * page_bytes)
    pages = wanted // page_bytes
    if pages < 1:
        said = f"kv_cache_mb {setting_mb}" if setting_mb else f"{available // MEBIBYTE} MB of free memory"
        raise ValueError(f"{said} holds no KV page: one takes {page_bytes} bytes")
    return pages * page_bytes


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this process may still take without anything being swapped out or killed."""
    return max(0, min([_machine(proc), *_groups(proc, cgroups)]))


def _machine(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise ValueError(f"{proc}/meminfo has no MemAvailable")


def _groups(proc: Path, cgroups: Path) -> list[int]:
    """What is left in each group that has a limit, this process's own and those around it."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
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
        # In a container the path may be the host's, and lie outside what is mounted: its root is looked at anyway.
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
    """None: there is no limit here. File pages that nobody looks at any more are given back when needed."""
    try:
        limit = (folder / limit_name).read_text().strip()
        used = int((folder / used_name).read_text())
        stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return int(limit) - used + int(stat.get(reclaimable, 0))
