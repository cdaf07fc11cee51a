"""The runtime: stages driven by an event loop (asyncio or trio, by anyio).

    source     any producer -> items; closes it whatever happens
    threads    a sync producer, on a thread of its own
    ahead      an async producer that runs ahead of its reader
    push       a source that is pushed to, from a callback or a thread
    buffer     the hand-over buffer that these three share
    closing    what a source came from, closed
    wakeup     calls into an event loop from outside of it
    direct     source -> pipeline -> sink, in one task
    stages     the stages as async iterators, for a server of your own
    connection one connection as a driver sees it: opened, written to, ended once
    watch      the clock of one connection: heartbeat, flush, stall and write deadlines
    alarm      the clock's sleep: until a time, or until it is woken
    first_wait an awaitable that tells when it first waits
    ending     the last words of a stream, and the parting after them
    sink       the two seams of a driver: what it drives, where the bytes go
    patience   how long a source that is told to stop is waited for
    cancellation  whether somebody outside asked the driver to stop
    timing     time limits and the clock
    turns      whether the event loop has had a turn
    pressure   how late the loop is, and what a connection has not sent
    report     the Outcome, and giving it to the application
    lead       how far a stream is generated ahead of its readers
    sweep      what a log may forget is forgotten
"""
