#!/usr/bin/python3
"""In a guest: transfers over faulty legs (netem), through Hairpin, through nginx and without a balancer.

    netem.py COUNT BYTES [FAULT...]

A client, the balancer and a server in a row, plain veth pairs between them. For each kind of fault, on the client's leg
alone and on both, COUNT downloads and COUNT uploads of BYTES go each of four ways: straight to the server, through nginx,
through an HTTP service and through a TCP service of Hairpin; the four at the same time, each transfer on a connection of
its own. Every body is compared by its checksum. What was measured goes to $OUT/netem.json; exit status 1: a transfer
failed. Whether Hairpin is as fast as nginx is reported only.
"""

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HERE = os.path.dirname(os.path.abspath(__file__))
SERVER, FRONT, VIP = "10.2.0.2", "10.1.0.1", "192.0.2.10"
PATHS = {
    "direct": f"http://{SERVER}",
    "nginx": f"http://{FRONT}:8081",
    "Hairpin, HTTP": f"http://{VIP}:8080",
    "Hairpin, layer 4": f"http://{VIP}",
}
# What each direction of a leg does to packets.
FAULTS = {
    "loss-10ms": "delay 10ms loss 1%",
    "loss-50ms": "delay 50ms loss 1%",
    "reordering": "delay 10ms reorder 5% 50%",
    "duplication": "delay 10ms duplicate 5%",
}
# Where packets get onto a leg: namespace (none: the balancer's own) and device.
CLIENTS_LEG = [("client", "eth0"), ("", "c0")]
SERVERS_LEG = [("server", "eth0"), ("", "s0")]
# Most that the median may be of nginx's.
BAR = 1.1
NGINX = """pid /run/%(name)s.pid; error_log stderr; daemon off; worker_processes 1; events {}
http {
  access_log off; client_max_body_size 0; client_body_temp_path /run/%(name)s-body; proxy_temp_path /run/%(name)s-proxy;
  fastcgi_temp_path /run/%(name)s-1; uwsgi_temp_path /run/%(name)s-2; scgi_temp_path /run/%(name)s-3;
  proxy_http_version 1.1; proxy_set_header Connection "";
  upstream behind { server %(behind)s; keepalive 16; }
  server { listen %(listen)s; %(locations)s }
}
"""
HAIRPIN = f"""interfaces = ["c0", "s0"]
[linux]
forwarding = "enable"
[pool]
addresses = ["10.2.0.1"]
[[service]]
name = "layer4"
listen = "{VIP}:80/tcp"
backends = ["{SERVER}:80"]
[[service]]
name = "http"
listen = "{VIP}:8080/http"
backends = ["{SERVER}:80"]
"""


def inside(namespace, *words):
    return (["ip", "netns", "exec", namespace] if namespace else []) + list(words)


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def start(name, words):
    with open(f"/run/{name}.log", "w") as log:
        return subprocess.Popen(words, stdout=log, stderr=log)


