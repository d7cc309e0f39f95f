//! The write API: the configuration in force as JSON over HTTP/1.1, on a Unix socket that only root may open, and by TLS for clients
//! that show a certificate or a token (`remote`).
//!
//! A write names the version of the configuration that it was made of, and is refused if another one is in force, so that of two
//! writers none undoes unseen what the other one did. What it makes of that configuration is judged like a configuration file, and
//! comes into force by what a reload does, as a whole or not at all. While that differs from the configuration file it is kept
//! (`kept`), for the next start.
//!
//! Not here: how a configuration comes into force, which is the supervisor's (`run`).

mod answer;
mod certificates;
mod change;
mod document;
mod exchange;
mod json;
pub(crate) mod kept;
mod openapi;
mod places;
mod remote;
mod resource;
mod text;
mod tokens;

pub(crate) use answer::{ApiProblem, Applied, Refused};
pub(crate) use certificates::{
    CertificateAction, CertificateAnswer, CertificateRequest, CertificateStore, require_version,
};
pub(crate) use change::WriteRequest;
pub(crate) use document::Document;
pub(crate) use exchange::CODES;
pub(crate) use remote::Credentials;
pub use remote::RemoteSettings;
pub(crate) use tokens::{FORM as TOKENS_FORM, Tokens};

use crate::control;
use crate::http_server::{self, Closed, ServerCounts};
use anyhow::{Context, Result, ensure};
use exchange::Answers;
use remote::Refusals;
use std::future::ready;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// Bounds of the API.
pub(crate) mod limits {
    pub(crate) use super::certificates::CERTIFICATES_MAX;
    pub(crate) use super::exchange::{
        BODY_PATIENCE, CONNECTION_PATIENCE, CONNECTIONS_MAX, DEPTH_MAX, EXCHANGE_PATIENCE, HEAD_BYTES_MAX,
        HEAD_PATIENCE, HEADERS_MAX, OPERATIONS_MAX, REQUESTS_MAX,
    };
    pub(crate) use super::kept::FILE_BYTES_MAX as KEPT_BYTES_MAX;
    pub(crate) use super::remote::{HANDSHAKE_PATIENCE, TOLD_WITHIN};
    pub(crate) use super::tokens::TOKENS_MAX;
    /// Bytes of a request's body at most, and of a configuration: those of a configuration file.
    pub(crate) const BODY_BYTES_MAX: u64 = crate::config::FILE_BYTES_MAX;
    /// Mistakes that an answer tells at most.
    pub(crate) const PROBLEMS_MAX: usize = 100;
}

/// The nice value of the API's threads: packets go first.
const NICE: i32 = 5;

/// The API as the configuration asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiSettings {
    /// The directory of the file that keeps what it changed.
    pub state: PathBuf,
    /// How it is served by TCP; `None`: on its Unix socket alone.
    pub remote: Option<RemoteSettings>,
}

/// Tells the configuration in force, or why that cannot be told.
type ReadDocument = dyn Fn() -> std::result::Result<Arc<Document>, String> + Send + Sync;
/// Reads or changes certificates.
type UseCertificates = dyn Fn(CertificateRequest) -> std::result::Result<CertificateAnswer, Refused> + Send + Sync;
/// Puts a write into force.
type Write = dyn Fn(WriteRequest) -> std::result::Result<Applied, Refused> + Send + Sync;

/// What the API reads from and writes to. Both are called on threads of their own, several at a time.
pub(crate) struct ApiSources {
    /// The configuration in force.
    pub(crate) read: Box<ReadDocument>,
    /// A write.
    pub(crate) write: Box<Write>,
    /// Certificates that clients upload.
    pub(crate) certificates: Box<UseCertificates>,
    /// Where answers and connections are counted.
    pub(crate) counts: Arc<ServerCounts>,
    /// Writes a line of the log.
    pub(crate) log: fn(&str),
}

