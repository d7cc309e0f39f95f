//! The record of a soak: operations, the backends that were disabled meanwhile, and which failures these explain.

use super::socket::SoakConnection;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The field by which a request names its operation.
pub(super) const OPERATION: &str = "x-operation";
/// How long after a backend was disabled those whose operations it had may hear of it. Hairpin tells them at once; the
/// processors here may have others to serve first, and a RST that was lost is sent again after 0.1 s, 0.2 s, 0.4 s.
const AT_ONCE: Duration = Duration::from_secs(2);
/// Failures of a kind that are kept in words.
const KEPT: u64 = 3;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationKind {
    /// GET, answered with a length.
    Get,
    /// GET, answered in chunks.
    Chunked,
    /// POST, answered with its body when that was complete.
    Echo,
    /// POST, answered with its body as it came.
    Mirror,
    /// A WebSocket, from its handshake to its end.
    WebSocket,
}

impl OperationKind {
    pub(super) const ALL: [OperationKind; 5] = [
        OperationKind::Get,
        OperationKind::Chunked,
        OperationKind::Echo,
        OperationKind::Mirror,
        OperationKind::WebSocket,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            OperationKind::Get => "GET",
            OperationKind::Chunked => "GET in chunks",
            OperationKind::Echo => "POST echoed",
            OperationKind::Mirror => "POST mirrored",
            OperationKind::WebSocket => "WebSocket",
        }
    }
}

/// An operation that is under way.
#[derive(Clone, Debug)]
pub(super) struct SoakOperation {
    pub(super) number: u64,
    pub(super) service: &'static str,
    pub(super) kind: OperationKind,
    /// Details for the case that it fails: lengths, how its connection is used.
    pub(super) about: String,
    pub(super) began: Instant,
    pub(super) connection: SoakConnection,
}

/// Why an operation failed.
#[derive(Debug)]
pub(super) enum OperationFailure {
    /// Other bytes came than were sent, or more, or fewer.
    WrongBytes(String),
    /// All else.
    Failed(String),
}

/// A backend that is disabled by hand.
#[derive(Debug)]
struct Disabled {
    service: &'static str,
    server: usize,
    /// When the command had been answered.
    answered: Option<Instant>,
}

/// Counts of a soak.
#[derive(Clone, Debug, Default)]
pub struct SoakTally {
    /// Operations that went well: GET, GET in chunks, POST echoed when complete, POST echoed as it came, WebSockets.
    pub done: [u64; OperationKind::ALL.len()],
    /// Messages echoed by WebSockets.
    pub messages: u64,
    /// Connections that clients have opened.
    pub connections: u64,
    /// Bytes of bodies and messages that clients received, all of them compared.
    pub bytes: u64,
    /// Operations in which bytes were wrong.
    pub wrong: u64,
    /// Operations that failed otherwise, and should not have.
    pub failed: u64,
    /// Of these, ones whose client heard nothing for long.
    pub hung: u64,
    /// Operations that failed on a backend that was disabled.
    pub disabled: u64,
    /// The longest, after a disabling had been answered, until a client's kernel had heard of it.
    pub told: Duration,
    /// Kept connections that were closed between two requests.
    pub closed_idle: u64,
    /// Wrong bytes and failures, the first ones of each kind in words.
    pub faults: Vec<String>,
    /// How many there were of each kind.
    pub reasons: BTreeMap<String, u64>,
}

impl SoakTally {
    /// Operations that went well.
    pub fn operations(&self) -> u64 {
        self.done.iter().sum()
    }
}

