"""Compiles all loops of the proposer and keeps them on disk, for a container image whose containers then only load
them.

    python -m services.proposer.fast.warm       0: all are compiled

Each loop is called once with the types that the proposer calls it with.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from services.proposer.fast import compiling
from services.proposer.fast.segments.segment import Segment, merge


def main() -> int:
    compiling.start().join()
    with tempfile.TemporaryDirectory() as folder:
        parts = [Segment.build([[1, 2, 1], [3]], Path(folder) / str(number)) for number in range(2)]
        merge(parts, Path(folder) / "merged").close()
        for part in parts:
            part.close()
    return 0 if compiling.is_compiled() else 1


if __name__ == "__main__":
    sys.exit(main())
