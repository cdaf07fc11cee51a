"""Logs: the contract, a model, and each store."""
