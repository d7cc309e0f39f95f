// What is known of the instance, and what follows from two statuses: rates, latencies, histories. Nothing here draws.

// Seconds of history.
export const SPAN_S = 180;
// Points of a history at most.
const POINTS_MAX = 120;

class History {
  points = [];

  add(at, value) {
    if (value === null || !Number.isFinite(value)) return;
    this.points.push({ at, value });
    while (this.points.length > POINTS_MAX || this.points[0].at < at - SPAN_S) this.points.shift();
  }
}

export const isGroup = (service) => service.group_of !== undefined && service.group_of !== null;

export const backendKey = (service, backend) => `${service.name}\n${service.listen}\n${backend.name}\n${backend.address}`;
export const serviceKey = (service) => `${service.name}\n${service.listen}\n${service.state}`;

const bytes = (one) => one.software.bytes + one.offloaded.bytes;
const sum = (all, of) => all.reduce((total, one) => total + of(one), 0);
const responses = (backend) => sum(Object.entries(backend.responses ?? {}), ([kind, count]) => (kind === "1xx" ? 0 : count));

// Why a backend gets no new connections, or may not; empty: all is well.
export function trouble(backend) {
  if (backend.state === "removed") return "";
  if (backend.health.state === "down") return "down";
  return backend.state === "enabled" ? "" : backend.state;
}

// A percentile of a histogram, linearly within its bucket, in seconds; `null`: nothing was measured.
export function percentile(buckets, share) {
  const all = sum(buckets, ([, count]) => count);
  if (all === 0) return null;
  let left = share * all;
  for (const [upper, count] of buckets) {
    if (count >= left && count > 0) return upper / 2 + (upper / 2) * (left / count);
    left -= count;
  }
  return buckets[buckets.length - 1][0];
}

// What came into a histogram since it was `before`.
function since(buckets, before) {
  if (before === undefined) return [];
  const old = new Map(before);
  return buckets.map(([upper, count]) => [upper, Math.max(0, count - (old.get(upper) ?? 0))]);
}

function merged(histograms) {
  const all = new Map();
  for (const histogram of histograms) {
    for (const [upper, count] of histogram) all.set(upper, (all.get(upper) ?? 0) + count);
  }
  return [...all].sort((one, other) => one[0] - other[0]);
}

export class Model {
  status = null;
  offload = null;
  offloadError = "";
  events = [];
  // Seconds since 1970 by the instance's clock.
  now = 0;
  // The services that clients connect to, each with the groups behind it.
  trees = [];
  rates = new Map();
  totals = {};
  // Packets dropped and requests refused, by reason.
  drops = [];
  histories = {
    requests: new History(),
    latency: new History(),
    fresh: new History(),
    bits: new History(),
    connections: new History(),
    offloaded: new History(),
  };
  serviceHistories = new Map();
  #before = null;

  // Takes a status. Nothing changes if it is the one that was there.
  take(status, now) {
    this.now = now;
    const before = this.#before;
    const isSame = before !== null && before.pid === status.pid && status.uptime_s >= before.uptime;
    if (isSame && status.uptime_s === before.uptime) return;
    const seconds = isSame ? status.uptime_s - before.uptime : 0;
    const totals = new Map();
    this.rates = new Map();
    // The rate of a total, from the last status to this one; `first` stands for it where there is no last one.
    const rate = (key, total, first) => {
      totals.set(key, total);
      const old = isSame ? before.totals.get(key) : undefined;
      return old === undefined || total < old ? (first ?? null) : (total - old) / seconds;
    };
    this.status = status;
    this.trees = trees(status.services);
    const histograms = new Map();
    const latencies = [];
    for (const tree of this.trees) {
      const recent = this.#tree(tree, rate, histograms, isSame ? before.histograms : new Map());
      if (recent !== null) latencies.push(recent);
    }
    this.#all(status, rate, merged(latencies));
    this.#remember(status.uptime_s, isSame);
    this.#before = { pid: status.pid, uptime: status.uptime_s, totals, histograms };
  }

