//! Connections that stay while nodes come and go: some ask now and then, some only receive.

use super::PATIENCE;
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::namespace::{Namespace, Scratch};
use hairpin_e2e::tool::requests::Sessions;
use hairpin_e2e::tool::{http, inside};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

const SESSIONS: usize = 16;
const DOWNLOADS: usize = 8;
/// The bytes that a download takes at once, and its wait after that: a slow reader, whose page lasts longer than any test.
const PIECE: usize = 8 << 10;
const BETWEEN: Duration = Duration::from_millis(20);

/// The traffic; it ends when it is dropped.
pub(super) struct Traffic {
    sessions: Option<Sessions>,
    downloads: Vec<JoinHandle<Result<usize>>>,
    stop: Arc<AtomicBool>,
}

impl Traffic {
    /// Starts it towards these ends in turn.
    pub(super) fn start(client: &Namespace, scratch: &Scratch, to: &[SocketAddr]) -> Result<Traffic> {
        let sessions = Sessions::start(client, to, SESSIONS, "1k", Duration::from_millis(100), PATIENCE)?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut traffic = Traffic { sessions: Some(sessions), downloads: Vec::new(), stop };
        let page = Arc::new(std::fs::read(scratch.file("pages/100m"))?);
        for number in 0..DOWNLOADS {
            let (to, page, stop) = (to[number % to.len()], page.clone(), traffic.stop.clone());
            let stream = inside::run(client, move || begin(to))?;
            traffic.downloads.push(std::thread::spawn(move || receive(stream, &page, &stop)));
        }
        Ok(traffic)
    }

    /// Fails if any of the connections has: not one byte is missing, and each kept its server.
    pub(super) fn judge(mut self) -> Result<()> {
        // Whatever waits for a packet to be sent again is given the time: each brings one more answer, one more piece.
        self.stop.store(true, Ordering::Relaxed);
        let mut broken = Vec::new();
        for session in self.sessions.take().context("no sessions")?.stop()? {
            if let Some((_, why)) = &session.failed {
                broken.push(format!("a connection failed after {} answers: {why}", session.answered));
            }
            ensure!(session.servers.len() <= 1, "one connection met {:?}", session.servers);
        }
        for download in self.downloads.drain(..) {
            if let Err(error) = inside::join(download) {
                broken.push(format!("{error:#}"));
            }
        }
        if broken.is_empty() { Ok(()) } else { bail!("{} connections broke: {broken:#?}", broken.len()) }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for download in self.downloads.drain(..) {
            let _ = download.join();
        }
    }
}

/// Asks for a long page, and reads the answer's head.
fn begin(to: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).context("connect")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /100m HTTP/1.1\r\nHost: test\r\n\r\n")?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).context("the head")?;
        head.push(byte[0]);
    }
    ensure!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    Ok(stream)
}

/// Reads on and compares, until it is told to stop; one more piece then.
fn receive(mut stream: TcpStream, page: &[u8], stop: &AtomicBool) -> Result<usize> {
    let (mut got, mut piece) = (0, [0; PIECE]);
    loop {
        let last = stop.load(Ordering::Relaxed);
        stream.read_exact(&mut piece).with_context(|| format!("a download, after {got} bytes"))?;
        ensure!(page[got..].starts_with(&piece), "other bytes after {got}");
        got += PIECE;
        if last {
            return Ok(got);
        }
        sleep(BETWEEN);
    }
}

/// New connections, so many to each of the ends: every one works.
pub(super) fn new_connections(client: &Namespace, scratch: &Scratch, to: &[SocketAddr], count: usize) -> Result<()> {
    let page = std::fs::read(scratch.file("pages/1k"))?;
    let to = to.to_vec();
    inside::run(client, move || {
        for to in to {
            for number in 0..count {
                http::once(to, "1k", &page, PATIENCE).with_context(|| format!("connection {number} to {to}"))?;
            }
        }
        Ok(())
    })
}
