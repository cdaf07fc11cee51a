"""The lab: what a lagging sender and a cut connection do to a streamed answer, without and with streamguard.

In the order in which data flows:

    model        seeded answers, and the record of what was generated
    unguarded    the endpoint as people write it
    guarded      the same, guarded
    servers      both as real uvicorn processes
    readers      client libraries, and what each takes for a whole answer
    load         the requests, and what became of each
    lab          the two experiments
    stats        intervals
    report       table, JSON, picture
    resume       the third experiment: streams that go on after every cut

and the same for the eye:

    relay        cuts and stalls what is streamed, when it is told to
    web          a page on which one answer is read by two, unguarded and guarded; its files are in `page`

`streamguard demo` runs it. Needs the extra: pip install "streamguard-io[demo]".
"""