/// An operation that has not ended.
#[derive(Debug, Default)]
struct UnderWay {
    /// Once it has a connection.
    operation: Option<SoakOperation>,
    /// The servers that it has met.
    met: Vec<usize>,
    is_examined: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct SoakBook {
    under_way: Mutex<HashMap<u64, UnderWay>>,
    disabled: Mutex<Vec<Disabled>>,
    tally: Mutex<SoakTally>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SoakBook {
    /// The operation has a connection.
    pub(super) fn begin(&self, operation: &SoakOperation) {
        locked(&self.under_way).entry(operation.number).or_default().operation = Some(operation.clone());
    }

    /// The operation has come to the server.
    pub(super) fn met(&self, operation: u64, server: usize) {
        locked(&self.under_way).entry(operation).or_default().met.push(server);
    }

    /// Operations that have lasted so long, each once, with the servers that they have met.
    pub(super) fn slow(&self, after: Duration) -> Vec<(SoakOperation, Vec<usize>)> {
        let mut under_way = locked(&self.under_way);
        let slow = under_way.values_mut().filter_map(|under_way| {
            let operation = under_way.operation.as_ref().filter(|operation| operation.began.elapsed() > after)?;
            (!std::mem::replace(&mut under_way.is_examined, true)).then(|| (operation.clone(), under_way.met.clone()))
        });
        slow.collect()
    }

    /// The backend is about to be disabled.
    pub(super) fn disabling(&self, service: &'static str, server: usize) {
        locked(&self.disabled).push(Disabled { service, server, answered: None });
    }

    /// The last one has been.
    pub(super) fn is_disabled(&self) {
        if let Some(last) = locked(&self.disabled).last_mut() {
            last.answered = Some(Instant::now());
        }
    }

    /// Counts something else.
    pub(super) fn note(&self, note: impl FnOnce(&mut SoakTally)) {
        note(&mut locked(&self.tally));
    }

    /// The tallies so far.
    pub(super) fn tally(&self) -> SoakTally {
        locked(&self.tally).clone()
    }

    /// The operation has come to its end, with so many bytes received.
    pub(super) fn end(&self, operation: &SoakOperation, result: Result<u64, OperationFailure>) {
        let met = locked(&self.under_way).remove(&operation.number).unwrap_or_default().met;
        let failure = match result {
            Ok(bytes) => {
                return self.note(|tally| {
                    tally.bytes += bytes;
                    tally.done[operation.kind as usize] += 1;
                });
            }
            Err(failure) => failure,
        };
        let (is_wrong, why) = match failure {
            OperationFailure::WrongBytes(why) => (true, why),
            OperationFailure::Failed(why) => (false, why),
        };
        let told = if is_wrong { None } else { self.told(operation, &met) };
        self.note(|tally| {
            if let Some(told) = told {
                tally.disabled += 1;
                tally.told = tally.told.max(told);
                return;
            }
            *if is_wrong { &mut tally.wrong } else { &mut tally.failed } += 1;
            tally.hung += u64::from(why.contains(": nothing for "));
            let count = tally.reasons.entry(reason(&why)).or_default();
            *count += 1;
            if *count <= KEPT {
                let SoakOperation { number, service, kind, about, began, connection } = operation;
                let (kind, port) = (kind.name(), connection.port);
                tally.faults.push(format!(
                    "{kind} {number} on {service} ({about}; port {port}, servers {met:?}) after {:?}: {why}",
                    began.elapsed()
                ));
            }
        });
    }

    /// How long after its backend was disabled the client of an operation that failed heard of it; `None`: nothing of the
    /// kind explains it.
    fn told(&self, operation: &SoakOperation, met: &[usize]) -> Option<Duration> {
        let now = operation.connection.heard().unwrap_or_else(Instant::now);
        let explains = |disabled: &&Disabled| {
            let answered = disabled.answered.unwrap_or(now);
            // A request that has not come to any server may have been on its way to this one.
            let is_its_own = met.is_empty() || met.contains(&disabled.server);
            disabled.service == operation.service
                && is_its_own
                && operation.began <= answered
                && now.saturating_duration_since(answered) <= AT_ONCE
        };
        let disabled = locked(&self.disabled);
        let last = disabled.iter().rev().find(explains)?;
        Some(now.saturating_duration_since(last.answered.unwrap_or(now)))
    }
}

/// The common part of failures of a kind: the words before the first detail.
fn reason(why: &str) -> String {
    why.split(['{', ',', '(']).next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(number: u64, began: Instant) -> SoakOperation {
        SoakOperation {
            number,
            service: "soak",
            kind: OperationKind::Echo,
            about: String::new(),
            began,
            connection: SoakConnection::default(),
        }
    }

    fn failed() -> Result<u64, OperationFailure> {
        Err(OperationFailure::Failed("reset".into()))
    }

    #[test]
    fn only_its_disabled_backend_excuses_a_failure() {
        let book = SoakBook::default();
        let before = operation(1, Instant::now());
        book.met(1, 2);
        book.end(&before, failed());
        assert_eq!((book.tally().failed, book.tally().disabled), (1, 0), "no backend was disabled");
        book.disabling("soak", 2);
        for (number, server) in [(2, 2), (3, 3)] {
            book.met(number, server);
            book.end(&operation(number, before.began), failed());
        }
        assert_eq!((book.tally().failed, book.tally().disabled), (2, 1), "server 2 was, server 3 was not");
        book.is_disabled();
        std::thread::sleep(Duration::from_millis(1));
        book.met(4, 2);
        book.end(&operation(4, Instant::now()), failed());
        assert_eq!((book.tally().failed, book.tally().disabled), (3, 1), "it began afterwards");
        book.met(5, 2);
        book.end(&operation(5, before.began), Err(OperationFailure::WrongBytes("one".into())));
        assert_eq!((book.tally().wrong, book.tally().faults.len()), (1, 4), "nothing explains wrong bytes");
    }
}
