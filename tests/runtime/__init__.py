"""The runtime, driven on asyncio and trio in virtual time: waiting costs nothing, and no test sleeps for luck."""
