"""A WebSocket echo: websocket_echo.py PORT."""
import asyncio
import sys

import websockets


async def echo(socket, *_):
    async for message in socket:
        await socket.send(message)


async def main():
    async with websockets.serve(echo, "0.0.0.0", int(sys.argv[1]), max_size=None):
        await asyncio.Future()


asyncio.run(main())
