"""A guard in front of any server of streams: the command `streamguard proxy UPSTREAM`.

    headers    which headers go on, by RFC 9110, section 7.6.1
    front      what is refused before anything else sees it
    asking     whether a request asks for a stream, by its body
    upstream   where the upstream is, what it answered, how it failed
    network    connections over asyncio's protocols, for httpcore
    pool       the upstream over httpcore, which httpx is made of
    relay      one request, passed through to the byte
    app        the application: front, GuardMiddleware, relay
    command    the options
    server     uvicorn
    scraped    /metrics, at an address of its own
    telemetry  OpenTelemetry's SDK
    run        the command

`relay` knows no library and no guard; `GuardMiddleware` knows no upstream. What guards a stream is all in the latter.
"""
