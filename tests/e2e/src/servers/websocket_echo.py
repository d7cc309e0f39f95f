"""A WebSocket echo: websocket_echo.py PORT [PEM]; with TLS by that certificate and key."""
import asyncio
import ssl
import sys

import websockets


async def echo(socket, *_):
    async for message in socket:
        await socket.send(message)


async def main():
    context = None
    if len(sys.argv) > 2:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2])
    async with websockets.serve(echo, "0.0.0.0", int(sys.argv[1]), max_size=None, ssl=context):
        await asyncio.Future()


asyncio.run(main())
