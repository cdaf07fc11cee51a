"""The carriers, each by its own tests, fed whole, byte by byte, cut at random and with bytes after the end."""
