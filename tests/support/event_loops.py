"""The event loops that handlers may run on: Python's own, and uvloop's if that is installed."""

import asyncio

import uvloop

EVENT_LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
