#!/usr/bin/python3
"""Traffic through a balancer, all of it compared, for as long as other things happen.

    traffic.py serve ADDRESS PORT         answers each line with the same line
    traffic.py send ADDRESS PORT URL PAGE RECORD

`send` keeps connections to ADDRESS:PORT, each of which says something five times a second and waits for the answer; and
asks for URL on one connection after the other, comparing each answer with the file PAGE. RECORD is written anew all the
time: how many answers each connection has had, how many requests were answered, and what failed. It ends by SIGTERM.
"""

import asyncio
import json
import os
import signal
import sys
import time
import urllib.parse

SESSIONS = 8
LANES = 4
# Longer than the kernel tries to connect: a SYN that met no process for a minute is sent for the last time after 127 s.
PATIENCE = 280.0


async def serve(address, port):
    async def answer(reader, writer):
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, address, int(port))
    await server.serve_forever()


class Record:
    def __init__(self, path):
        self.path, self.sessions, self.requests, self.failed = path, [0] * SESSIONS, 0, []

    def fail(self, what, error):
        self.failed.append(f"{time.strftime('%H:%M:%S')} {what}: {type(error).__name__} {error}")

    async def write(self):
        while True:
            record = {"sessions": self.sessions, "requests": self.requests, "failed": self.failed}
            with open(self.path + ".new", "w") as file:
                json.dump(record, file)
            os.replace(self.path + ".new", self.path)
            await asyncio.sleep(0.2)


async def session(record, number, address, port):
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port), PATIENCE)
        while True:
            line = b"session %d says %d\n" % (number, record.sessions[number])
            writer.write(line)
            answer = await asyncio.wait_for(reader.readline(), PATIENCE)
            if answer != line:
                raise ValueError(f"sent {line}, received {answer}")
            record.sessions[number] += 1
            await asyncio.sleep(0.2)
    except (OSError, ValueError, asyncio.TimeoutError) as error:
        record.fail(f"connection {number}, after {record.sessions[number]} answers", error)


async def fetch(url, page):
    reader, writer = await asyncio.open_connection(url.hostname, url.port or 80)
    head = f"GET {url.path} HTTP/1.1\r\nHost: {url.hostname}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.read(-1)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 ") or body != page:
        raise ValueError(f"{len(body)} bytes after {head[:100]}")


async def lane(record, url, page):
    while True:
        try:
            await asyncio.wait_for(fetch(url, page), PATIENCE)
            record.requests += 1
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            record.fail("request", error)
        await asyncio.sleep(0.3)


async def send(address, port, url, page, path):
    with open(page, "rb") as file:
        page = file.read()
    record, url = Record(path), urllib.parse.urlsplit(url)
    tasks = [session(record, number, address, int(port)) for number in range(SESSIONS)]
    tasks += [lane(record, url, page) for _ in range(LANES)] + [record.write()]
    running = asyncio.gather(*tasks)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        pass


if __name__ == "__main__":
    asyncio.run({"serve": serve, "send": send}[sys.argv[1]](*sys.argv[2:]))
