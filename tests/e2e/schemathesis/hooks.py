"""Has schemathesis send writes that are made of the version in force, so that they are judged, and not refused as old ones.

Every fourth write keeps the version that was made up for it.
"""

import http.client
import itertools

import schemathesis

WRITES = {"PUT", "PATCH", "DELETE", "POST"}
NUMBERS = itertools.count()


def version(base):
    host = base.split("//", 1)[-1].split("/", 1)[0]
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("GET", "/v1/services")
        return connection.getresponse().headers["ETag"]
    finally:
        connection.close()


@schemathesis.hook
def before_call(context, case, **kwargs):
    if case.method.upper() in WRITES and "If-Match" in (case.headers or {}) and next(NUMBERS) % 4:
        case.headers["If-Match"] = version(case.operation.base_url or "")
