//! The profile of a SmartNIC whose cores run the HTTP balancer, as in a file (`lab/profiles/smart-nics/*.toml`), each number
//! with its source.

use serde::{Deserialize, Serialize};

/// A SmartNIC.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SmartNicProfile {
    /// Its name.
    pub name: String,
    /// The source of the numbers, and which are guesses.
    pub source: String,
    /// The profile of its flow engine, of those of cards; empty: it has none.
    #[serde(default)]
    pub card: String,
    /// Cores that may run workers, 1 to 32.
    pub cores_max: u16,
    /// The cost of a core's work.
    pub work: WorkProfile,
    /// The parts of that work.
    pub shares: WorkShares,
    /// Caches that cores share.
    pub l2: SharedCache,
    /// The memory that all cores share.
    pub memory: SharedMemory,
    /// The ports.
    pub ports: PortsProfile,
}

/// The cost of the work of a core that runs alone, in nanoseconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WorkProfile {
    /// A packet that is received, found in the connection table, rewritten and sent.
    pub packet_ns: f64,
    /// A request beyond its packets: its head and that of its response read, a field inserted, the packet put together.
    pub request_ns: f64,
    /// A request to the flow engine.
    pub rule_ns: f64,
    /// An iteration that finds nothing.
    pub poll_ns: f64,
}

/// How a core's time divides, in percent: of a packet `receive`, `look_up` and `other`, of a request the rest.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WorkShares {
    /// Receiving packets.
    pub receive: f64,
    /// Finding their connection.
    pub look_up: f64,
    /// All else that every packet costs, sending among it.
    pub other: f64,
    /// Reading the head of a response.
    pub parse_head: f64,
    /// Inserting the field of a request.
    pub insert_field: f64,
    /// Keeping a request's packets and putting them together.
    pub reassemble: f64,
}

/// A cache that neighbouring cores share.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SharedCache {
    /// Cores that share one; 1: each has its own.
    pub cores: u16,
    /// How many times as long work takes while a neighbour works, at least 1.
    pub factor: f64,
}

/// The memory on the card.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SharedMemory {
    /// Gigabytes a second.
    pub gbyte_s: f64,
    /// How often a packet's bytes pass through it on their way through a core.
    pub passes: f64,
    /// Bytes for each packet beside its own: descriptors, buffer heads, connection.
    pub packet_bytes: f64,
}

/// The ports: clients and servers are reached by the same ones.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PortsProfile {
    /// Gigabits per second of one port, each way.
    pub gbit_s: f64,
    /// How many there are, 1 to 8.
    pub count: u16,
    /// Packets in each core's receive queue; more are lost.
    pub queue: u32,
}

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Work {
    /// Receiving packets.
    Receive,
    /// Finding their connection.
    LookUp,
    /// All else of a packet.
    Other,
    /// Reading the head of a response.
    ParseHead,
    /// Inserting the field of a request.
    InsertField,
    /// Keeping a request's packets and putting them together.
    Reassemble,
    /// Requests to the flow engine.
    Rules,
    /// Waiting for memory that other cores use.
    Memory,
}

impl Work {
    /// How many kinds there are.
    pub const COUNT: usize = 8;
    /// All of them, in order.
    pub const ALL: [Work; Work::COUNT] = [
        Work::Receive,
        Work::LookUp,
        Work::Other,
        Work::ParseHead,
        Work::InsertField,
        Work::Reassemble,
        Work::Rules,
        Work::Memory,
    ];

    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Work::Receive => "receive",
            Work::LookUp => "look up",
            Work::Other => "other",
            Work::ParseHead => "parse head",
            Work::InsertField => "insert field",
            Work::Reassemble => "reassemble",
            Work::Rules => "rules",
            Work::Memory => "wait for memory",
        }
    }
}

/// What a core has done in an iteration.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) requests: u64,
    pub(super) responses: u64,
    pub(super) rule_requests: u64,
}

impl SmartNicProfile {
    /// Reads a profile.
    ///
    /// # Errors
    /// Its defect.
    pub fn parse(text: &str) -> Result<SmartNicProfile, String> {
        let profile: SmartNicProfile = toml::from_str(text).map_err(|error| error.to_string())?;
        profile.check()?;
        Ok(profile)
    }

    /// Whether its numbers make sense.
    ///
    /// # Errors
    /// Which does not.
    pub fn check(&self) -> Result<(), String> {
        let SmartNicProfile { work, shares, l2, memory, ports, .. } = self;
        let above = [
            ("work.packet_ns", work.packet_ns),
            ("work.poll_ns", work.poll_ns),
            ("shares.receive", shares.receive),
            ("shares.parse_head", shares.parse_head),
            ("memory.gbyte_s", memory.gbyte_s),
            ("ports.gbit_s", ports.gbit_s),
        ];
        let not_below = [
            ("work.request_ns", work.request_ns),
            ("work.rule_ns", work.rule_ns),
            ("shares.look_up", shares.look_up),
            ("shares.other", shares.other),
            ("shares.insert_field", shares.insert_field),
            ("shares.reassemble", shares.reassemble),
            ("memory.passes", memory.passes),
            ("memory.packet_bytes", memory.packet_bytes),
        ];
        for (what, value) in above.into_iter().chain(not_below) {
            if !(0.0..=1e9).contains(&value) {
                return Err(format!("{what} is 0 to 1,000,000,000, and stands as {value}"));
            }
        }
        if let Some((what, _)) = above.iter().find(|(_, value)| *value <= 0.0) {
            return Err(format!("{what} is above 0"));
        }
        if !(1..=32).contains(&self.cores_max) || l2.cores == 0 || ports.queue == 0 {
            return Err("cores_max is 1 to 32, l2.cores and ports.queue are at least 1".into());
        }
        if !(1..=8).contains(&ports.count) {
            return Err(format!("ports.count is 1 to 8, and stands as {}", ports.count));
        }
        if !(1.0..=10.0).contains(&l2.factor) {
            return Err(format!("l2.factor is 1 to 10, and stands as {}", l2.factor));
        }
        if self.source.trim().is_empty() {
            return Err("source does not say where the numbers are from".into());
        }
        Ok(())
    }

    /// Nanoseconds of each kind of work for what a core has done.
    pub(super) fn costs(&self, done: &Done) -> [f64; Work::COUNT] {
        let WorkShares { receive, look_up, other, parse_head, insert_field, reassemble } = self.shares;
        let packet = self.work.packet_ns / (receive + look_up + other);
        let request = self.work.request_ns / (parse_head + insert_field + reassemble);
        let (received, requests) = (done.received as f64, done.requests as f64);
        // What a core says by itself is sent without having been received.
        let sent = received.max(done.sent as f64);
        let mut costs = [0.0; Work::COUNT];
        costs[Work::Receive as usize] = received * packet * receive;
        costs[Work::LookUp as usize] = received * packet * look_up;
        costs[Work::Other as usize] = sent * packet * other;
        costs[Work::ParseHead as usize] = done.responses as f64 * request * parse_head;
        costs[Work::InsertField as usize] = requests * request * insert_field;
        costs[Work::Reassemble as usize] = requests * request * reassemble;
        costs[Work::Rules as usize] = done.rule_requests as f64 * self.work.rule_ns;
        costs
    }
}
