"""Benchmarks: what the library costs, as ratios to what people use today.

    python -m tests.benchmarks [NAME ...] [--list] [--json]

They are proofs too (`tests/proofs`): each has a claim, interleaved pairs, a seed, and a page in `docs/proofs`.
A module of this package holds one subject; it measures with `tests.proofs.measure.ratio`.
"""
