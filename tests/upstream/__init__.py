"""Servers that others run, and what is read from them."""
