"""Folders that only this user can change. In /tmp, or wherever others may write, a name may be another user's folder,
or a link of theirs to a place that this user may write."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def make_own_folder(folder: Path, fix: str) -> None:
    """Makes it, or checks the one that is there. PermissionError: others can change it; `fix` says what to do."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    link = folder.lstat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{folder} is a link of user {link.st_uid}: {fix}")
    if not is_own(os.stat(folder)):
        raise PermissionError(f"{folder} can be changed by others: {fix}")


def is_own(facts: os.stat_result) -> bool:
    """Whether it is a folder that only this user can change."""
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022
