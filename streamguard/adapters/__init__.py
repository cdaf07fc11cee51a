"""Frameworks: one module each, a few lines over the same verbs. None holds logic of its own.

    asgi        a guarded answer as an ASGI application; needs no framework
    seal        the outermost layer that keeps an abort an abort
    middleware  GuardMiddleware, for applications that stream already
    transport   what can be reached of a server's transport
    starlette   GuardedResponse, @guarded
    fastapi     the same for endpoints with parameters and models
"""
