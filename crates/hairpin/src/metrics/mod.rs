//! The admin address: metrics for Prometheus, the status as JSON, and a page for people, over HTTP/1.1.
//!
//! `GET /metrics` answers in OpenMetrics or in Prometheus' older text, whichever the client prefers; `GET /status` is
//! what `hairpin status -o json` prints. Everything comes from one [`Status`]: [`families`] says which metric is which
//! number of it, and `docs/reference/metrics.md` is written from there. `GET /` is the page (`page`), which asks for
//! `/status`, `/offload` and `/events` (`recent`) again and again.
//!
//! A client that can reach the address can read; no client can change anything. Clients are hostile until shown
//! otherwise: every size and time has a bound (`exchange`), and neither they nor a slow status can reach the packet
//! path but for `/offload`, for which workers copy connections between packets (`recent`): all of this lives on threads of its
//! own at low priority, `metrics`, which talks, and up to three `metrics-status`, which wait for answers and write them down.

mod counts;
mod exchange;
pub mod families;
mod labels;
mod page;
pub(crate) mod reasons;
mod recent;
mod source;
mod text;

/// Bounds of the metrics server.
pub(crate) mod limits {
    pub(crate) use super::exchange::{
        CONNECTION_PATIENCE, CONNECTIONS_MAX, EXCHANGE_PATIENCE, HEAD_BYTES_MAX, HEAD_PATIENCE, HEADERS_MAX,
        REQUESTS_MAX,
    };
    pub(crate) use super::recent::{EVENTS_MAX, OFFLOAD_FRESH};
    pub(crate) use super::source::ALIVE_MAX;
}

use crate::control::OffloadView;
use crate::http_server;
use crate::status::Status;
use anyhow::{Context, Result, anyhow};
use recent::Recent;
use source::StatusSource;
use std::future::ready;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// The nice value of both threads: packets go first.
const NICE: i32 = 10;

/// A server at work; it stops, and every exchange with it, when this is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    /// Dropped: the thread ends.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// The address that it listens on, with the port the kernel chose if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread waits for no other, so this takes no time. If it panicked there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

/// Makes a status or says why it cannot.
pub type MakeStatus = dyn Fn() -> std::result::Result<Status, String> + Send;

/// Says what carries connections, or why that is not known.
pub type MakeOffload = dyn Fn(&Status) -> std::result::Result<OffloadView, String> + Send;

/// What the server tells of an instance. Each is called on a thread of its own, once at a time.
pub struct Sources {
    /// Called about ten times a second at most, however many clients ask.
    pub status: Box<MakeStatus>,
    /// Called once in two seconds at most, and less often where it takes long.
    pub offload: Box<MakeOffload>,
    /// The file of the instance's newest events; `None`: it keeps none.
    pub events: Option<PathBuf>,
}

/// What the server answers from.
struct Answers {
    status: StatusSource,
    recent: Recent,
    /// It listens on loopback only, where no other machine's name leads but by a trick.
    is_loopback: bool,
    /// Names of this machine, in small letters, by which the page may be asked for.
    hosts: Vec<String>,
}

/// Serves metrics and status on `listen` until the returned server is dropped; see [`Sources::status`].
///
/// # Errors
/// See [`serve_all`].
pub fn serve<F>(listen: SocketAddr, status: F) -> Result<MetricsServer>
where
    F: Fn() -> std::result::Result<Status, String> + Send + 'static,
{
    let offload = Box::new(|_: &Status| Err("the instance does not tell".to_string()));
    serve_all(listen, &[], Sources { status: Box::new(status), offload, events: None })
}

/// Serves everything on `listen` until the returned server is dropped. `hosts`: names of this machine, in small letters, by which
/// the page may be asked for; addresses and names without a dot need not be among them.
///
/// # Errors
/// `listen` cannot be listened on, or a thread cannot be started; the text names the address and the remedy.
pub fn serve_all(listen: SocketAddr, hosts: &[String], sources: Sources) -> Result<MetricsServer> {
    let (listener, address) = bind(listen)?;
    let Sources { status, offload, events } = sources;
    let answers = Answers {
        status: StatusSource::new(status),
        recent: Recent::new(offload, events),
        is_loopback: address.ip().to_canonical().is_loopback(),
        hosts: hosts.to_vec(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // One that makes a status, one that writes down an earlier one in another format, and one for what is recent.
        .max_blocking_threads(3)
        .thread_name("metrics-status")
        .build()
        .context("cannot start the metrics server")?;
    let (stop, stopped) = oneshot::channel();
    let body = move || {
        // Serving at the priority of the thread that started this one is no disaster.
        let _ = rustix::process::setpriority_process(None, NICE);
        runtime.block_on(async move {
            // Only a runtime without I/O would refuse.
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
            let open = |stream| ready(Ok((stream, ())));
            let accepting = tokio::spawn(http_server::accept(listener, Arc::new(answers), open));
            // Only an end wakes this: nothing is ever sent.
            let _ = stopped.await;
            accepting.abort();
        });
        // No client is left to receive a status that is still being made; do not wait for it.
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("metrics".into()).spawn(body);
    let thread = thread.context("cannot start the metrics server's thread")?;
    Ok(MetricsServer { address, stop: Some(stop), thread: Some(thread) })
}

fn bind(listen: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let bound = TcpListener::bind(listen).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    bound.map_err(|error| {
        let remedy = remedy(listen, error.kind());
        anyhow!("cannot serve metrics on {listen}: {error}; {remedy}")
    })
}

/// The advice for a failure to listen.
fn remedy(listen: SocketAddr, error: ErrorKind) -> String {
    match error {
        ErrorKind::AddrInUse => format!(
            "something else listens there (`ss -ltnp sport = :{}` shows what): stop it or choose another address",
            listen.port()
        ),
        ErrorKind::AddrNotAvailable => {
            "this machine does not have the address: choose one of its own, such as 127.0.0.1".to_string()
        }
        ErrorKind::PermissionDenied => "choose a port above 1023, or start as root".to_string(),
        _ => "choose another address".to_string(),
    }
}
