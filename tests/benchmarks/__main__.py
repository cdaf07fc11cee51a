"""`python -m tests.benchmarks`."""

import sys

from tests.proofs.command import main

if __name__ == "__main__":
    sys.exit(main("tests.benchmarks", all_by_default=True))
