//! A plain HTTP client over a socket, and a server to talk to.

use hairpin::metrics::{self, MetricsServer};
use hairpin::status::Status;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long anything may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server of this status on a port of its own.
pub(crate) fn server(status: Status) -> MetricsServer {
    serve(move || Ok(status.clone()))
}

/// A server of this source on a port of its own.
pub(crate) fn serve(status: impl Fn() -> Result<Status, String> + Clone + Send + 'static) -> MetricsServer {
    metrics::serve("127.0.0.1:0".parse().unwrap(), status).unwrap()
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) code: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(named, _)| named == name).map(|(_, value)| value.as_str())
    }
}

/// A connection to a server.
pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn connect(to: SocketAddr) -> Client {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client(BufReader::new(stream))
    }

    /// Sends these bytes; the server may hang up while they are under way.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.0.get_mut().write_all(bytes.as_ref()).is_ok()
    }

    /// One answer; `None` if the server has closed instead. Fails if it does neither.
    pub(crate) fn response(&mut self, to_head: bool) -> Option<Response> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => return None,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
            other => drop(other.expect("the server answers or closes")),
        }
        let code = line.strip_prefix("HTTP/1.").unwrap_or_else(|| panic!("{line:?}"));
        let code = code.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        loop {
            line.clear();
            self.0.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
        }
        let mut response = Response { code, headers, body: String::new() };
        let length = response.header("content-length").map_or(0, |length| length.parse().unwrap());
        if !to_head {
            let mut body = vec![0; length];
            self.0.read_exact(&mut body).unwrap();
            response.body = String::from_utf8(body).unwrap();
        }
        Some(response)
    }

    /// Asks for `path` on this connection, which stays open.
    pub(crate) fn get(&mut self, path: &str) -> Option<Response> {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
        self.response(false)
    }

    /// Waits for the first byte of an answer, which stays unread.
    pub(crate) fn is_answered(&mut self) -> bool {
        self.0.get_ref().peek(&mut [0]).is_ok_and(|read| read == 1)
    }

    /// Whether the server closes without another byte.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.0.read(&mut [0]) {
            Ok(read) => read == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// `GET` of `path` on a connection of its own, with more header lines.
pub(crate) fn get_with(to: SocketAddr, path: &str, headers: &str) -> Response {
    let mut client = Client::connect(to);
    client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{headers}\r\n"));
    client.response(false).expect("an answer")
}

/// `GET` of `path` on a connection of its own.
pub(crate) fn get(to: SocketAddr, path: &str) -> Response {
    get_with(to, path, "")
}
