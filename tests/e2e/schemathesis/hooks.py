"""Has schemathesis send writes that are made of the version in force and are of what there is, so that they are judged, and not refused
as old ones or for a name that nothing has.

Every fourth write keeps the version that was made up for it, every third one the names.
"""

import http.client
import itertools

import schemathesis

WRITES = {"PUT", "PATCH", "DELETE", "POST"}
NUMBERS = itertools.count()
# What the configuration of the test has.
NAMES = {"service": "web", "backend": "one"}


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
    if case.method.upper() not in WRITES or "If-Match" not in (case.headers or {}):
        return
    number = next(NUMBERS)
    if number % 4:
        case.headers["If-Match"] = version(case.operation.base_url or "")
    if number % 3:
        names = case.path_parameters or {}
        names.update({name: value for name, value in NAMES.items() if name in names})
