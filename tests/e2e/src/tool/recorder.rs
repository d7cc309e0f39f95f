//! A backend that remembers: every byte that its connections brought, and the requests it found in them.
//!
//! Its paths say how it answers: `/chunked` in chunks with a trailer, `/until-close` without a length, `/hints` after a
//! 103, `/silent` never, `/reset` by closing, `/status/503` with that status, `/raw?TEXT` with these bytes
//! (percent-encoded) and nothing else, `/raw-close?TEXT` with them and the connection's end, `/bytes/100000` with so many
//! letters. All others, `/echo` among them, are answered with the head of the request as it came, or with nothing where a
//! status has no body. `Upgrade: echo` makes the connection a tunnel that sends back what comes.

use crate::namespace::Namespace;
use crate::tool::inside;
use anyhow::{Context, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a thread that waits checks whether it should end.
const POLL: Duration = Duration::from_millis(50);
/// Bytes of a connection that are kept at most.
const KEPT_BYTES_MAX: usize = 256 << 10;
/// Bytes of a head or of a chunk's line at most.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// A request as the recorder understood it.
#[derive(Clone, Debug, Default)]
pub struct RecordedRequest {
    /// Number of its connection, from 1.
    pub connection: usize,
    /// The head, as it came, with the empty line.
    pub head: String,
    /// Bytes of the body, without the framing of chunks.
    pub body_bytes: u64,
    /// [`sum`] of the body.
    pub body_sum: u64,
}

impl RecordedRequest {
    /// The first value of a field, in any case.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields(name).next()
    }

    /// All values of a field.
    pub fn fields(&self, name: &str) -> impl Iterator<Item = &str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.filter(move |(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// The request line.
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    fn target(&self) -> &str {
        self.line().split(' ').nth(1).unwrap_or_default()
    }
}

/// A body's hash (FNV-1a, 64 bits), continued from `so_far` over `bytes`.
pub fn sum(so_far: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(so_far, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// [`sum`] of nothing.
pub const SUM_OF_NOTHING: u64 = 0xcbf2_9ce4_8422_2325;

/// The answer to `/bytes/` with this number.
pub fn letters(count: usize) -> String {
    ('a'..='z').cycle().take(count).collect()
}

#[derive(Debug, Default)]
struct RecorderMemory {
    heard: Vec<RecordedRequest>,
    raw: Vec<Vec<u8>>,
}

/// The running backend, ended when dropped.
#[derive(Debug)]
pub struct Recorder {
    stop: Arc<AtomicBool>,
    memory: Arc<Mutex<RecorderMemory>>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Starts it on `port`, both families. Its answers say `name` in `X-Server`.
    pub fn start(namespace: &Namespace, port: u16, name: &str) -> Result<Recorder> {
        let listener = inside::run(namespace, move || {
            TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).with_context(|| format!("could not listen on port {port}"))
        })?;
        listener.set_nonblocking(true)?;
        let (stop, memory) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(RecorderMemory::default())));
        let thread = std::thread::spawn({
            let (stop, memory, name) = (stop.clone(), memory.clone(), name.to_owned());
            move || serve(&listener, &stop, &memory, &name)
        });
        Ok(Recorder { stop, memory, thread: Some(thread) })
    }

    fn memory(&self) -> MutexGuard<'_, RecorderMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests so far, in the order in which they were complete.
    pub fn heard(&self) -> Vec<RecordedRequest> {
        self.memory().heard.clone()
    }

    /// The bytes of each connection, up to a bound, in the order in which they were made.
    pub fn raw(&self) -> Vec<Vec<u8>> {
        self.memory().raw.clone()
    }

    /// Forgets the requests and the bytes.
    pub fn forget(&self) {
        let mut memory = self.memory();
        memory.heard.clear();
        memory.raw.iter_mut().for_each(Vec::clear);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Bytes, some written as `%XX`.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let escaped = behind.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &behind[2..] } else { behind };
    }
    bytes
}

fn serve(listener: &TcpListener, stop: &Arc<AtomicBool>, memory: &Arc<Mutex<RecorderMemory>>, name: &str) {
    let mut threads = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(2));
            continue;
        };
        let number = {
            let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
            memory.raw.push(Vec::new());
            memory.raw.len()
        };
        let (stop, memory, name) = (stop.clone(), memory.clone(), name.to_owned());
        threads.push(std::thread::spawn(move || {
            let mut connection = RecordedConnection { stream, ahead: Vec::new(), number, stop, memory };
            // It ends when the client goes, in whatever way.
            let _ = connection.converse(&name);
        }));
    }
    for thread in threads {
        let _ = thread.join();
    }
}

struct RecordedConnection {
    stream: TcpStream,
    ahead: Vec<u8>,
    number: usize,
    stop: Arc<AtomicBool>,
    memory: Arc<Mutex<RecorderMemory>>,
}

