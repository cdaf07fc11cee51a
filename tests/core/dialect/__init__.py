"""The dialects, each by its own tests."""
