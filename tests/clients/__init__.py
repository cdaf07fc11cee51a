"""Clients that no one here wrote, in front of streams under a log."""