/// A server at work; it stops, and every exchange with it, when this is dropped.
#[derive(Debug)]
pub(crate) struct ApiServer {
    /// Dropped: the thread ends.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread waits for no other, so this takes no time. If it panicked there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

/// The API's socket, beside the control socket.
pub(crate) fn socket(control_socket: &Path) -> PathBuf {
    control_socket.with_extension("api.sock")
}

/// Serves the API on the Unix socket `path` until the returned server is dropped.
///
/// # Errors
/// The socket cannot be made, others than the user of this process could use or replace it, or a thread cannot be started.
pub(crate) fn serve(path: &Path, sources: ApiSources) -> Result<ApiServer> {
    let about = || format!("cannot serve the API on {}", path.display());
    let listener = control::listen(path).with_context(about)?;
    require_own(path).with_context(about)?;
    listener.set_nonblocking(true).with_context(about)?;
    let answers = Arc::new(Answers::new(sources, None, Arc::new(Refusals::new(|_| {}))));
    let accepting = async move {
        // Only a runtime without I/O would refuse.
        let Ok(listener) = tokio::net::UnixListener::from_std(listener) else { return };
        let open = |stream| ready(exchange::peer(&stream).map(|peer| (stream, peer)).map_err(|_| Closed::AcceptFailed));
        http_server::accept(listener, answers, open).await;
    };
    start("api", accepting).with_context(about)
}

/// Serves the API by TLS until the returned server is dropped.
///
/// # Errors
/// Its address cannot be listened at, or a thread cannot be started.
pub(crate) fn serve_remote(listen: SocketAddr, credentials: Credentials, sources: ApiSources) -> Result<ApiServer> {
    let about = || format!("cannot serve the API on {listen}");
    let listener = std::net::TcpListener::bind(listen).with_context(about)?;
    listener.set_nonblocking(true).with_context(about)?;
    let refusals = Arc::new(Refusals::new(sources.log));
    let answers = Arc::new(Answers::new(sources, credentials.tokens.clone(), Arc::clone(&refusals)));
    let accepting = async move {
        // Only a runtime without I/O would refuse.
        let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
        let open = move |stream| credentials.shake_hands(stream, Arc::clone(&refusals));
        http_server::accept(listener, answers, open).await;
    };
    start("api-tls", accepting).with_context(about)
}

/// Runs `accepting` on a thread of its own.
fn start(name: &str, accepting: impl Future<Output = ()> + Send + 'static) -> Result<ApiServer> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(limits::CONNECTIONS_MAX)
        .thread_name("api-client")
        .build()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let body = move || {
        // Serving at the priority of the thread that started this one is no disaster.
        let _ = rustix::process::setpriority_process(None, NICE);
        runtime.block_on(async move {
            let accepting = tokio::spawn(accepting);
            // Only an end wakes this: nothing is ever sent.
            let _ = stopped.await;
            accepting.abort();
        });
        // A write that is under way ends by itself; its client hears no more of it.
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name(name.into()).spawn(body)?;
    Ok(ApiServer { stop: Some(stop), thread: Some(thread) })
}

/// Makes sure that no other user can use or replace the socket.
fn require_own(path: &Path) -> Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let socket = std::fs::symlink_metadata(path)?;
    ensure!(
        socket.uid() == user && socket.mode() & 0o177 == 0,
        "its socket has owner {} and mode {:o}, and only user {user} may use it (mode 600): look at the file system it is on",
        socket.uid(),
        socket.mode() & 0o777
    );
    let directory = path.parent().context("it has no directory")?;
    let metadata = std::fs::metadata(directory)?;
    ensure!(
        [0, user].contains(&metadata.uid()) && metadata.mode() & 0o022 == 0,
        "others could replace its socket: the directory {} has owner {} and mode {:o}; have it owned by root, with mode 755 or less",
        directory.display(),
        metadata.uid(),
        metadata.mode() & 0o7777
    );
    Ok(())
}

#[cfg(test)]
mod tests;
