"""Servers that others run, as sources: each speaks one API of theirs, and is read to a proven end."""
