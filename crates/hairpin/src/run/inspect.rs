//! Queries for connections and rules from other threads, without disturbing the workers: the connection table lies in
//! shared memory, the rules in the kernel's maps. For connections of HTTP and TLS services the workers are asked
//! (`splices`), for those of services that end here the cores' runtimes (`terminated`).

mod filter;
mod splices;
mod terminated;

use super::plane::{MARKS, Plane, RuleQueries};
use super::thread::ThreadShared;
use crate::control::{ConnectionView, LatencyView, OffloadView, Page, Query};
use crate::status::Status;
use filter::ConnectionFilter;
use hairpin_core::config::Snapshot;
use hairpin_core::engine::Counters;
use hairpin_core::flow::{Direction, FlowKey, Protocol};
use hairpin_core::l4::connection::{Connection, Kept, State};
use hairpin_core::offload::OffloadState;
use hairpin_core::table::slab::SlabView;
use hairpin_core::time::Time;
use hairpin_https::ConnectionLister;
use hairpin_linux::cpu;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Connections of a page at most.
pub(crate) const PAGE_MAX: u32 = 10_000;
/// How long one page may be searched for; what has been found by then is the page.
pub(crate) const SEARCH_MAX: Duration = Duration::from_secs(1);
/// How many positions are looked at between looks at the clock.
const STRIDE: usize = 4096;
/// Cursors from here on are of connections of HTTP and TLS services. (Numbers in JSON are exact up to 2^53.)
const SPLICED: u64 = 1 << 48;
/// Cursors from here on are of connections of services that end here.
const TERMINATED: u64 = 1 << 49;

/// Handle for queries from other threads. Clones look at the same.
#[derive(Clone)]
pub(crate) struct Inspector {
    /// Each worker's part of the table.
    views: Arc<[SlabView<Connection>]>,
    snapshot: Arc<RwLock<Arc<Snapshot>>>,
    engine: EngineView,
    policy: &'static str,
    workers: Arc<[Arc<ThreadShared>]>,
    /// How the terminating path is asked; `None`: no service ends here.
    lister: Arc<RwLock<Option<ConnectionLister>>>,
}

/// How the flow engine is looked at.
#[derive(Clone)]
pub(crate) struct EngineView {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its rules; `None`: it has none.
    pub(crate) rules: Option<Arc<dyn RuleQueries>>,
    /// Rules there can be: IPv4, IPv6.
    pub(crate) rules_max: [u32; 2],
}

impl EngineView {
    /// The plane's.
    pub(crate) fn of(plane: &dyn Plane) -> EngineView {
        EngineView { name: plane.engine(), rules: plane.rule_reader(), rules_max: plane.rules_max() }
    }
}

impl Inspector {
    pub(crate) fn new(
        views: Vec<SlabView<Connection>>,
        snapshot: Arc<Snapshot>,
        engine: EngineView,
        policy: &'static str,
        workers: Vec<Arc<ThreadShared>>,
    ) -> Inspector {
        let snapshot = Arc::new(RwLock::new(snapshot));
        Inspector { views: views.into(), snapshot, engine, policy, workers: workers.into(), lister: Arc::default() }
    }

