//! The control socket: one JSON request per line, one JSON answer per line, over a Unix socket only root may open.
//!
//! Clients cannot stall anything: each is served by a thread of its own, few at a time, with bounded sizes and
//! times, and none of them is the thread that keeps the instance alive.

use crate::status::Status;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a request at most, newline included.
const REQUEST_BYTES_MAX: u64 = 4096;
/// Bytes of an answer at most; 16,384 backends take about 8 MB.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Clients served at a time at most; others are turned away.
const CLIENTS_MAX: usize = 8;
/// How long a client may be silent, or not read.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);
/// How long an answer is waited for.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// How long a process may take to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The status.
    Status,
    /// End the process.
    Stop {
        /// Remove every object from the kernel, too.
        flush: bool,
    },
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Stop`]; the connection is closed when the process ends.
    Stopping,
    /// The request was not understood, or cannot be served now.
    Error(String),
}

/// Listens on `path`, replacing what a dead process left there; the caller makes sure that it is dead.
/// `status` makes a status, or says why it cannot; `stop` is called, with whether to flush, when a client asks
/// for the end. Both are called on threads of their own.
///
/// # Errors
/// The socket cannot be made.
pub fn serve<S, E>(path: &Path, status: S, stop: E) -> Result<()>
where
    S: Fn() -> std::result::Result<Status, String> + Clone + Send + 'static,
    E: Fn(bool) + Clone + Send + 'static,
{
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        bail!("cannot remove the dead control socket {}: {error}", path.display());
    }
    let about = || format!("cannot listen on the control socket {}", path.display());
    let listener = UnixListener::bind(path).with_context(about)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).with_context(about)?;
    std::thread::Builder::new().name("control".into()).spawn(move || accept(&listener, &status, &stop))?;
    Ok(())
}

fn accept<S, E>(listener: &UnixListener, status: &S, stop: &E)
where
    S: Fn() -> std::result::Result<Status, String> + Clone + Send + 'static,
    E: Fn(bool) + Clone + Send + 'static,
{
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
        let (clients_there, status, stop) = (Arc::clone(&clients), status.clone(), stop.clone());
        let serve = move || {
            // A client that fails is its own loss.
            let _ = converse(stream, &status, &stop);
            clients_there.fetch_sub(1, Ordering::AcqRel);
        };
        if std::thread::Builder::new().name("control-client".into()).spawn(serve).is_err() {
            clients.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn converse(
    stream: UnixStream,
    status: &impl Fn() -> std::result::Result<Status, String>,
    stop: &impl Fn(bool),
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
    stream.set_write_timeout(Some(CLIENT_PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(line) = request_line(&mut reader)? {
        let answer = match serde_json::from_slice(&line) {
            Ok(Request::Status) => match status() {
                Ok(status) => Answer::Status(Box::new(status)),
                Err(reason) => Answer::Error(reason),
            },
            Ok(Request::Stop { flush }) => {
                send(&stream, &Answer::Stopping)?;
                stop(flush);
                // Held open until the process ends, so that the client sees the end.
                std::thread::sleep(STOP_PATIENCE);
                return Ok(());
            }
            Err(error) => Answer::Error(format!("not a request: {error}")),
        };
        send(&stream, &answer)?;
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

fn send(mut stream: &UnixStream, answer: &Answer) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    stream.write_all(&text)
}

/// A client's end of the socket.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects to the instance at `path`; `None` if nobody answers there.
    ///
    /// # Errors
    /// The socket is there, but may not be used.
    pub fn connect(path: &Path) -> Result<Option<Client>> {
        match UnixStream::connect(path) {
            Ok(stream) => {
                stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
                stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
                Ok(Some(Client { stream }))
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
        match self.ask(Request::Status)? {
            Answer::Status(status) => Ok(*status),
            Answer::Error(error) => bail!("the instance answers: {error}"),
            Answer::Stopping => bail!("the instance is stopping"),
        }
    }

    /// Asks the instance to end and waits until it has.
    ///
    /// # Errors
    /// It does not answer, or does not end in time.
    pub fn stop(mut self, flush: bool) -> Result<()> {
        match self.ask(Request::Stop { flush })? {
            Answer::Stopping => {}
            Answer::Error(error) => bail!("the instance answers: {error}"),
            Answer::Status(_) => bail!("the instance answers something else"),
        }
        self.stream.set_read_timeout(Some(STOP_PATIENCE))?;
        match self.stream.read(&mut [0; 16]) {
            Ok(0) => Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
            Ok(_) => bail!("the instance says something after its end"),
            Err(error) => bail!("the instance has not ended within {} s: {error}", STOP_PATIENCE.as_secs()),
        }
    }

    fn ask(&mut self, request: Request) -> Result<Answer> {
        let mut text = serde_json::to_vec(&request)?;
        text.push(b'\n');
        self.stream.write_all(&text).context("the instance does not read its control socket")?;
        let mut line = Vec::new();
        let mut reader = BufReader::new(&self.stream).take(ANSWER_BYTES_MAX);
        reader.read_until(b'\n', &mut line).context("the instance does not answer on its control socket")?;
        if line.is_empty() {
            bail!("the instance has closed its control socket: it ends, or serves too many clients");
        }
        serde_json::from_slice(&line).context("the instance's answer makes no sense; is it another version?")
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
            let stop = move |flush| sender.send(flush).unwrap();
            serve(&fixture.path(), move || Ok(status.clone()), stop).unwrap();
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
        let mut client = Client::connect(&fixture.path()).unwrap().unwrap();
        for _ in 0..2 {
            let status = client.status().unwrap();
            assert_eq!((&*status.instance, status.uptime_s), ("status", 1.5));
        }
        let mode = std::fs::metadata(fixture.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_request_to_stop_says_whether_to_flush() {
        let fixture = Fixture::new("stop");
        let mut client = Client::connect(&fixture.path()).unwrap().unwrap();
        assert_eq!(client.ask(Request::Stop { flush: true }).unwrap(), Answer::Stopping);
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
        let _ = stream.write_all(&[b'x'; 64 << 10]);
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        assert!(matches!(end, Ok(0)) || end.is_err());
    }

    #[test]
    fn silent_clients_do_not_keep_others_out() {
        let fixture = Fixture::new("silent");
        let _silent: Vec<_> = (0..CLIENTS_MAX - 1).map(|_| UnixStream::connect(fixture.path()).unwrap()).collect();
        assert!(Client::connect(&fixture.path()).unwrap().unwrap().status().is_ok());
    }

    #[test]
    fn nobody_there_is_no_error() {
        assert!(Client::connect(Path::new("/nonexistent/s")).unwrap().is_none());
        let fixture = Fixture::new("dead");
        let path = fixture.directory.join("dead");
        drop(UnixListener::bind(&path).unwrap());
        assert!(Client::connect(&path).unwrap().is_none());
    }
}
