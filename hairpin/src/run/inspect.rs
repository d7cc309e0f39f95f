//! Looking at connections and rules from other threads, without disturbing the workers: the connection table lies in
//! shared memory, the rules in the kernel's maps.

use crate::control::{ClientFilter, ConnectionView, LatencyView, OffloadView, Page, Query};
use crate::status::Status;
use hairpin_core::config::Snapshot;
use hairpin_core::engine::Counters;
use hairpin_core::flow::{Direction, Protocol};
use hairpin_core::l4::connection::{Connection, Kept, Ledger, State};
use hairpin_core::table::slab::View;
use hairpin_core::time::Time;
use hairpin_linux::cpu;
use hairpin_linux::programs::RuleReader;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Connections of a page at most.
const PAGE_MAX: u32 = 10_000;
/// How long one page may be searched for; what has been found by then is the page.
const SEARCH_MAX: Duration = Duration::from_secs(1);
/// How many positions are looked at between looks at the clock.
const STRIDE: usize = 4096;

/// What other threads look with. Clones look at the same.
#[derive(Clone)]
pub(crate) struct Inspector {
    /// Each worker's part of the table.
    views: Arc<[View<Connection>]>,
    snapshot: Arc<RwLock<Arc<Snapshot>>>,
    rules: RuleReader,
    policy: &'static str,
    rules_max: [u32; 2],
}

impl Inspector {
    pub(crate) fn new(
        views: Vec<View<Connection>>,
        snapshot: Arc<Snapshot>,
        rules: RuleReader,
        policy: &'static str,
        rules_max: [u32; 2],
    ) -> Inspector {
        Inspector { views: views.into(), snapshot: Arc::new(RwLock::new(snapshot)), rules, policy, rules_max }
    }

    /// From now on names are those of `snapshot`.
    pub(crate) fn follow(&self, snapshot: Arc<Snapshot>) {
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A page of the connections that fit `query`. A cursor is worker and position: entries never move.
    pub(crate) fn connections(&self, query: &Query) -> Result<Page, String> {
        let snapshot = self.snapshot();
        let filter = Filter::of(query, &snapshot)?;
        let limit = query.limit.min(PAGE_MAX) as usize;
        let mut page = Page::default();
        let (now, begun) = (cpu::now(), Instant::now());
        let (mut worker, mut position) = place(query.cursor.unwrap_or(0));
        while let Some(view) = self.views.get(worker) {
            let used = view.used();
            while position < used {
                if let Some((_, connection)) = view.read(position as u32)
                    && filter.fits(&connection)
                {
                    if limit > 0 && page.connections.len() == limit {
                        page.next = Some(cursor(worker, position));
                        return Ok(page);
                    }
                    page.matched += 1;
                    if limit > 0 {
                        let view = self.look(now, &snapshot, worker, &connection)?;
                        page.connections.push(view);
                    }
                }
                position += 1;
                if position.is_multiple_of(STRIDE) && begun.elapsed() > SEARCH_MAX {
                    page.next = Some(cursor(worker, position));
                    return Ok(page);
                }
            }
            (worker, position) = (worker + 1, 0);
        }
        Ok(page)
    }

    fn look(
        &self,
        now: Time,
        snapshot: &Snapshot,
        worker: usize,
        connection: &Connection,
    ) -> Result<ConnectionView, String> {
        let mut packets_offloaded = [0; 2];
        let (mut packets, mut bytes) =
            (connection.carried.map(|volume| volume.packets), connection.carried.map(|volume| volume.bytes));
        let mut last_seen = connection.last_seen;
        for direction in [Direction::FromClient, Direction::FromBackend] {
            let way = direction as usize;
            if connection.rules & (1 << direction as u8) != 0
                && let Some(counters) = self.counters(connection, direction, now)?
            {
                packets_offloaded[way] = counters.packets;
                packets[way] += counters.packets;
                bytes[way] += counters.bytes;
                last_seen = last_seen.max(counters.last_seen.unwrap_or(Time::ZERO));
            }
        }
        let (service, backend) = match snapshot.backend(connection.backend_number) {
            Some((service, backend)) => (service.name.to_string(), backend.name.to_string()),
            None => (String::new(), String::new()),
        };
        Ok(ConnectionView {
            service,
            protocol: protocol(connection.protocol).to_string(),
            client: connection.client.to_string(),
            vip: connection.vip.to_string(),
            backend,
            backend_end: connection.backend.to_string(),
            source: (connection.source != connection.client).then(|| connection.source.to_string()),
            state: connection.state.name().to_string(),
            worker: worker as u16,
            offloaded: connection.ledger == Ledger::Offloaded,
            offload: self.reason(connection).to_string(),
            packets,
            bytes,
            packets_offloaded,
            age_s: now.since(connection.created).as_secs_f64(),
            idle_s: now.since(last_seen).as_secs_f64(),
        })
    }

    fn counters(&self, connection: &Connection, direction: Direction, now: Time) -> Result<Option<Counters>, String> {
        let counters = self.rules.counters(&connection.key(direction), now);
        counters.map_err(|error| format!("it cannot read the rules: {error:#}"))
    }

    /// Why a connection is, or is not, with the engine.
    fn reason(&self, connection: &Connection) -> &'static str {
        match (connection.ledger, connection.state) {
            (Ledger::Offloaded, _) => "offloaded",
            (Ledger::Installing, _) => "being handed to the engine",
            (Ledger::Removing, _) => "being taken back from the engine",
            (Ledger::Software, State::SynSent | State::SynReceived | State::UdpNew) => "not established yet",
            (Ledger::Software, State::Closed | State::Reset) => "over",
            (Ledger::Software, State::FinClient | State::FinBackend) => "closing",
            (Ledger::Software, _) if self.policy == "never" => "policy never",
            (Ledger::Software, _) => match connection.kept {
                Kept::Nothing => "waits for its next packet",
                Kept::Policy => "the policy keeps it",
                Kept::EngineFull => "the engine was full; it is offered again",
                Kept::QueueFull => "the queue to the engine was full; it is offered again",
                Kept::Unsupported => "the engine cannot do what it needs",
                Kept::Failed => "the engine failed; it is offered again",
            },
        }
    }