class Uploads(BaseHTTPRequestHandler):
    """Answers an upload with its checksum."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        left, digest = int(self.headers["Content-Length"]), hashlib.sha256()
        while left and (part := self.rfile.read(min(left, 1 << 16))):
            digest.update(part)
            left -= len(part)
        answer = digest.hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def network():
    for namespace, device, net in [("client", "c0", "10.1.0"), ("server", "s0", "10.2.0")]:
        run("ip", "netns", "add", namespace)
        run("ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        for place, name, end in [("", device, 1), (namespace, "eth0", 2)]:
            run(*inside(place, "ip", "address", "add", f"{net}.{end}/24", "dev", name))
            # As on a wire: what gets lost is 1,500 bytes, not the 64 kB that the kernel hands on at once.
            run(*inside(place, "ethtool", "-K", name, "gso", "off", "tso", "off", "gro", "off"))
            run(*inside(place, "ip", "link", "set", name, "up"))
        run("ip", "-n", namespace, "link", "set", "lo", "up")
        run("ip", "-n", namespace, "route", "add", "default", "via", f"{net}.1")
    with open("/proc/sys/net/ipv4/ip_forward", "w") as file:
        file.write("1")


def peers(page):
    """Starts the server, nginx and Hairpin."""
    os.makedirs("/run/pages", exist_ok=True)
    with open("/run/pages/page", "wb") as file:
        file.write(page)
    server = "location / { root /run/pages; } location = /up { proxy_pass http://behind; }"
    for name, namespace, listen, behind, locations in [
        ("server", "server", f"{SERVER}:80", "127.0.0.1:8000", server),
        ("nginx", "", f"{FRONT}:8081", f"{SERVER}:80", "location / { proxy_pass http://behind; }"),
    ]:
        with open(f"/run/{name}.conf", "w") as file:
            file.write(NGINX % {"name": name, "listen": listen, "behind": behind, "locations": locations})
        start(name, inside(namespace, "nginx", "-c", f"/run/{name}.conf"))
    start("uploads", inside("server", sys.executable, os.path.abspath(__file__), "serve"))
    with open("/run/hairpin.toml", "w") as file:
        file.write(HAIRPIN)
    balancer = start("hairpin", [f"{HERE}/hairpin", "run", "-c", "/run/hairpin.toml"])
    for path, url in PATHS.items():
        until = time.monotonic() + 60
        while subprocess.run(inside("client", "curl", "-sf", "-m", "5", "-o", "/dev/null", url + "/page")).returncode:
            if time.monotonic() > until:
                with open("/run/hairpin.log") as log:
                    sys.exit(f"{path}: no answer from {url}\n{log.read()}")
            time.sleep(0.5)
    return balancer


def set_faults(legs, fault):
    for namespace, device in CLIENTS_LEG + SERVERS_LEG:
        subprocess.run(inside(namespace, "tc", "qdisc", "del", "dev", device, "root"), capture_output=True)
        if (namespace, device) in legs:
            netem = ["root", "netem", "limit", "100000", *FAULTS[fault].split()]
            run(*inside(namespace, "tc", "qdisc", "add", "dev", device, *netem))


def transfers(direction, count, page):
    """Seconds of each of `count` transfers, by path; and what went wrong."""
    expected, running, failed = hashlib.sha256(page).hexdigest(), {}, []
    for number, (path, url) in enumerate(PATHS.items()):
        place = f"/run/transfers/{number}"
        os.makedirs(place, exist_ok=True)
        up = f'upload-file = "/run/pages/page"\nurl = "{url}/up"' if direction == "upload" else f'url = "{url}/page"'
        options = 'header = "Connection: close"\nheader = "Expect:"\nmax-time = 180\nsilent\n'
        each = options + up + '\nwrite-out = "%{{time_total}} %{{http_code}} %{{errormsg}}\\n"\noutput = "{}/{}"\n'
        with open(f"{place}/config", "w") as file:
            file.write("next\n".join(each.format(place, i) for i in range(count)))
        words = inside("client", "curl", "-K", f"{place}/config")
        running[path] = (place, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    seconds = {}
    for path, (place, curl) in running.items():
        lines = curl.communicate()[0].splitlines()
        seconds[path] = [float(line.split()[0]) for line in lines if line.split()[1:2] == ["200"]]
        failed += [f"{path}, {direction}: {line}" for line in lines if line.split()[1:2] != ["200"]]
        if len(lines) != count:
            failed.append(f"{path}, {direction}: {len(lines)} of {count} transfers")
        for i in range(count):
            try:
                with open(f"{place}/{i}", "rb") as file:
                    body = file.read()
            except OSError:
                body = b""
            found = body.decode(errors="replace") if direction == "upload" else hashlib.sha256(body).hexdigest()
            if found != expected:
                failed.append(f"{path}, {direction} {i}: {len(body)} bytes with another checksum")
            subprocess.run(["rm", "-f", f"{place}/{i}"])
    return seconds, failed


def rows(case, seconds, barred):
    """The form of the benchmarks' rows; where there is no bar, the figures alone."""
    medians = {path: statistics.median(values) if values else float("nan") for path, values in seconds.items()}
    for path in ("Hairpin, HTTP", "Hairpin, layer 4"):
        values, ours = sorted(seconds[path]), medians[path]
        ratio = ours / medians["nginx"]
        row = {"case": f"{case}: {path}", "unit": "s", "ours": ours}
        row["spread"] = (values[-1] - values[0]) / 2 / ours if values else None
        row |= {"beside": {peer: medians[peer] for peer in ("direct", "nginx")}, "against": "nginx"}
        row |= {"limit": medians["nginx"], "ratio": ratio, "bar": {"at_most": BAR} if barred else None}
        row["held"] = ratio <= BAR if barred else None
        verdict = {True: "held", False: "MISSED", None: "reported"}[row["held"]]
        print(f"{row['case']}: median {ours:.3f} s; nginx {medians['nginx']:.3f}, direct {medians['direct']:.3f};"
              f" ratio {ratio:.2f} ({verdict})", flush=True)
        yield row


def main(count, size, *faults):
    page = os.urandom(int(size))
    network()
    balancer = peers(page)
    done, failed, table = 0, [], []
    for fault in faults or FAULTS:
        for legs, name in [(CLIENTS_LEG, "the client's leg"), (CLIENTS_LEG + SERVERS_LEG, "both legs")]:
            set_faults(legs, fault)
            for direction in ("download", "upload"):
                seconds, wrong = transfers(direction, int(count), page)
                done, failed = done + sum(map(len, seconds.values())), failed + wrong
                table += rows(f"{fault} on {name}, {direction}", seconds, len(legs) == len(CLIENTS_LEG))
                for line in wrong[:10]:
                    print(f"FAILED: {line}", flush=True)
    set_faults([], "")
    print(run(f"{HERE}/hairpin", "status"))
    balancer.terminate()
    balancer.wait()
    with open(os.environ["OUT"] + "/netem.json", "w") as file:
        json.dump(table, file, indent=2)
    with open(os.environ["OUT"] + "/counts", "w") as file:
        file.write(f"{done} {len(failed)} 0\n")
    held = [row["held"] for row in table if row["held"] is not None]
    print(f"netem: {done} transfers arrived whole, {len(failed)} failed; bars held {held.count(True)} of {len(held)}")
    sys.exit(1 if failed else 0)


if sys.argv[1] == "serve":
    ThreadingHTTPServer(("127.0.0.1", 8000), Uploads).serve_forever()
main(*sys.argv[1:])
