"""Streams in real processes: workers on ports of their own, over one file, that are killed and stopped."""
