"""`python -m tests.proofs`."""

import sys

from tests.proofs.command import main

if __name__ == "__main__":
    sys.exit(main("tests.proofs"))
