"""Proofs: the claims of the documentation at their full size.

    python -m tests.proofs --list
    python -m tests.proofs NAME [NAME ...] [--seed N] [--json]

Tests are small and always run; a proof is the same claim with the numbers that the claim names. It is
bounded in time, seeded, prints its tables, and writes `docs/proofs/NAME.md`.

    registry    what a proof is: a function with a claim, in a module of this package
    report      its result as text, as a page and as JSON
    measure     ratios that a noisy machine cannot fake
    command     the command line, shared with `tests.benchmarks`
"""
