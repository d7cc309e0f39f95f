"""A WebSocket client: websocket.py URL [ADDRESS]."""
import asyncio
import os
import sys
from urllib.parse import urlsplit

import websockets


async def main():
    url = sys.argv[1]
    there = {"host": sys.argv[2], "server_hostname": urlsplit(url).hostname} if len(sys.argv) > 2 else {}
    async with websockets.connect(url, max_size=None, **there) as socket:
        for i in range(500):
            message = os.urandom(i * i % 40000)
            await socket.send(message)
            assert await asyncio.wait_for(socket.recv(), 20) == message, i
        await socket.send("text")
        assert await asyncio.wait_for(socket.recv(), 20) == "text"
        large = os.urandom(5_000_000)
        await socket.send(large)
        assert await asyncio.wait_for(socket.recv(), 20) == large
        await asyncio.wait_for(await socket.ping(), 20)
    print("well")


asyncio.run(main())
