"""Guarded answers on every server that is supported, each a process of its own."""
