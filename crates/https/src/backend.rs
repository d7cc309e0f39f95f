//! Connections to backends: HTTP/1.1 over the host's own sockets, with or without TLS, one exchange at a time, kept for others
//! in between.

use crate::backend_stream::BackendStream;
use crate::backend_tls::BackendTls;
use crate::local::Counts;
use hairpin_core::config::{BackendState, Snapshot};
use hairpin_core::flow::Endpoint;
use rustix::io::Errno;
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

/// A connection to a backend, counted as such for as long as it exists.
pub(crate) struct BackendConn {
    pub(crate) stream: BackendStream,
    /// How TLS was agreed on with it.
    tls: Option<Rc<BackendTls>>,
    /// The backend's number.
    pub(crate) number: u16,
    /// Requests that it was sent.
    pub(crate) requests: u32,
    /// Whether a request has it, which counts towards its backend's load.
    is_leased: bool,
    counts: Rc<Counts>,
}

impl BackendConn {
    /// Connects to a backend, and shakes hands with it if there is `tls`, behind the bytes of `preface`.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if that took too long, else what the kernel or TLS says.
    pub(crate) async fn connect(
        counts: &Rc<Counts>,
        number: u16,
        endpoint: Endpoint,
        (tls, preface): (Option<&Rc<BackendTls>>, &[u8]),
        within: Duration,
    ) -> io::Result<BackendConn> {
        let address = SocketAddr::new(IpAddr::from(endpoint.address), endpoint.port);
        counts.backend(number, |backend| backend.connections += 1);
        let connected = timeout(within, BackendStream::connect(address, tls.map(|tls| (&**tls, preface)))).await;
        let stream = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).inspect_err(|error| {
            counts.backend(number, |backend| backend.failed += u64::from(!is_no_room(error)));
            let is_of_tls = matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof);
            counts.change(|statistics| statistics.backend_handshakes_failed += u64::from(is_of_tls));
        })?;
        counts.change(|statistics| statistics.http.backend_conns_now += 1);
        counts.backend(number, |backend| {
            backend.connections_now += 1;
            backend.open_now += 1;
        });
        let mut conn =
            BackendConn { stream, tls: tls.cloned(), number, requests: 0, is_leased: false, counts: Rc::clone(counts) };
        conn.lease(true);
        Ok(conn)
    }

    fn lease(&mut self, is_leased: bool) {
        if self.is_leased != is_leased {
            self.is_leased = is_leased;
            self.counts.load(self.number, is_leased);
        }
    }
}

impl Drop for BackendConn {
    fn drop(&mut self) {
        self.lease(false);
        self.counts.change(|statistics| statistics.http.backend_conns_now -= 1);
        self.counts.backend(self.number, |backend| {
            backend.connections_now = backend.connections_now.saturating_sub(1);
            backend.open_now = backend.open_now.saturating_sub(1);
        });
    }
}

/// Idle connections of one core, by backend; of each the youngest is used first.
#[derive(Default)]
pub(crate) struct Pool {
    idle: HashMap<u16, VecDeque<(BackendConn, Instant)>>,
}

impl Pool {
    /// The youngest idle connection to a backend that is good for another request: what `tls` asks for has been agreed on,
    /// and nothing has come.
    pub(crate) fn take(&mut self, number: u16, tls: Option<&Rc<BackendTls>>) -> Option<BackendConn> {
        let idle = self.idle.get_mut(&number)?;
        while let Some((mut conn, _)) = idle.pop_back() {
            conn.counts.change(|statistics| statistics.http.idle_now -= 1);
            if conn.tls.as_ref() == tls && conn.stream.is_quiet() {
                conn.lease(true);
                conn.counts.change(|statistics| statistics.http.reused += 1);
                return Some(conn);
            }
        }
        None
    }

    /// Keeps a connection for others: `idle_max` of its backend at most, of which the oldest gives way.
    pub(crate) fn keep(&mut self, mut conn: BackendConn, idle_max: u16) {
        if idle_max == 0 {
            return;
        }
        conn.lease(false);
        conn.counts.change(|statistics| statistics.http.idle_now += 1);
        let idle = self.idle.entry(conn.number).or_default();
        if idle.len() >= usize::from(idle_max) {
            forget(idle.pop_front());
        }
        idle.push_back((conn, Instant::now()));
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
    }

    /// Closes connections to backends that take no requests any more.
    pub(crate) fn follow(&mut self, snapshot: &Snapshot) {
        let is_wanted =
            |number: u16| snapshot.backend(number).is_some_and(|(_, backend)| backend.state == BackendState::Enabled);
        let unwanted: Vec<u16> = self.idle.keys().copied().filter(|number| !is_wanted(*number)).collect();
        self.forget(&unwanted);
    }

    /// Closes all connections: others need the room.
    pub(crate) fn clear(&mut self) {
        let all: Vec<u16> = self.idle.keys().copied().collect();
        self.forget(&all);
    }

    /// Closes connections to these backends.
    pub(crate) fn forget(&mut self, backends: &[u16]) {
        for number in backends {
            self.idle.remove(number).into_iter().flatten().for_each(|idle| forget(Some(idle)));
        }
    }
}

fn forget(idle: Option<(BackendConn, Instant)>) {
    if let Some((conn, _)) = idle {
        conn.counts.change(|statistics| statistics.http.idle_now -= 1);
    }
}
