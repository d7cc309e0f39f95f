//! Connections to backends over the host's own sockets, with or without TLS: of HTTP/1.1, for one exchange at a time and kept
//! for others in between, and of HTTP/2 (`http2_backend`), for many exchanges at a time.

use crate::backend_stream::BackendStream;
use crate::backend_tls::BackendTls;
use crate::http2_backend::{Http2Conns, Ways};
use crate::local::Counts;
use hairpin_core::config::{BackendState, Snapshot};
use hairpin_core::flow::Endpoint;
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long an idle connection is kept, as in the splice.
const IDLE_TIMEOUT: Duration = hairpin_core::l7::splice::limits::IDLE_TIMEOUT;

/// Whether there is no room here for another connection: no fault of the backend's.
pub(crate) fn is_no_room(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw_os_error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL)
    )
}

/// A connection that is counted as its backend's, for as long as this exists.
pub(crate) struct Counted {
    /// The backend's number.
    number: u16,
    counts: Rc<Counts>,
}

impl Counted {
    fn new(counts: &Rc<Counts>, number: u16) -> Counted {
        counts.change(|statistics| statistics.http.backend_conns_now += 1);
        counts.backend(number, |backend| {
            backend.connections_now += 1;
            backend.open_now += 1;
        });
        Counted { number, counts: Rc::clone(counts) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts.change(|statistics| statistics.http.backend_conns_now -= 1);
        self.counts.backend(self.number, |backend| {
            backend.connections_now = backend.connections_now.saturating_sub(1);
            backend.open_now = backend.open_now.saturating_sub(1);
        });
    }
}

/// Counts a connection to a backend that could not be made.
pub(crate) fn count_failed(counts: &Counts, number: u16, error: &io::Error) {
    counts.backend(number, |backend| backend.failed += u64::from(!is_no_room(error)));
    if !is_no_room(error) {
        counts.slow(number);
    }
    let is_of_peer = matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof);
    counts.change(|statistics| statistics.backend_handshakes_failed += u64::from(is_of_peer));
}

/// Connects to a backend, and shakes hands with it if there is `tls`, behind the bytes of `preface`.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if that took too long, else what the kernel or TLS says. It has been counted.
pub(crate) async fn open(
    counts: &Rc<Counts>,
    number: u16,
    endpoint: Endpoint,
    (tls, preface): (Option<&Rc<BackendTls>>, &[u8]),
    within: Duration,
) -> io::Result<(BackendStream, Counted)> {
    let address = SocketAddr::new(IpAddr::from(endpoint.address), endpoint.port);
    counts.backend(number, |backend| backend.connections += 1);
    let connected = timeout(within, BackendStream::connect(address, tls.map(|tls| (&**tls, preface)))).await;
    let stream = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let stream = stream.inspect_err(|error| count_failed(counts, number, error))?;
    Ok((stream, Counted::new(counts, number)))
}

/// A connection to a backend that a request has, or that waits for one; of HTTP/2 a stream of it.
pub(crate) struct BackendConn {
    pub(crate) stream: BackendStream,
    /// How TLS was agreed on with it.
    tls: Option<Rc<BackendTls>>,
    /// The backend's number.
    pub(crate) number: u16,
    /// Requests that it was sent; of HTTP/2 those that its connection was sent before, as far as it is the only stream.
    pub(crate) requests: u32,
    counts: Rc<Counts>,
    /// `None`: other streams have the connection, too.
    _counted: Option<Counted>,
}

impl BackendConn {
    /// A new connection of HTTP/1.1: see [`open`].
    ///
    /// # Errors
    /// Those of [`open`].
    pub(crate) async fn connect(
        counts: &Rc<Counts>,
        number: u16,
        endpoint: Endpoint,
        (tls, preface): (Option<&Rc<BackendTls>>, &[u8]),
        within: Duration,
    ) -> io::Result<BackendConn> {
        let (stream, counted) = open(counts, number, endpoint, (tls, preface), within).await?;
        Ok(BackendConn::new(counts, number, (stream, tls.cloned()), 0, Some(counted)))
    }