impl RecordedConnection {
    fn converse(&mut self, name: &str) -> Result<()> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_nodelay(true)?;
        self.stream.set_read_timeout(Some(POLL))?;
        loop {
            let head = String::from_utf8_lossy(&self.until(b"\r\n\r\n")?).into_owned();
            let mut heard = RecordedRequest { connection: self.number, head, body_bytes: 0, body_sum: SUM_OF_NOTHING };
            if heard.field("Expect").is_some_and(|expected| expected.eq_ignore_ascii_case("100-continue")) {
                self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            self.body(&mut heard)?;
            let tunnel = heard.field("Upgrade").is_some_and(|protocol| protocol == "echo");
            self.memory.lock().unwrap_or_else(PoisonError::into_inner).heard.push(heard.clone());
            if tunnel {
                return self.tunnel();
            }
            let target = heard.target();
            if target.contains("/reset") {
                return Ok(());
            }
            if target.contains("/silent") {
                while self.read()? > 0 {}
                return Ok(());
            }
            let last = heard.field("Connection").is_some_and(|option| option.eq_ignore_ascii_case("close"));
            if self.answer(name, &heard)? || last {
                self.stream.shutdown(Shutdown::Write)?;
                return Ok(());
            }
        }
    }

    /// Answers; whether the answer's end is the connection's.
    fn answer(&mut self, name: &str, heard: &RecordedRequest) -> Result<bool> {
        let target = heard.target();
        if let Some((path, raw)) = target.split_once('?').filter(|(path, _)| path.contains("/raw")) {
            self.stream.write_all(&decoded(raw))?;
            return Ok(path.ends_with("/raw-close"));
        }
        let status = target.split_once("/status/").and_then(|(_, code)| code.get(..3)?.parse::<u16>().ok());
        let status = status.unwrap_or(200);
        let mut out = String::new();
        if target.contains("/hints") {
            out += "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n";
        }
        out += &format!(
            "HTTP/1.1 {status} As asked\r\nX-Server: {name}\r\nX-Connection: {}\r\nX-Body: {}:{:016x}\r\n",
            self.number, heard.body_bytes, heard.body_sum
        );
        let letters = target.split_once("/bytes/").and_then(|(_, count)| count.parse().ok()).map(letters);
        let body = letters.as_ref().unwrap_or(&heard.head);
        let has_body = !heard.line().starts_with("HEAD ") && !matches!(status, 204 | 304);
        let mut close = false;
        if target.contains("/chunked") {
            out += "Transfer-Encoding: chunked\r\nTrailer: X-Trailer\r\n\r\n";
            if has_body {
                for part in body.as_bytes().chunks(7) {
                    out += &format!("{:x};piece=1\r\n{}\r\n", part.len(), String::from_utf8_lossy(part));
                }
                out += "0\r\nX-Trailer: end\r\n\r\n";
            }
        } else if target.contains("/until-close") {
            close = true;
            out += "Connection: close\r\n\r\n";
            out += if has_body { body } else { "" };
        } else if status == 204 {
            out += "\r\n";
        } else {
            out += &format!("Content-Length: {}\r\n\r\n", body.len());
            out += if has_body { body } else { "" };
        }
        self.stream.write_all(out.as_bytes())?;
        Ok(close)
    }

    fn tunnel(&mut self) -> Result<()> {
        self.stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")?;
        loop {
            let bytes = std::mem::take(&mut self.ahead);
            self.stream.write_all(&bytes)?;
            if self.read()? == 0 {
                self.stream.shutdown(Shutdown::Write)?;
                return Ok(());
            }
        }
    }

    fn body(&mut self, heard: &mut RecordedRequest) -> Result<()> {
        let coding = heard.field("Transfer-Encoding").map(str::to_ascii_lowercase);
        if coding.is_some_and(|coding| coding.ends_with("chunked")) {
            loop {
                let line = String::from_utf8_lossy(&self.until(b"\r\n")?).into_owned();
                let size = u64::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16)?;
                if size == 0 {
                    while self.until(b"\r\n")? != b"\r\n" {}
                    return Ok(());
                }
                self.bytes(size, heard)?;
                self.until(b"\r\n")?;
            }
        }
        let length = heard.field("Content-Length").map_or(Ok(0), str::parse)?;
        self.bytes(length, heard)
    }

    fn bytes(&mut self, length: u64, heard: &mut RecordedRequest) -> Result<()> {
        let mut left = length;
        while left > 0 {
            if self.ahead.is_empty() && self.read()? == 0 {
                anyhow::bail!("the body ends early");
            }
            let part = left.min(self.ahead.len() as u64) as usize;
            heard.body_sum = sum(heard.body_sum, &self.ahead[..part]);
            heard.body_bytes += part as u64;
            self.ahead.drain(..part);
            left -= part as u64;
        }
        Ok(())
    }

    fn until(&mut self, end: &[u8]) -> Result<Vec<u8>> {
        loop {
            if let Some(at) = self.ahead.windows(end.len()).position(|bytes| bytes == end) {
                return Ok(self.ahead.drain(..at + end.len()).collect());
            }
            if self.ahead.len() > HEAD_BYTES_MAX || self.read()? == 0 {
                anyhow::bail!("nothing more that could be understood");
            }
        }
    }

    /// Reads on; 0 bytes at the stream's end.
    fn read(&mut self) -> Result<usize> {
        let mut part = [0; 64 << 10];
        let length = loop {
            match self.stream.read(&mut part) {
                Ok(length) => break length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !self.stop.load(Ordering::Relaxed) => {}
                Err(error) => return Err(error.into()),
            }
        };
        self.ahead.extend_from_slice(&part[..length]);
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let raw = &mut memory.raw[self.number - 1];
        let room = KEPT_BYTES_MAX.saturating_sub(raw.len());
        raw.extend_from_slice(&part[..length.min(room)]);
        Ok(length)
    }
}
