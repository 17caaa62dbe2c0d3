"""`python -m specmesh` is the command `specmesh`."""

from __future__ import annotations

import sys

from specmesh.rooms import put_first


def main() -> int:
    put_first()
    from services.cli.main import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
