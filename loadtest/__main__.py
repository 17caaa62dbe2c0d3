"""`python -m loadtest` is `specmesh load`."""

import sys

from loadtest.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
