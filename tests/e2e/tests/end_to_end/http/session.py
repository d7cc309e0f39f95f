"""A session of requests: session.py PAGES-HOST ROUTES-HOST DIRECTORY."""
import sys

import requests

pages, routes, directory = sys.argv[1:]
session = requests.Session()
for i in range(100):
    name = ["1k", "128k", "1k", "10m"][i % 4] if i < 40 else "1k"
    answer = session.get(f"http://{pages}/{name}", timeout=20)
    answer.raise_for_status()
    assert answer.content == open(f"{directory}/{name}", "rb").read(), name
for i in range(100):
    path, server = [("/x", "one"), ("/two/x", "two"), ("/x.png", "three")][i % 3]
    answer = session.post(f"http://{routes}{path}?n={i}", data=b"x" * (i * 100), timeout=20)
    assert answer.headers["X-Server"] == server, (path, answer.headers)
    assert answer.headers["X-Body"].split(":")[0] == str(i * 100), answer.headers
    assert answer.text.startswith(f"POST {path}?n={i} "), answer.text
answer = session.get(f"http://{routes}/moved", timeout=20, allow_redirects=False)
assert answer.status_code == 301, answer
print("well")
