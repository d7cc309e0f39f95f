//! The control socket: requests and answers of `protocol` over a Unix socket only root may open.
//!
//! Clients cannot stall anything: each is served by a thread of its own, few at a time, with bounded sizes and
//! times, and none of them is the thread that keeps the instance alive.

mod client;
mod protocol;

pub(crate) use client::ClientFilter;
pub use protocol::{
    BackendAction, BackendChange, Changes, ConnectionView, ControlAnswer, ControlRequest, ExchangeView, LatencyView,
    OffloadView, Page, Query, RouteAnswer, RouteBackend, RouteGroup, RouteQuery, RouteView, RuleView,
    RunningConfiguration, SizeView, SplicedView, Upgrade,
};

use crate::status::Status;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a request at most, newline included: a configuration of 16 MiB, and what JSON makes of it.
pub(crate) const REQUEST_BYTES_MAX: u64 = 24 << 20;
/// Bytes of an answer at most; 16,384 backends take about 8 MB.
pub(crate) const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Clients served at a time at most; others are turned away.
pub(crate) const CLIENTS_MAX: usize = 8;
/// How long a client may be silent, or not read.
pub(crate) const CLIENT_PATIENCE: Duration = Duration::from_secs(5);
/// How long a client keeps a connection between two requests: well below [`CLIENT_PATIENCE`].
const KEPT_FOR: Duration = Duration::from_secs(2);
/// How long an answer is waited for.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// Nice value of the threads that serve clients.
const CLIENT_NICE: i32 = 5;
/// How long a change is waited for: longer than the instance itself waits for it.
const CHANGE_PATIENCE: Duration = Duration::from_secs(65);
/// How long a process may take to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// An answer, and what is to be done once it has been sent.
pub struct ControlReply {
    /// The answer.
    pub answer: ControlAnswer,
    /// Called when the client has it, or is gone; the connection is closed when it returns, or by the process's end.
    pub then: Option<Box<dyn FnOnce() + Send>>,
}

impl From<ControlAnswer> for ControlReply {
    fn from(answer: ControlAnswer) -> ControlReply {
        ControlReply { answer, then: None }
    }
}

/// Holds the connection of a client that has asked for the process's end, so that the client sees that.
pub fn hold() {
    std::thread::sleep(STOP_PATIENCE);
}

/// Listens on `path`, replacing what another process left there in one step; the caller makes sure that it is dead or
/// about to hand over. `handle` answers requests; it is called on threads of their own, several at a time.
///
/// # Errors
/// The socket cannot be made.
pub fn serve<H, R>(path: &Path, handle: H) -> Result<()>
where
    H: Fn(ControlRequest) -> R + Clone + Send + 'static,
    R: Into<ControlReply>,
{
    let listener = listen(path).with_context(|| format!("cannot listen on the control socket {}", path.display()))?;
    std::thread::Builder::new().name("control".into()).spawn(move || accept(&listener, &handle))?;
    Ok(())
}

