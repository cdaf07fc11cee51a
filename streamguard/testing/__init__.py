"""Tools for tests of streams.

proxy      a TCP proxy that cuts, resets, stalls, delays and slows the responses that pass it
sockets    underneath it: non-blocking sockets that end as they are told
"""
