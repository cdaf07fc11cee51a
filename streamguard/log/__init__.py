"""Where the frames of a resumable stream are stored: one store a module.

    base      what a log is: its methods, their preconditions and guarantees
    memory    in this process
    sqlite    in one file, for the processes of one machine
    redis     in Redis, for the processes of several

    kept      one stream in memory
    waits     how tasks of this process wait for a change, and are woken
"""
