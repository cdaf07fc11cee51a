"""Situations that people who run streaming services met, each as a test. `tests/scenarios.toml` maps them.

Most run twice: on the stages of the core, and on the server and client of `tests/naive`, where the test must
fail. What the core alone can show is here, without an event loop, a socket or a clock.
"""