    /// From now on names are those of `snapshot`.
    pub(crate) fn follow(&self, snapshot: Arc<Snapshot>) {
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    /// From now on connections of services that end here are asked for so.
    pub(crate) fn ask_terminated(&self, lister: Option<ConnectionLister>) {
        *self.lister.write().unwrap_or_else(PoisonError::into_inner) = lister;
    }

    fn lister(&self) -> Option<ConnectionLister> {
        self.lister.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A page of the connections that fit `query`. A cursor is worker and position: entries never move. Those of HTTP and
    /// TLS services come behind all others.
    pub(crate) fn connections(&self, query: &Query) -> Result<Page, String> {
        let snapshot = self.snapshot();
        let filter = ConnectionFilter::of(query, &snapshot)?;
        let search = ConnectionSearch {
            limit: query.limit.min(PAGE_MAX) as usize,
            now: cpu::now(),
            begun: Instant::now(),
            snapshot: &snapshot,
            filter: &filter,
        };
        let mut page = Page::default();
        let start = query.cursor.unwrap_or(0);
        if start < SPLICED {
            page = self.tracked(&search, place(start))?;
        }
        if page.next.is_none() && start < TERMINATED {
            self.spliced(&search, place(start.saturating_sub(SPLICED)), &mut page)?;
        }
        if page.next.is_none() {
            self.terminated(&search, place(start.saturating_sub(TERMINATED)), &mut page)?;
        }
        Ok(page)
    }

    /// A page of the table's connections.
    fn tracked(
        &self,
        search: &ConnectionSearch<'_>,
        (mut worker, mut position): (usize, usize),
    ) -> Result<Page, String> {
        let ConnectionSearch { limit, now, begun, snapshot, filter } = *search;
        let mut page = Page::default();
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
                        let view = self.query(now, snapshot, worker, &connection)?;
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

    fn query(
        &self,
        now: Time,
        snapshot: &Snapshot,
        worker: usize,
        connection: &Connection,
    ) -> Result<ConnectionView, String> {
        let (mut packets_offloaded, mut bytes_offloaded) = ([0; 2], [0; 2]);
        let (mut packets, mut bytes) =
            (connection.forwarded.map(|volume| volume.packets), connection.forwarded.map(|volume| volume.bytes));
        let mut last_seen = connection.last_seen;
        for direction in [Direction::FromClient, Direction::FromBackend] {
            let index = direction as usize;
            if connection.pair.holds(direction)
                && let Some(counters) = self.counters(&connection.key(direction), now)?
            {
                packets_offloaded[index] = counters.packets;
                bytes_offloaded[index] = counters.bytes;
                packets[index] += counters.packets;
                bytes[index] += counters.bytes;
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
            offloaded: connection.pair.state() == OffloadState::Offloaded && !self.only_marks(),
            offload: self.reason(connection).to_string(),
            packets,
            bytes,
            packets_offloaded,
            bytes_offloaded,
            age_s: now.since(connection.created).as_secs_f64(),
            idle_s: now.since(last_seen).as_secs_f64(),
            spliced: None,
        })
    }

    fn counters(&self, key: &FlowKey, now: Time) -> Result<Option<Counters>, String> {
        let Some(rules) = &self.engine.rules else { return Ok(None) };
        rules.counters(key, now).map_err(|error| format!("it cannot read the rules: {error:#}"))
    }

    /// Whether the engine's rules leave packets to the workers.
    fn only_marks(&self) -> bool {
        self.engine.name == MARKS
    }

    /// Why a connection is, or is not, with the engine.
    fn reason(&self, connection: &Connection) -> &'static str {
        match (connection.pair.state(), connection.state) {
            (OffloadState::Offloaded, _) if self.only_marks() => "a worker forwards it, by the card's marks",
            (OffloadState::Offloaded, _) => "offloaded",
            (OffloadState::Installing, _) => "being handed to the engine",
            (OffloadState::Removing, _) => "being taken back from the engine",
            (OffloadState::Software, State::SynSent | State::SynReceived | State::UdpNew) => "not established yet",
            (OffloadState::Software, State::Closed | State::Reset) => "over",
            (OffloadState::Software, State::FinClient | State::FinBackend) => "closing",
            (OffloadState::Software, _) if self.policy == "never" => "policy never",
            (OffloadState::Software, _) => match connection.kept {
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
        let counts = self.engine.rules.as_ref().map_or(Ok([0; 3]), |rules| rules.count());
        let [v4, v6, passes] = counts.map_err(|error| format!("it cannot read the rules: {error:#}"))?;
        let mut reasons: BTreeMap<&'static str, u64> = BTreeMap::new();
        let mut offloaded = 0;
        for view in self.views.iter() {
            for position in 0..view.used() as u32 {
                match view.read(position) {
                    Some((_, connection)) if connection.state == State::Pass => {}
                    Some((_, connection))
                        if connection.pair.state() == OffloadState::Offloaded && !self.only_marks() =>
                    {
                        offloaded += 1
                    }
                    Some((_, connection)) => *reasons.entry(self.reason(&connection)).or_default() += 1,
                    None => {}
                }
            }
        }
        let is_whole = self.count_spliced(&mut reasons, &mut offloaded)? & self.count_terminated(&mut reasons)?;
        Ok(OffloadView {
            policy: self.policy.to_string(),
            engine: self.engine.name.to_string(),
            rules: [v4, v6],
            rules_max: self.engine.rules_max.map(u64::from),
            passes,
            installed_total: status.offload.installed_total,
            installed_per_s: status.offload.installed_per_s,
            removed_total: status.offload.removed_total,
            latency_us: LatencyView::of(&status.offload.latency),
            in_software: reasons.into_iter().map(|(reason, count)| (reason.to_string(), count)).collect(),
            offloaded,
            is_part: !is_whole,
        })
    }
}

/// The connection that is searched for.
struct ConnectionSearch<'a> {
    /// Connections of a page at most; 0: they are only counted.
    limit: usize,
    now: Time,
    begun: Instant,
    snapshot: &'a Snapshot,
    filter: &'a ConnectionFilter,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_upper_ends_of_buckets() {
        let view = LatencyView::of(&[(1e-6, 50), (2e-6, 40), (4e-6, 9), (8e-6, 1)]);
        assert_eq!((view.count, view.p50, view.p90, view.p99, view.max), (100, 1.0, 2.0, 4.0, 8.0));
        assert_eq!(LatencyView::of(&[]), LatencyView::default());
    }

    #[test]
    fn cursors_go_there_and_back() {
        for (worker, position) in [(0, 0), (3, 17), (63, u32::MAX as usize)] {
            assert_eq!(place(cursor(worker, position)), (worker, position));
        }
    }
}
