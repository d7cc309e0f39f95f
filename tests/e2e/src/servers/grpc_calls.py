"""A gRPC server and a client that checks it, without generated code: messages are bytes.

grpc_calls.py serve ADDRESS NAME [PEM]     serves until killed; PEM: over TLS, with chain and key in this file
grpc_calls.py ask ADDRESS CALLS [PEM NAME [AUTHORIZATION]]
                                           checks every kind of call, then makes CALLS calls and prints who answered how often;
                                           PEM: over TLS, with this CA, for the name NAME, with this field `authorization`
grpc_calls.py code ADDRESS PEM NAME        makes one call, likewise without a field, and prints the code that it ends with
"""
import collections
import concurrent.futures
import sys
import threading
import time

import grpc

PREFIX = "/shop.Cart/"
PART = b"0123456789abcdef" * 65536  # 1 MiB
ended = threading.Semaphore(0)


def options():
    return [("grpc.max_receive_message_length", 8 << 20), ("grpc.max_send_message_length", 8 << 20)]


class Cart(grpc.GenericRpcHandler):
    def __init__(self, name):
        self.name = name

    def service(self, details):
        kinds = {
            "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
            "Down": grpc.unary_stream_rpc_method_handler(self.down),
            "Up": grpc.stream_unary_rpc_method_handler(self.up),
            "Both": grpc.stream_stream_rpc_method_handler(self.both),
            "Fails": grpc.unary_unary_rpc_method_handler(self.fails),
            "Sleeps": grpc.unary_unary_rpc_method_handler(self.sleeps),
            "Ended": grpc.unary_unary_rpc_method_handler(self.ended),
            "Check": grpc.unary_unary_rpc_method_handler(lambda request, context: b"\x08\x01"),
        }
        return kinds.get(details.method.rsplit("/", 1)[1])

    def echo(self, request, context):
        context.set_trailing_metadata((("server", self.name), ("bytes-bin", b"\x00\xff")))
        return request

    def down(self, request, context):
        for _ in range(int(request)):
            yield PART

    def up(self, requests, context):
        return str(sum(len(request) for request in requests)).encode()

    def both(self, requests, context):
        for request in requests:
            yield request

    def fails(self, request, context):
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it is closed; 50 % ä")

    def sleeps(self, request, context):
        context.add_callback(ended.release)
        while context.is_active():
            time.sleep(0.01)
        return b""

    def ended(self, request, context):
        return b"yes" if ended.acquire(timeout=2) else b"no"


def serve(address, name, pem=None):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=32), options=options())
    server.add_generic_rpc_handlers((Cart(name),))
    if pem is None:
        bound = server.add_insecure_port(address)
    else:
        chain = open(pem, "rb").read()
        bound = server.add_secure_port(address, grpc.ssl_server_credentials([(chain, chain)]))
    if bound == 0:
        sys.exit(f"cannot listen on {address}")
    server.start()
    server.wait_for_termination()


def check(holds, what):
    if not holds:
        sys.exit(f"wrong: {what}")


def status_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def channel_to(address, pem=None, name=None, authorization=None):
    if pem is None:
        return grpc.insecure_channel(address, options=options())
    credentials = grpc.ssl_channel_credentials(open(pem, "rb").read())
    if authorization is not None:
        field = lambda context, callback: callback((("authorization", authorization),), None)
        credentials = grpc.composite_channel_credentials(credentials, grpc.metadata_call_credentials(field))
    return grpc.secure_channel(address, credentials, options() + [("grpc.ssl_target_name_override", name)])


def code(address, *tls):
    echo = channel_to(address, *tls).unary_unary(PREFIX + "Echo")
    print(status_of(lambda: echo(b"x", timeout=20))[0].name)


def ask(address, calls, *tls):
    channel = channel_to(address, *tls)
    echo = channel.unary_unary(PREFIX + "Echo")
    for size in (0, 1, 100_000, 1 << 20, 4 << 20):
        sent = PART * 4
        check(echo(sent[:size], timeout=20) == sent[:size], f"a message of {size} bytes")
    _, call = echo.with_call(b"x", timeout=20)
    trailers = dict(call.trailing_metadata())
    check(trailers.get("bytes-bin") == b"\x00\xff", f"trailers {trailers}")
    down = channel.unary_stream(PREFIX + "Down")
    check([len(part) for part in down(b"20", timeout=20)] == [len(PART)] * 20, "a stream down")
    up = channel.stream_unary(PREFIX + "Up")
    check(up((PART for _ in range(20)), timeout=20) == str(20 * len(PART)).encode(), "a stream up")

    # Each message is sent when the one before has come back.
    come, count = threading.Semaphore(1), 200
    def messages():
        for at in range(count):
            come.acquire()
            yield b"message %d" % at
    answers = []
    for answer in channel.stream_stream(PREFIX + "Both")(messages(), timeout=20):
        answers.append(answer)
        come.release()
    check(answers == [b"message %d" % at for at in range(count)], "a stream both ways")

    status = status_of(lambda: channel.unary_unary(PREFIX + "Fails")(b"", timeout=20))
    check(status == (grpc.StatusCode.FAILED_PRECONDITION, "it is closed; 50 % ä"), f"an error: {status}")
    status = status_of(lambda: channel.unary_unary(PREFIX + "Missing")(b"", timeout=20))
    check(status[0] == grpc.StatusCode.UNIMPLEMENTED, f"a method that is not there: {status}")
    status = status_of(lambda: channel.unary_unary("/other.Service/Method")(b"", timeout=20))
    check(status[0] == grpc.StatusCode.UNIMPLEMENTED, f"a service without a route: {status}")

    sleeps = channel.unary_unary(PREFIX + "Sleeps")
    status = status_of(lambda: sleeps(b"", timeout=0.3))
    check(status[0] == grpc.StatusCode.DEADLINE_EXCEEDED, f"a deadline: {status}")
    ended_of = channel.unary_unary(PREFIX + "Ended")
    check(b"yes" in [ended_of(b"", timeout=20) for _ in range(2)], "the server hears of the deadline")
    future = sleeps.future(b"", timeout=20)
    time.sleep(0.2)
    future.cancel()
    check(b"yes" in [ended_of(b"", timeout=20) for _ in range(2)], "the server hears of a cancelled call")

    counts = collections.Counter()
    for _ in range(calls):
        _, call = echo.with_call(b"x", timeout=20)
        counts[dict(call.trailing_metadata())["server"]] += 1
    print(" ".join(f"{name}={count}" for name, count in sorted(counts.items())))


if __name__ == "__main__":
    {"serve": serve, "code": code, "ask": lambda address, calls, *tls: ask(address, int(calls), *tls)}[sys.argv[1]](*sys.argv[2:])