    /// A stream of HTTP/2 for a request, on a connection of `conns` or a new one.
    ///
    /// # Errors
    /// Those of [`Http2Conns::stream`].
    pub(crate) async fn http2(
        counts: &Rc<Counts>,
        number: u16,
        conns: &Http2Conns,
        ways: &Ways<'_>,
    ) -> io::Result<BackendConn> {
        let (stream, requests) = conns.stream(counts, number, ways).await?;
        let stream = BackendStream::Http2(Box::new(RefCell::new(stream)));
        Ok(BackendConn::new(counts, number, (stream, ways.tls.cloned()), requests, None))
    }

    fn new(
        counts: &Rc<Counts>,
        number: u16,
        (stream, tls): (BackendStream, Option<Rc<BackendTls>>),
        requests: u32,
        counted: Option<Counted>,
    ) -> BackendConn {
        let counts = Rc::clone(counts);
        BackendConn { stream, tls, number, requests, counts, _counted: counted }
    }
}

/// Idle connections of one core, by backend; of each the youngest is used first.
#[derive(Default)]
pub(crate) struct Pool {
    idle: HashMap<u16, VecDeque<(BackendConn, Instant)>>,
    /// Connections of HTTP/2, whether requests have streams of them or not.
    http2: HashMap<u16, Rc<Http2Conns>>,
}

impl Pool {
    /// The youngest idle connection to a backend that is good for another request: what `tls` asks for has been agreed on,
    /// and nothing has come.
    pub(crate) fn take(&mut self, number: u16, tls: Option<&Rc<BackendTls>>) -> Option<BackendConn> {
        let idle = self.idle.get_mut(&number)?;
        while let Some((mut conn, _)) = idle.pop_back() {
            conn.counts.change(|statistics| statistics.http.idle_now -= 1);
            if conn.tls.as_ref() == tls && conn.stream.is_quiet() {
                conn.counts.change(|statistics| statistics.http.reused += 1);
                return Some(conn);
            }
        }
        None
    }

    /// Keeps a connection for others: `idle_max` of its backend at most, of which the oldest gives way.
    pub(crate) fn keep(&mut self, conn: BackendConn, idle_max: u16) {
        if idle_max == 0 || conn.stream.is_http2() {
            return;
        }
        conn.counts.change(|statistics| statistics.http.idle_now += 1);
        let idle = self.idle.entry(conn.number).or_default();
        if idle.len() >= usize::from(idle_max) {
            forget(idle.pop_front());
        }
        idle.push_back((conn, Instant::now()));
    }

    /// Connections of HTTP/2 to a backend.
    pub(crate) fn http2(&mut self, number: u16) -> Rc<Http2Conns> {
        Rc::clone(self.http2.entry(number).or_default())
    }

    /// Closes what has been idle for too long.
    pub(crate) fn sweep(&mut self) {
        let now = Instant::now();
        for idle in self.idle.values_mut() {
            while idle.front().is_some_and(|(_, since)| now.duration_since(*since) > IDLE_TIMEOUT) {
                forget(idle.pop_front());
            }
        }
        self.idle.retain(|_, idle| !idle.is_empty());
        self.http2.retain(|_, conns| conns.sweep(IDLE_TIMEOUT));
    }

    /// Closes connections to backends that take no requests any more.
    pub(crate) fn follow(&mut self, snapshot: &Snapshot) {
        let is_wanted =
            |number: u16| snapshot.backend(number).is_some_and(|(_, backend)| backend.state == BackendState::Enabled);
        let unwanted: Vec<u16> = self.backends().filter(|number| !is_wanted(*number)).collect();
        self.forget(&unwanted);
    }

    /// Closes all connections: others need the room.
    pub(crate) fn clear(&mut self) {
        let all: Vec<u16> = self.backends().collect();
        self.forget(&all);
    }

    /// Closes connections to these backends; those of HTTP/2 when their streams have ended.
    pub(crate) fn forget(&mut self, backends: &[u16]) {
        for number in backends {
            self.idle.remove(number).into_iter().flatten().for_each(|idle| forget(Some(idle)));
            self.http2.remove(number).into_iter().for_each(|conns| conns.clear());
        }
    }

    fn backends(&self) -> impl Iterator<Item = u16> {
        self.idle.keys().chain(self.http2.keys()).copied()
    }
}

fn forget(idle: Option<(BackendConn, Instant)>) {
    if let Some((conn, _)) = idle {
        conn.counts.change(|statistics| statistics.http.idle_now -= 1);
    }
}
