"""The core's tests: one file per module, without an event loop."""
