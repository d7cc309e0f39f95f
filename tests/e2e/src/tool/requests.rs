//! Short HTTP requests at a set rate (open loop: one that is late delays no other), and requests on connections that
//! stay, all with what became of each.

use crate::namespace::Namespace;
use crate::tool::{http, inside};
use anyhow::Result;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Requests on their way at a time at most.
const IN_FLIGHT_MAX: usize = 4096;
/// Stack of a thread that makes one request, in bytes.
const STACK: usize = 128 << 10;

/// A request, and what became of it.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// Which of the targets it was for.
    pub target: usize,
    /// The port of the client's end, if there was a connection.
    pub from: Option<u16>,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// The server that answered, or what went wrong.
    pub result: Result<String, String>,
}

/// Requests at a set rate; they end when it is dropped.
#[derive(Debug)]
pub struct OpenLoop {
    stop: Arc<AtomicBool>,
    outcomes: Arc<Mutex<Vec<RequestRecord>>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl OpenLoop {
    /// Starts `per_second` requests a second for `page`, each on a connection of its own, at the targets in turn. A
    /// request fails after `timeout`, or when it brings other bytes than `expected`.
    pub fn start(
        client: &Namespace,
        targets: Vec<SocketAddr>,
        per_second: u32,
        page: &'static str,
        expected: Arc<Vec<u8>>,
        timeout: Duration,
    ) -> OpenLoop {
        let (stop, outcomes) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let thread = inside::spawn(client, None, {
            let (stop, outcomes) = (stop.clone(), outcomes.clone());
            move || {
                let (send, receive) = channel();
                let collector = std::thread::spawn(move || {
                    for outcome in receive {
                        outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                    }
                });
                let begin = Instant::now();
                let in_flight = Arc::new(AtomicUsize::new(0));
                let mut number = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    let target = number as usize % targets.len();
                    request(target, targets[target], page, &expected, timeout, &send, &in_flight);
                    number += 1;
                    let due = Duration::from_secs(1) * number / per_second;
                    sleep(due.saturating_sub(begin.elapsed()));
                }
                // The collector ends when the last request has.
                drop(send);
                let _ = collector.join();
                Ok(())
            }
        });
        OpenLoop { stop, outcomes, thread: Some(thread) }
    }

    /// The outcomes of those that have ended so far.
    pub fn so_far(&self) -> Vec<RequestRecord> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends it, waits for the requests on their way, and says what became of all.
    pub fn stop(mut self) -> Result<Vec<RequestRecord>> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            inside::join(thread)?;
        }
        Ok(self.so_far())
    }
}

impl Drop for OpenLoop {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Makes one request on a thread of its own, which belongs to the calling thread's namespace.
fn request(
    target: usize,
    to: SocketAddr,
    page: &'static str,
    expected: &Arc<Vec<u8>>,
    timeout: Duration,
    send: &Sender<RequestRecord>,
    in_flight: &Arc<AtomicUsize>,
) {
    let start = Instant::now();
    let fail = |why: String| {
        let _ = send.send(RequestRecord { target, from: None, start, end: Instant::now(), result: Err(why) });
    };
    if in_flight.load(Ordering::Relaxed) >= IN_FLIGHT_MAX {
        return fail(format!("{IN_FLIGHT_MAX} requests are on their way already"));
    }
    in_flight.fetch_add(1, Ordering::Relaxed);
    let (expected, sender, counter) = (expected.clone(), send.clone(), in_flight.clone());
    let body = move || {
        let (from, result) = http::once_from(to, page, &expected, timeout);
        let result = result.map_err(|error| format!("{error:#}"));
        let _ = sender.send(RequestRecord { target, from, start, end: Instant::now(), result });
        counter.fetch_sub(1, Ordering::Relaxed);
    };
    if let Err(error) = std::thread::Builder::new().stack_size(STACK).spawn(body) {
        in_flight.fetch_sub(1, Ordering::Relaxed);
        fail(format!("no thread: {error}"));
    }
}

/// Connections that stay, each with a request now and then; they end when it is dropped.
#[derive(Debug)]
pub struct Sessions {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<ConnectionSession>>>,
    ends: Vec<(SocketAddr, SocketAddr)>,
}

/// The events of one of these connections.
#[derive(Clone, Debug)]
pub struct ConnectionSession {
    /// Which of the targets it was for.
    pub target: usize,
    /// Our end of it.
    pub own_end: SocketAddr,
    /// Requests answered.
    pub answered: u64,
    /// Servers that answered, and the numbers of the connection there. One, unless something went wrong.
    pub servers: BTreeSet<String>,
    /// When it failed and why.
    pub failed: Option<(Instant, String)>,
}

impl Sessions {
    /// Opens `count` connections to the targets in turn; each asks for `page` every `interval`, and gives up when an
    /// answer is not there after `timeout`.
    pub fn start(
        client: &Namespace,
        targets: &[SocketAddr],
        count: usize,
        page: &'static str,
        interval: Duration,
        timeout: Duration,
    ) -> Result<Sessions> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut sessions = Sessions { stop: stop.clone(), threads: Vec::new(), ends: Vec::new() };
        for i in 0..count {
            let (target, to) = (i % targets.len(), targets[i % targets.len()]);
            let connection = inside::run(client, move || http::HttpConnection::open(to, timeout))?;
            let own_end = connection.own_end()?;
            sessions.ends.push((own_end, to));
            let session = ConnectionSession { target, own_end, answered: 0, servers: BTreeSet::new(), failed: None };
            let stop = stop.clone();
            sessions.threads.push(std::thread::spawn(move || {
                // Not all of them at the same time.
                sleep(interval * i as u32 / count as u32);
                Ok(converse(connection, session, page, interval, timeout, &stop))
            }));
        }
        Ok(sessions)
    }

    /// Their ends, ours first.
    pub fn ends(&self) -> impl Iterator<Item = (SocketAddr, SocketAddr)> {
        self.ends.iter().copied()
    }

    /// Ends them and says what each has met.
    pub fn stop(mut self) -> Result<Vec<ConnectionSession>> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).map(inside::join).collect()
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn converse(
    mut connection: http::HttpConnection,
    mut session: ConnectionSession,
    page: &str,
    interval: Duration,
    timeout: Duration,
    stop: &AtomicBool,
) -> ConnectionSession {
    while !stop.load(Ordering::Relaxed) {
        match connection.get(page, false, timeout) {
            Ok(answer) => {
                session.answered += 1;
                let server = answer.header("X-Server").unwrap_or("no server");
                let number = answer.header("X-Connection").unwrap_or("none");
                session.servers.insert(format!("{server}, connection {number}"));
            }
            Err(error) => {
                session.failed = Some((Instant::now(), format!("{error:#}")));
                return session;
            }
        }
        sleep(interval);
    }
    session
}
