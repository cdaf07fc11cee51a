"""The server and the client as people write them, each fault one that is in use somewhere.

    server     a buffer without a drain, `[DONE]` from a `finally`, text put into a field as it is
    client     EOF is success, `splitlines`, every chunk decoded by itself
    heartbeat  `wait_for(anext)`, and a second task that writes beside the first

They are the other half of a scenario's test: a test that the naive one passes as well shows little.
Nothing in the package uses them.
"""