  // The rates of a service with its groups and backends; what its requests took since the last status.
  #tree({ service, groups }, rate, histograms, before) {
    for (const one of [service, ...groups]) {
      const key = serviceKey(one);
      for (const backend of one.backends) {
        const own = backendKey(one, backend);
        this.rates.set(own, {
          bits: rate(`${own}\nbytes`, bytes(backend) * 8, backend.software.bits_per_s + backend.offloaded.bits_per_s),
          offloaded: rate(`${own}\noffloaded`, backend.offloaded.bytes * 8, backend.offloaded.bits_per_s),
          fresh: rate(`${own}\nfresh`, backend.connections_total, backend.connections_per_s),
          requests: Object.keys(backend.responses ?? {}).length > 0 ? rate(`${own}\nrequests`, responses(backend)) : null,
        });
      }
      const parts = one.backends.map((backend) => this.rates.get(backendKey(one, backend)));
      const known = parts.filter((part) => part.requests !== null);
      this.rates.set(key, {
        bits: sum(parts, (part) => part.bits ?? 0),
        offloaded: sum(parts, (part) => part.offloaded ?? 0),
        fresh: rate(`${key}\nfresh`, one.connections_total, one.connections_per_s),
        requests: known.length > 0 ? sum(known, (part) => part.requests) : null,
      });
    }
    const rates = this.rates.get(serviceKey(service));
    for (const group of groups) {
      const of = this.rates.get(serviceKey(group));
      rates.bits += of.bits;
      rates.offloaded += of.offloaded;
    }
    if (service.requests) rates.requests = rate(`${serviceKey(service)}\nrequests`, service.requests.total, service.requests.per_s);
    if (!service.times) return null;
    const key = serviceKey(service);
    histograms.set(key, service.times.to_response_buckets);
    const recent = since(service.times.to_response_buckets, before.get(key));
    rates.latency = percentile(recent, 0.99);
    return recent;
  }

  #all(status, rate, latencies) {
    const http = status.http;
    const of = (which) => sum(this.trees, ({ service }) => this.rates.get(serviceKey(service))[which] ?? 0);
    const answers = Object.entries(http?.responses ?? {}).filter(([kind]) => kind !== "1xx");
    const byKind = answers.map(([kind, count]) => [kind, rate(`all\n${kind}`, count.total, count.per_s)]);
    const all = sum(byKind, ([, perSecond]) => perSecond ?? 0);
    const [bitsPerS, offloaded] = [of("bits"), of("offloaded")];
    const services = status.services;
    const packets = (which) => sum(services, (service) => service[which].packets);
    this.totals = {
      requests: http ? rate("all\nrequests", http.requests.total, http.requests.per_s) : null,
      errors: all > 0 ? sum(byKind.filter(([kind]) => kind === "5xx"), ([, perSecond]) => perSecond ?? 0) / all : null,
      median: percentile(latencies, 0.5),
      latency: percentile(latencies, 0.99),
      fresh: of("fresh"),
      all: sum(this.trees, ({ service }) => service.connections_total),
      bits: bitsPerS,
      connections: sum(this.trees, ({ service }) => service.connections),
      offloaded: bitsPerS > 0 ? offloaded / bitsPerS : null,
      bitsOffloaded: offloaded,
      packetsSoftware: rate("all\nsoftware", packets("software"), sum(services, (one) => one.software.packets_per_s)),
      packetsOffloaded: rate("all\nengine", packets("offloaded"), sum(services, (one) => one.offloaded.packets_per_s)),
    };
    const drops = Object.entries(status.drops).map(([name, count]) => ["packets", name, count]);
    const refused = Object.entries(http?.refused ?? {}).map(([name, count]) => ["requests", name, count]);
    this.drops = [...drops, ...refused].map(([what, name, count]) => {
      return { what, name, total: count.total, perS: rate(`${what}\n${name}`, count.total, count.per_s) };
    });
  }

  #remember(at, isSame) {
    if (!isSame) {
      // Another process began: its time, and what it counts, begin anew.
      for (const history of [...Object.values(this.histories), ...this.serviceHistories.values()]) history.points = [];
    }
    for (const [name, history] of Object.entries(this.histories)) history.add(at, this.totals[name] ?? null);
    const histories = new Map();
    for (const { service, groups } of this.trees) {
      for (const one of [service, ...groups]) {
        const key = serviceKey(one);
        const history = this.serviceHistories.get(key) ?? new History();
        const rates = this.rates.get(key);
        history.add(at, rates.requests ?? rates.bits);
        histories.set(key, history);
      }
    }
    this.serviceHistories = histories;
  }
}

// Groups stand behind their service.
function trees(services) {
  const trees = [];
  for (const service of services) {
    const of = trees[trees.length - 1];
    if (isGroup(service) && of !== undefined && of.service.name === service.group_of) of.groups.push(service);
    else trees.push({ service, groups: [] });
  }
  for (const tree of trees) {
    const all = [tree.service, ...tree.groups].flatMap((one) => one.backends).filter((one) => one.state !== "removed");
    tree.backends = all.length;
    tree.troubled = all.filter((backend) => trouble(backend) !== "").length;
    tree.down = all.filter((backend) => trouble(backend) === "down").length;
  }
  return trees;
}
