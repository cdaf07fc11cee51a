"""Streams in real processes: workers on ports of their own, over one log, that are killed and stopped."""
