"""The steps of a guide, done in a copy of the sources."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from copied_sources import copy_sources

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"<!-- run by \S+: (file|row) (\S+) -->\n```python\n(.*?)```", re.DOTALL)


def followed(page: Path, folder: Path, before: str) -> tuple[list[str], list[str]]:
    """The names of new files, and rows with the name of their file: a row stands in its table before this text."""
    copy_sources(folder)
    files, rows = [], []
    for kind, name, text in BLOCK.findall(page.read_text()):
        path = folder / name
        assert path.exists() == (kind == "row"), name
        if kind == "file":
            path.write_text(text)
            files.append(name)
        else:
            table = path.read_text()
            assert table.count(before) >= 1
            place = table.index(before)
            path.write_text(table[:place] + text + table[place:])
            rows.append(name)
        ast.parse(path.read_text())
    return files, rows
