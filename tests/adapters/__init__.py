"""Adapters on real servers, over real sockets."""