    /// The engine and what it holds.
    pub(crate) fn offload(&self, status: &Status) -> Result<OffloadView, String> {
        let [v4, v6, passes] = self.rules.count().map_err(|error| format!("it cannot read the rules: {error:#}"))?;
        let mut reasons: BTreeMap<&'static str, u64> = BTreeMap::new();
        let mut offloaded = 0;
        for view in self.views.iter() {
            for position in 0..view.used() as u32 {
                match view.read(position) {
                    Some((_, connection)) if connection.state == State::Pass => {}
                    Some((_, connection)) if connection.ledger == Ledger::Offloaded => offloaded += 1,
                    Some((_, connection)) => *reasons.entry(self.reason(&connection)).or_default() += 1,
                    None => {}
                }
            }
        }
        Ok(OffloadView {
            policy: self.policy.to_string(),
            engine: "kernel".to_string(),
            rules: [v4, v6],
            rules_max: self.rules_max.map(u64::from),
            passes,
            installed_total: status.offload.installed_total,
            installed_per_s: status.offload.installed_per_s,
            removed_total: status.offload.removed_total,
            latency_us: percentiles(&status.offload.latency),
            in_software: reasons.into_iter().map(|(reason, count)| (reason.to_string(), count)).collect(),
            offloaded,
        })
    }
}

/// Upper ends of the buckets in which the percentiles are.
fn percentiles(latency: &[(f64, u64)]) -> LatencyView {
    let count: u64 = latency.iter().map(|(_, count)| count).sum();
    let at = |share: f64| {
        let wanted = (count as f64 * share).ceil() as u64;
        let mut seen = 0;
        let bucket = latency.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted.max(1)
        });
        bucket.map_or(0.0, |(upper, _)| upper * 1e6)
    };
    LatencyView { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0), count }
}

fn cursor(worker: usize, position: usize) -> u64 {
    (worker as u64) << 32 | position as u64
}

fn place(cursor: u64) -> (usize, usize) {
    ((cursor >> 32) as usize, (cursor & u64::from(u32::MAX)) as usize)
}

fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

/// Which connections are wanted.
#[derive(Debug, Default)]
struct Filter {
    client: Option<ClientFilter>,
    service: Option<u16>,
    backends: Option<Vec<u16>>,
    state: Option<State>,
    offloaded: Option<bool>,
}

impl Filter {
    fn of(query: &Query, snapshot: &Snapshot) -> Result<Filter, String> {
        let service = query.service.as_ref().map(|name| {
            let number = snapshot.services.iter().position(|service| *service.name == **name);
            number.map(|number| number as u16).ok_or_else(|| {
                let names: Vec<&str> = snapshot.services.iter().map(|service| &*service.name).collect();
                unknown("service", name, &names)
            })
        });
        let backends = query.backend.as_ref().map(|name| {
            let all = snapshot.services.iter().flat_map(|service| &service.backends);
            let fit = all.clone().filter(|backend| *backend.name == **name || backend.endpoint.to_string() == *name);
            let numbers: Vec<u16> = fit.map(|backend| backend.number).collect();
            let names: Vec<&str> = all.map(|backend| &*backend.name).collect();
            if numbers.is_empty() { Err(unknown("backend", name, &names)) } else { Ok(numbers) }
        });
        let state = query.state.as_ref().map(|name| {
            let names: Vec<&str> = State::ALL.iter().map(|state| state.name()).collect();
            let state = State::ALL.into_iter().find(|state| state.name() == name);
            state.ok_or_else(|| unknown("state", name, &names))
        });
        Ok(Filter {
            client: query.client.as_deref().map(client).transpose()?,
            service: service.transpose()?,
            backends: backends.transpose()?,
            state: state.transpose()?,
            offloaded: query.offloaded,
        })
    }

