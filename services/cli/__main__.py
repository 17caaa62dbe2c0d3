"""`python -m services.cli` is the command `specmesh`."""

from __future__ import annotations

import sys

from services.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
