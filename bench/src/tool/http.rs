//! A plain HTTP/1.1 client on a TCP connection that stays, for servers of ours: answers have a `Content-Length`.

use anyhow::{Context, Result, bail, ensure};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of a head at most.
const HEAD_MAX: usize = 16 << 10;

/// A connection from the calling thread's namespace.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// What has been read and not been used.
    ahead: Vec<u8>,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    head: String,
    /// The page.
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of the header `name`, written as the servers write it.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// The name of the server that answered.
    pub fn server(&self) -> Result<&str> {
        self.header("X-Server").with_context(|| format!("no X-Server in {:?}", self.head))
    }
}

impl Connection {
    /// Connects within `timeout`.
    pub fn open(to: SocketAddr, timeout: Duration) -> Result<Connection> {
        let stream = TcpStream::connect_timeout(&to, timeout).context("connect")?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, ahead: Vec::new() })
    }

    /// Our own end.
    pub fn own_end(&self) -> Result<SocketAddr> {
        Ok(self.stream.local_addr()?)
    }

    /// Asks for a page and waits for the answer, both within `timeout`. With `close` the server is asked to close.
    pub fn get(&mut self, page: &str, close: bool, timeout: Duration) -> Result<Answer> {
        let deadline = Instant::now() + timeout;
        let last = if close { "Connection: close\r\n" } else { "" };
        self.stream.set_write_timeout(Some(timeout))?;
        self.stream
            .write_all(format!("GET /{page} HTTP/1.1\r\nHost: test\r\n{last}\r\n").as_bytes())
            .context("send")?;
        let head = loop {
            if let Some(end) = self.ahead.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let head: Vec<u8> = self.ahead.drain(..end + 4).collect();
                break String::from_utf8_lossy(&head).into_owned();
            }
            ensure!(self.ahead.len() < HEAD_MAX, "a head of {} bytes", self.ahead.len());
            self.read(deadline)?;
        };
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut answer = Answer { status: status.context("no status")?, head, body: Vec::new() };
        let length = answer.header("Content-Length").and_then(|length| length.trim().parse().ok());
        let length: usize = length.with_context(|| format!("no length in {:?}", answer.head))?;
        while self.ahead.len() < length {
            self.read(deadline)?;
        }
        answer.body = self.ahead.drain(..length).collect();
        Ok(answer)
    }

    fn read(&mut self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("no answer in time");
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut part = [0; 16 << 10];
        match self.stream.read(&mut part) {
            Ok(0) => bail!("closed before the answer was complete"),
            Ok(length) => self.ahead.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => bail!("no answer in time"),
            Err(error) => return Err(error).context("receive"),
        }
        Ok(())
    }
}

/// One request on a connection of its own; name of the server that answered. The page must be `expected`.
pub fn once(to: SocketAddr, page: &str, expected: &[u8], timeout: Duration) -> Result<String> {
    let start = Instant::now();
    let mut connection = Connection::open(to, timeout)?;
    let answer = connection.get(page, true, timeout.saturating_sub(start.elapsed()).max(Duration::from_millis(1)))?;
    ensure!(answer.status == 200, "HTTP status {}", answer.status);
    ensure!(answer.body == expected, "other bytes than the page's ({} of them)", answer.body.len());
    Ok(answer.server()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn served(answer: &'static [u8], body: impl FnOnce(SocketAddr)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            stream.write_all(answer).unwrap();
        });
        body(to);
        server.join().unwrap();
    }

    #[test]
    fn an_answer_is_read_whole() {
        served(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Server: server3\r\n\r\npage", |to| {
            assert_eq!(once(to, "x", b"page", Duration::from_secs(5)).unwrap(), "server3");
        });
    }

    #[test]
    fn other_bytes_an_early_end_and_another_status_are_failures() {
        for (answer, about) in [
            (&b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Server: server3\r\n\r\npagE"[..], "other bytes"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Server: server3\r\n\r\npag", "closed before"),
            (b"HTTP/1.1 503 No\r\nContent-Length: 4\r\nX-Server: server3\r\n\r\npage", "503"),
        ] {
            served(answer, |to| {
                let error = once(to, "x", b"page", Duration::from_secs(5)).unwrap_err();
                assert!(format!("{error:#}").contains(about), "{error:#}");
            });
        }
    }
}
