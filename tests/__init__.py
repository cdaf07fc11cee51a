"""The tests. `python -m pytest` runs them; `python -m tests.proofs --list` names those of full size."""