/// A socket at `path` that only the user of this process may open, in place of what was there.
///
/// # Errors
/// It cannot be made.
pub(crate) fn listen(path: &Path) -> std::io::Result<UnixListener> {
    let new = path.with_extension("sock.new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&new, path)?;
    Ok(listener)
}

fn accept<H, R>(listener: &UnixListener, handle: &H)
where
    H: Fn(ControlRequest) -> R + Clone + Send + 'static,
    R: Into<ControlReply>,
{
    // Workers come first; clients' threads are started from here and inherit this.
    let _ = rustix::process::setpriority_process(None, CLIENT_NICE);
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        // Out of descriptors, most likely: it passes.
        let Ok(stream) = stream else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if clients.fetch_add(1, Ordering::AcqRel) >= CLIENTS_MAX {
            clients.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let (clients_there, handle) = (Arc::clone(&clients), handle.clone());
        let serve = move || {
            // A client that fails is its own loss.
            let _ = converse(stream, &handle);
            clients_there.fetch_sub(1, Ordering::AcqRel);
        };
        if std::thread::Builder::new().name("control-client".into()).spawn(serve).is_err() {
            clients.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn converse<R: Into<ControlReply>>(stream: UnixStream, handle: &impl Fn(ControlRequest) -> R) -> std::io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
    stream.set_write_timeout(Some(CLIENT_PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(line) = request_line(&mut reader)? {
        let ControlReply { answer, then } = match serde_json::from_slice(&line) {
            Ok(request) => handle(request).into(),
            Err(error) => ControlAnswer::Error(format!("not a request: {error}")).into(),
        };
        let sent = send(&stream, &answer);
        if let Some(then) = then {
            then();
            return Ok(());
        }
        sent?;
    }
    Ok(())
}

/// One line; `None` at the end. A client gets one patience for the whole line, however slowly it drips.
fn request_line(reader: &mut BufReader<UnixStream>) -> std::io::Result<Option<Vec<u8>>> {
    let deadline = Instant::now() + CLIENT_PATIENCE;
    let mut line = Vec::new();
    loop {
        let available = reader.fill_buf()?;
        if available.is_empty() {
            return Ok(None);
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(available.len(), |end| end + 1);
        line.extend_from_slice(&available[..taken]);
        reader.consume(taken);
        if line.len() as u64 > REQUEST_BYTES_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        if end.is_some() {
            return Ok(Some(line));
        }
        if Instant::now() >= deadline {
            return Err(ErrorKind::TimedOut.into());
        }
    }
}

fn send(mut stream: &UnixStream, answer: &ControlAnswer) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    stream.write_all(&text)
}

/// A client's end of the socket.
#[derive(Debug)]
pub struct ControlClient {
    path: PathBuf,
    stream: UnixStream,
    /// When the last request was answered; `None`: there has been none on this connection.
    answered: Option<Instant>,
}

impl ControlClient {
    /// Connects to the instance at `path`; `None` if no instance answers there.
    ///
    /// # Errors
    /// The socket is there, but may not be used.
    pub fn connect(path: &Path) -> Result<Option<ControlClient>> {
        match UnixStream::connect(path) {
            Ok(stream) => {
                stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
                stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
                Ok(Some(ControlClient { path: path.to_path_buf(), stream, answered: None }))
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                bail!("cannot use the control socket {}: {error}; run this as root", path.display())
            }
            Err(error) => bail!("cannot use the control socket {}: {error}", path.display()),
        }
    }

    /// The instance's status.
    ///
    /// # Errors
    /// It does not answer in time or does not make sense.
    pub fn status(&mut self) -> Result<Status> {
        match self.ask(&ControlRequest::Status)? {
            ControlAnswer::Status(status) => Ok(*status),
            other => unexpected(other),
        }
    }

    /// Asks the instance to end and waits until it has.
    ///
    /// # Errors
    /// It does not answer, or does not end in time.
    pub fn stop(mut self, flush: bool) -> Result<()> {
        match self.ask(&ControlRequest::Stop { flush })? {
            ControlAnswer::Stopping => self.await_end(),
            other => unexpected(other),
        }
    }

    /// Asks the instance to hand over to a new process and waits until the old one has nothing of it but connections that
    /// drain. The new one's number.
    ///
    /// # Errors
    /// It could not; the old process serves on.
    pub fn upgrade(mut self, how: Upgrade) -> Result<u32> {
        self.stream.set_read_timeout(Some(STOP_PATIENCE))?;
        match self.ask(&ControlRequest::Upgrade(how))? {
            ControlAnswer::Upgraded { pid } => self.await_end().map(|()| pid),
            other => unexpected(other),
        }
    }

    fn await_end(self) -> Result<()> {
        self.stream.set_read_timeout(Some(STOP_PATIENCE))?;
        match (&self.stream).read(&mut [0; 16]) {
            Ok(0) => Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
            Ok(_) => bail!("the instance says something after its end"),
            Err(error) => bail!("the instance has not ended within {} s: {error}", STOP_PATIENCE.as_secs()),
        }
    }

    /// Asks anything and gives the answer; [`ControlAnswer::Error`] is an error.
    ///
    /// # Errors
    /// It does not answer in time, does not make sense, or says why not.
    pub fn request(&mut self, request: &ControlRequest) -> Result<ControlAnswer> {
        if matches!(request, ControlRequest::Reload { .. } | ControlRequest::Diff { .. } | ControlRequest::Backend(_)) {
            self.stream.set_read_timeout(Some(CHANGE_PATIENCE))?;
        }
        match self.ask(request)? {
            ControlAnswer::Error(error) => bail!("{error}"),
            answer => Ok(answer),
        }
    }

    /// Asks anything and gives the answer, a refusal too. The connection is made again if it was idle for long, or has ended
    /// since the last answer.
    ///
    /// # Errors
    /// It does not answer in time, or does not make sense.
    pub(crate) fn ask(&mut self, request: &ControlRequest) -> Result<ControlAnswer> {
        let mut text = serde_json::to_vec(request)?;
        text.push(b'\n');
        if self.answered.is_some_and(|answered| answered.elapsed() >= KEPT_FOR) {
            self.reconnect()?;
        }
        let mut sent = self.stream.write_all(&text);
        // It is read only once it is whole, so it may be sent again.
        if sent.is_err() && self.answered.is_some() {
            self.reconnect()?;
            sent = self.stream.write_all(&text);
        }
        sent.context("the instance does not read its control socket")?;
        let mut line = Vec::new();
        let mut reader = BufReader::new(&self.stream).take(ANSWER_BYTES_MAX);
        reader.read_until(b'\n', &mut line).context("the instance does not answer on its control socket")?;
        if line.is_empty() {
            bail!("the instance has closed its control socket: it ends, or serves too many clients");
        }
        self.answered = Some(Instant::now());
        serde_json::from_slice(&line).context("the instance's answer makes no sense; is it another version?")
    }

    /// Takes another connection in place of one that the instance may have closed, with the same patience.
    fn reconnect(&mut self) -> Result<()> {
        let patience = self.stream.read_timeout()?;
        let Some(fresh) = ControlClient::connect(&self.path)? else {
            bail!("the instance does not answer at {} any more", self.path.display());
        };
        *self = fresh;
        Ok(self.stream.set_read_timeout(patience)?)
    }
}

/// For an answer to something else, or a refusal.
pub(crate) fn unexpected<T>(answer: ControlAnswer) -> Result<T> {
    match answer {
        ControlAnswer::Error(error) => bail!("{error}"),
        ControlAnswer::Stopping => bail!("the instance is stopping"),
        _ => bail!("the instance answers something else; is it another version?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    struct Fixture {
        directory: std::path::PathBuf,
        stopped: mpsc::Receiver<bool>,
    }

    impl Fixture {
        fn new(name: &str) -> Fixture {
            let directory = std::env::temp_dir().join(format!("hairpin-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            let status = Status { instance: name.into(), uptime_s: 1.5, ..Status::default() };
            let (sender, stopped) = mpsc::channel();
            let fixture = Fixture { directory, stopped };
            let handle = move |request| match request {
                ControlRequest::Status => ControlAnswer::Status(Box::new(status.clone())),
                ControlRequest::Stop { flush } => {
                    sender.send(flush).unwrap();
                    ControlAnswer::Stopping
                }
                other => ControlAnswer::Error(format!("{other:?} is not for tests")),
            };
            serve(&fixture.path(), handle).unwrap();
            fixture
        }

        fn path(&self) -> std::path::PathBuf {
            self.directory.join("s")
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }

    #[test]
    fn status_goes_through_the_socket() {
        let fixture = Fixture::new("status");
        let mut client = ControlClient::connect(&fixture.path()).unwrap().unwrap();
        for _ in 0..2 {
            let status = client.status().unwrap();
            assert_eq!((&*status.instance, status.uptime_s), ("status", 1.5));
        }
        let mode = std::fs::metadata(fixture.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_kept_connection_that_was_closed_is_made_again() {
        let fixture = Fixture::new("kept");
        let mut client = ControlClient::connect(&fixture.path()).unwrap().unwrap();
        client.status().unwrap();
        // As the instance does with a silent client; its end of the socket is not at hand.
        client.stream.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(&*client.status().unwrap().instance, "kept");
        client.answered = Instant::now().checked_sub(KEPT_FOR);
        assert_eq!(&*client.status().unwrap().instance, "kept");
        assert!(client.answered.is_some_and(|answered| answered.elapsed() < KEPT_FOR));
    }

    #[test]
    fn a_request_to_stop_says_whether_to_flush() {
        let fixture = Fixture::new("stop");
        let mut client = ControlClient::connect(&fixture.path()).unwrap().unwrap();
        assert_eq!(client.ask(&ControlRequest::Stop { flush: true }).unwrap(), ControlAnswer::Stopping);
        assert_eq!(fixture.stopped.recv_timeout(Duration::from_secs(5)), Ok(true));
    }

    #[test]
    fn nonsense_gets_an_error_and_the_next_request_an_answer() {
        let fixture = Fixture::new("nonsense");
        let mut stream = UnixStream::connect(fixture.path()).unwrap();
        stream.write_all(b"{\"request\":\"dance\"}\n{\"request\":\"status\"}\n").unwrap();
        let mut lines = BufReader::new(stream).lines();
        assert!(lines.next().unwrap().unwrap().starts_with("{\"error\":\"not a request: unknown variant `dance`"));
        assert!(lines.next().unwrap().unwrap().starts_with("{\"status\":{"));
    }

    #[test]
    fn an_endless_request_is_cut_off() {
        let fixture = Fixture::new("endless");
        let mut stream = UnixStream::connect(fixture.path()).unwrap();
        // The server may hang up while this is being written.
        let chunk = vec![b'x'; 1 << 20];
        let _ = (0..=REQUEST_BYTES_MAX >> 20).try_for_each(|_| stream.write_all(&chunk));
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        assert!(matches!(end, Ok(0)) || end.is_err());
    }

    #[test]
    fn silent_clients_do_not_keep_others_out() {
        let fixture = Fixture::new("silent");
        let _silent: Vec<_> = (0..CLIENTS_MAX - 1).map(|_| UnixStream::connect(fixture.path()).unwrap()).collect();
        assert!(ControlClient::connect(&fixture.path()).unwrap().unwrap().status().is_ok());
    }

    #[test]
    fn an_absent_instance_is_no_error() {
        assert!(ControlClient::connect(Path::new("/nonexistent/s")).unwrap().is_none());
        let fixture = Fixture::new("dead");
        let path = fixture.directory.join("dead");
        drop(UnixListener::bind(&path).unwrap());
        assert!(ControlClient::connect(&path).unwrap().is_none());
    }
}
