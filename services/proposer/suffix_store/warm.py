"""Compiles all loops of a proposer and keeps them on disk: when an image is built, so that its containers needn't.

    python -m services.proposer.suffix_store.warm       0: all are compiled

Each is called once as the proposer calls it, with next to no text: what it is called with is what it is compiled for.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from services.proposer.suffix_store import compiling
from services.proposer.suffix_store.segment import Segment, merge


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
