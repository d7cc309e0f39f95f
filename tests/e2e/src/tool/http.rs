//! A plain HTTP/1.1 client on a TCP connection that stays, which can also say what no client should.

use anyhow::{Context, Result, bail, ensure};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of a head at most.
const HEAD_MAX: usize = 16 << 10;

/// A connection from the calling thread's namespace.
#[derive(Debug)]
pub struct HttpConnection {
    stream: TcpStream,
    /// Bytes that have been read and not been used.
    ahead: Vec<u8>,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    /// HTTP status.
    pub status: u16,
    head: String,
    /// The page.
    pub body: Vec<u8>,
}

impl HttpResponse {
    /// The first value of the header `name`, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers(name).next()
    }

    /// All values of the header `name`, in any case.
    pub fn headers(&self, name: &str) -> impl Iterator<Item = &str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(':'));
        fields.filter(move |(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// Its head, status line and all.
    pub fn head(&self) -> &str {
        &self.head
    }

    /// Its body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The name of the server that answered.
    pub fn server(&self) -> Result<&str> {
        self.header("X-Server").with_context(|| format!("no X-Server in {:?}", self.head))
    }
}

impl HttpConnection {
    /// Connects within `timeout`.
    pub fn open(to: SocketAddr, timeout: Duration) -> Result<HttpConnection> {
        HttpConnection::over(TcpStream::connect_timeout(&to, timeout).context("connect")?)
    }

    /// Over a connection that there is.
    pub fn over(stream: TcpStream) -> Result<HttpConnection> {
        stream.set_nodelay(true)?;
        Ok(HttpConnection { stream, ahead: Vec::new() })
    }

    /// Our own end.
    pub fn own_end(&self) -> Result<SocketAddr> {
        Ok(self.stream.local_addr()?)
    }

    /// Our own end and the other one, with a space between.
    pub fn ends(&self) -> Result<String> {
        Ok(format!("{} {}", self.stream.local_addr()?, self.stream.peer_addr()?))
    }

    /// Asks for a page and waits for the answer, both within `timeout`. With `close` the server is asked to close.
    pub fn get(&mut self, page: &str, close: bool, timeout: Duration) -> Result<HttpResponse> {
        let last = if close { "Connection: close\r\n" } else { "" };
        self.send(format!("GET /{page} HTTP/1.1\r\nHost: test\r\n{last}\r\n").as_bytes(), timeout)?;
        self.answer(false, timeout)
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8], timeout: Duration) -> Result<()> {
        self.stream.set_write_timeout(Some(timeout))?;
        self.stream.write_all(bytes).context("send")
    }

    /// Says that no more will be sent.
    pub fn finish(&mut self) -> Result<()> {
        self.stream.shutdown(Shutdown::Write).context("half close")
    }

    /// The next answer (one of 1xx counts), complete within `timeout`. `to_head`: it is one to HEAD and has no body.
    pub fn answer(&mut self, to_head: bool, timeout: Duration) -> Result<HttpResponse> {
        let deadline = Instant::now() + timeout;
        let head = String::from_utf8_lossy(&self.take_until(b"\r\n\r\n", deadline)?).into_owned();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut answer =
            HttpResponse { status: status.with_context(|| format!("no status in {head:?}"))?, head, body: Vec::new() };
        if to_head || matches!(answer.status, 100..200 | 204 | 304) {
            return Ok(answer);
        }
        let chunked = answer.header("Transfer-Encoding").is_some_and(|coding| coding.ends_with("chunked"));
        let length = answer.header("Content-Length").map(str::parse).transpose().context("Content-Length")?;
        answer.body = match length {
            _ if chunked => self.take_chunks(deadline)?,
            Some(length) => self.take(length, deadline)?,
            None => {
                while self.read(deadline)? > 0 {}
                std::mem::take(&mut self.ahead)
            }
        };
        Ok(answer)
    }

    /// The next `length` bytes, whatever they are.
    pub fn bytes(&mut self, length: usize, timeout: Duration) -> Result<Vec<u8>> {
        self.take(length, Instant::now() + timeout)
    }

    /// The bytes until the connection is closed; fails if it is not within `timeout`, not if it is reset.
    pub fn rest(&mut self, timeout: Duration) -> Result<Vec<u8>> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.read(deadline) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.downcast_ref::<std::io::Error>().is_some_and(is_reset) => break,
                Err(error) => return Err(error).context("still open"),
            }
        }
        Ok(std::mem::take(&mut self.ahead))
    }

    fn take_until(&mut self, end: &[u8], deadline: Instant) -> Result<Vec<u8>> {
        loop {
            if let Some(at) = self.ahead.windows(end.len()).position(|bytes| bytes == end) {
                return Ok(self.ahead.drain(..at + end.len()).collect());
            }
            ensure!(self.ahead.len() < HEAD_MAX, "a head of {} bytes", self.ahead.len());
            self.read_some(deadline)?;
        }
    }

    fn take(&mut self, length: usize, deadline: Instant) -> Result<Vec<u8>> {
        while self.ahead.len() < length {
            self.read_some(deadline)?;
        }
        Ok(self.ahead.drain(..length).collect())
    }

    /// A chunked body without its trailers.
    fn take_chunks(&mut self, deadline: Instant) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = String::from_utf8_lossy(&self.take_until(b"\r\n", deadline)?).into_owned();
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(digits, 16).with_context(|| format!("not a chunk's size: {line:?}"))?;
            if size == 0 {
                while self.take_until(b"\r\n", deadline)? != b"\r\n" {}
                return Ok(body);
            }
            body.extend(self.take(size, deadline)?);
            ensure!(self.take(2, deadline)? == b"\r\n", "a chunk of {size} bytes does not end there");
        }
    }

    fn read_some(&mut self, deadline: Instant) -> Result<()> {
        match self.read(deadline)? {
            0 => bail!("closed before the answer was complete"),
            _ => Ok(()),
        }
    }

    /// Reads on; 0 bytes at the stream's end.
    fn read(&mut self, deadline: Instant) -> Result<usize> {
        let mut part = [0; 16 << 10];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("no answer in time");
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut part) {
                Ok(length) => {
                    self.ahead.extend_from_slice(&part[..length]);
                    return Ok(length);
                }
                // A socket with a timeout is not read on by the kernel after a process was stopped (signal(7)).
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => bail!("no answer in time"),
                Err(error) => return Err(error).context("receive"),
            }
        }
    }
}

fn is_reset(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionReset
}

/// One request on a connection of its own; name of the server that answered. The page must be `expected`.
pub fn once(to: SocketAddr, page: &str, expected: &[u8], timeout: Duration) -> Result<String> {
    once_from(to, page, expected, timeout).1
}

/// [`once`], and the port of the client's end if there was a connection.
pub fn once_from(to: SocketAddr, page: &str, expected: &[u8], timeout: Duration) -> (Option<u16>, Result<String>) {
    let start = Instant::now();
    let mut connection = match HttpConnection::open(to, timeout) {
        Ok(connection) => connection,
        Err(error) => return (None, Err(error)),
    };
    let port = connection.stream.local_addr().ok().map(|from| from.port());
    let mut answer = || {
        let answer =
            connection.get(page, true, timeout.saturating_sub(start.elapsed()).max(Duration::from_millis(1)))?;
        ensure!(answer.status == 200, "HTTP status {}", answer.status);
        ensure!(answer.body == expected, "other bytes than the page's ({} of them)", answer.body.len());
        Ok(answer.server()?.to_owned())
    };
    (port, answer())
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
