# A server that fails whatever is asked of it: failing.py PORT reset|mute
import socket
import struct
import sys

port, how = int(sys.argv[1]), sys.argv[2]
server = socket.create_server(("", port))
kept = []
while True:
    connection, _ = server.accept()
    if how == "mute":
        kept.append(connection)
        continue
    connection.recv(65536)
    # Closing resets then.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