    fn fits(&self, connection: &Connection) -> bool {
        let end = || SocketAddr::new(connection.client.address.into(), connection.client.port);
        let client = self.client.is_none_or(|client| client.fits(end()));
        // Pass entries are no connections; they are shown only to who asks for that state.
        let state = match self.state {
            Some(state) => connection.state == state,
            None => connection.state != State::Pass,
        };
        client
            && state
            && self.service.is_none_or(|service| connection.service == service)
            && self.backends.as_ref().is_none_or(|backends| backends.contains(&connection.backend_number))
            && self.offloaded.is_none_or(|offloaded| (connection.ledger == Ledger::Offloaded) == offloaded)
    }
}

fn unknown(what: &str, name: &str, names: &[&str]) -> String {
    match crate::config::nearest(name, names) {
        Some(near) => format!("there is no {what} \"{name}\"; did you mean \"{near}\"?"),
        None => format!("there is no {what} \"{name}\""),
    }
}

fn client(text: &str) -> Result<ClientFilter, String> {
    ClientFilter::parse(text).ok_or_else(|| {
        format!("\"{text}\" is no client; write 192.0.2.1, 192.0.2.0/24, 192.0.2.1:4000 or [2001:db8::1]:4000")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_core::flow::Endpoint;

    fn connection(client: &str, state: State) -> Connection {
        let end = |text: &str| {
            let end: std::net::SocketAddr = text.parse().unwrap();
            Endpoint::new(end.ip(), end.port())
        };
        let ends = [end(client), end("192.0.2.1:80"), end("10.0.0.1:8080"), end(client)];
        Connection::new(Time::ZERO, Protocol::Tcp, state, ends)
    }

    #[test]
    fn clients_are_named_by_address_net_or_end() {
        let fits = |text: &str, who: &str| {
            let filter = Filter { client: Some(client(text).unwrap()), ..Filter::default() };
            filter.fits(&connection(who, State::Established))
        };
        assert!(fits("198.51.100.7", "198.51.100.7:1"));
        assert!(!fits("198.51.100.7", "198.51.100.8:1"));
        assert!(fits("198.51.100.0/24", "198.51.100.8:1"));
        assert!(!fits("198.51.101.0/24", "198.51.100.8:1"));
        assert!(fits("0.0.0.0/0", "198.51.100.8:1"));
        assert!(!fits("0.0.0.0/0", "[2001:db8::1]:1"));
        assert!(fits("198.51.100.8:1", "198.51.100.8:1"));
        assert!(!fits("198.51.100.8:2", "198.51.100.8:1"));
        assert!(fits("2001:db8::/32", "[2001:db8:1::1]:1"));
        assert!(fits("::/0", "[2001:db8:1::1]:1"));
        assert!(fits("[2001:db8::1]:9", "[2001:db8::1]:9"));
        for wrong in ["", "x", "198.51.100.0/33", "::/129", "1.2.3.4:99999"] {
            assert!(client(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pass_entries_are_shown_only_on_request() {
        let all = Filter::default();
        assert!(!all.fits(&connection("198.51.100.7:1", State::Pass)));
        let passes = Filter { state: Some(State::Pass), ..Filter::default() };
        assert!(passes.fits(&connection("198.51.100.7:1", State::Pass)));
        assert!(!passes.fits(&connection("198.51.100.7:1", State::Established)));
    }

    #[test]
    fn percentiles_are_upper_ends_of_buckets() {
        let view = percentiles(&[(1e-6, 50), (2e-6, 40), (4e-6, 9), (8e-6, 1)]);
        assert_eq!((view.count, view.p50, view.p90, view.p99, view.max), (100, 1.0, 2.0, 4.0, 8.0));
        assert_eq!(percentiles(&[]), LatencyView::default());
    }

    #[test]
    fn cursors_go_there_and_back() {
        for (worker, position) in [(0, 0), (3, 17), (63, u32::MAX as usize)] {
            assert_eq!(place(cursor(worker, position)), (worker, position));
        }
    }
}
