"""The runtime: stages driven by an event loop (asyncio or trio, by anyio).

    source     any producer -> items; closes it whatever happens
    direct     source -> pipeline -> sink, in the task that serves the request
    stages     the stages as async iterators, for a server of your own
    sink       the two seams of a driver: what it drives, where the bytes go
    timing     time limits and the clock
    turns      whether the event loop has had a turn
    report     the Outcome, and giving it to the application
"""
