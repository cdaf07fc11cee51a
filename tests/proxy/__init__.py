"""The proxy, over real sockets: servers behind it, and clients in front."""
