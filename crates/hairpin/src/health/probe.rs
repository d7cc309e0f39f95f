//! One check: from the first packet to the verdict, within the target's timeout.
//!
//! Answers are untrusted: they are bounded in size and time, and no byte of them gets into a reason.
//! Sockets are closed with RST, so that no TIME_WAIT piles up here.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response, Version, header};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use rustix::io::Errno;
use socket2::{SockRef, Type};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::{Instant, timeout_at};

use super::grpc::{by_http2, grpc};
use super::target::{Check, CheckTarget, HttpCheck};

/// The head of an HTTP answer is given up when it is incomplete with this many bytes; hyper's last read can bring as
/// many again. Its default bound on header lines, 100, holds too.
pub(crate) const HEAD_BYTES_MAX: usize = 64 * 1024;
/// How much of an HTTP body is read, in bytes.
pub(crate) const BODY_BYTES_MAX: usize = 64 * 1024;
/// How much of a datagram is read, in bytes.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 8 * 1024;

/// The outcome of a check: why the backend is healthy, or what was wrong.
pub(super) type CheckOutcome = Result<String, CheckFailure>;

/// Why a check did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CheckFailure {
    /// The backend, or the way there.
    Backend(String),
    /// This host, which lacks something (a descriptor, a port, memory): says nothing about the backend.
    Local(String),
}

/// Performs `target`'s check; ends at its timeout at the latest.
pub(super) async fn probe(target: &CheckTarget) -> CheckOutcome {
    let deadline = Instant::now() + target.timeout;
    match &target.check {
        Check::None => Err(CheckFailure::Local("no check is configured".into())),
        Check::Tcp => connect(target, deadline).await.map(|_| "connected".into()),
        Check::Http(check) => {
            let stream = connect(target, deadline).await?;
            answer_within(target, deadline, http(stream, ("http", target.address), check, target.http2)).await
        }
        Check::Https(check) => {
            let Some(tls) = &target.tls else {
                return Err(CheckFailure::Local("TLS with the backend is not configured".into()));
            };
            let stream = connect(target, deadline).await?;
            let check = async {
                let stream = tls.connect(stream, target.address.ip()).await.map_err(|error| io_failure(&error))?;
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                if target.http2 && !http2 {
                    return Err(CheckFailure::Backend("TLS: the backend does not offer HTTP/2 (ALPN)".into()));
                }
                http(stream, ("https", target.address), check, http2).await
            };
            answer_within(target, deadline, check).await
        }
        Check::Grpc { service } => {
            let stream = connect(target, deadline).await?;
            let check = async {
                let Some(tls) = &target.tls else {
                    return grpc(stream, "http", target.address, service).await;
                };
                let stream = tls.connect(stream, target.address.ip()).await.map_err(|error| io_failure(&error))?;
                grpc(stream, "https", target.address, service).await
            };
            answer_within(target, deadline, check).await
        }
        Check::Udp { send, expect } => answer_within(target, deadline, udp(target, send, expect.as_deref())).await,
    }
}

/// A connection to the target, which will be reset when it is dropped.
async fn connect(target: &CheckTarget, deadline: Instant) -> Result<TcpStream, CheckFailure> {
    let socket = match target.peer() {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    let socket = socket.map_err(|error| io_failure(&error))?;
    mark(&socket, target)?;
    // Now rather than when it is connected, since it can be dropped at any moment.
    socket.set_zero_linger().map_err(|error| io_failure(&error))?;
    let Ok(connected) = timeout_at(deadline, socket.connect(target.peer())).await else {
        return Err(CheckFailure::Backend(format!("no connection within {}", text(target.timeout))));
    };
    let stream = connected.map_err(|error| io_failure(&error))?;
    // On this host, if no process listens, TCP can connect a port drawn at random with itself.
    if stream.local_addr().ok() == Some(target.peer()) {
        return Err(CheckFailure::Backend("connection refused".into()));
    }
    Ok(stream)
}

/// The longest segment of such a check, in bytes: it fits IPv6's smallest MTU with outer headers of IPv6 and UDP.
const SEGMENT_BYTES: u32 = 1280 - 48 - 60;

/// Has a check of a backend of direct server return take the way of clients' packets. Its port must be its own: the answers to
/// two checks of one port, at two backends of one VIP, could not be told apart. What is bound before it is connected shares
/// its port with no other such socket.
fn mark<S: AsFd>(socket: &S, target: &CheckTarget) -> Result<(), CheckFailure> {
    let Some(mark) = target.mark() else { return Ok(()) };
    let socket = SockRef::from(socket);
    socket.set_mark(mark).map_err(|error| io_failure(&error))?;
    if socket.r#type().is_ok_and(|kind| kind == Type::STREAM) {
        socket.bind(&unspecified(target.peer()).into()).map_err(|error| io_failure(&error))?;
        socket.set_tcp_mss(SEGMENT_BYTES).map_err(|error| io_failure(&error))?;
    }
    Ok(())
}

/// Any address of the family of `address`, and any port.
fn unspecified(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

async fn answer_within(
    target: &CheckTarget,
    deadline: Instant,
    check: impl Future<Output = CheckOutcome>,
) -> CheckOutcome {
    match timeout_at(deadline, check).await {
        Ok(outcome) => outcome,
        Err(_) => Err(CheckFailure::Backend(format!("no answer within {}", text(target.timeout)))),
    }
}

async fn udp(target: &CheckTarget, send: &[u8], expect: Option<&[u8]>) -> CheckOutcome {
    let socket = UdpSocket::bind(unspecified(target.peer())).await.map_err(|error| io_failure(&error))?;
    mark(&socket, target)?;
    // Connected: the kernel then takes answers from this address alone, and tells of ICMP errors.
    socket.connect(target.peer()).await.map_err(|error| io_failure(&error))?;
    socket.send(send).await.map_err(|error| io_failure(&error))?;
    let mut answer = vec![0; DATAGRAM_BYTES_MAX];
    let length = socket.recv(&mut answer).await.map_err(|error| io_failure(&error))?;
    match expect {
        Some(expect) if memmem::find(&answer[..length], expect).is_none() => {
            Err(CheckFailure::Backend("the answer does not contain what is expected".into()))
        }
        _ => Ok("answered".into()),
    }
}

async fn http(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    (scheme, address): (&str, SocketAddr),
    check: &HttpCheck,
    http2: bool,
) -> CheckOutcome {
    if http2 {
        let request = http2_request(scheme, address, check)?;
        return by_http2(stream, request, |response| judge(response, check)).await;
    }
    let request = request(address, check)?;
    let mut client = http1::Builder::new();
    client.max_buf_size(HEAD_BYTES_MAX);
    let (mut sender, connection) = client
        .handshake::<_, Empty<Bytes>>(TokioIo::new(Unclosed(stream)))
        .await
        .map_err(|error| http_failure(&error))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| http_failure(&error))?;
        judge(response, check).await
    };
    alongside(exchange, connection).await
}

fn request(address: SocketAddr, check: &HttpCheck) -> Result<Request<Empty<Bytes>>, CheckFailure> {
    let host = match &check.host {
        Some(host) => host.clone(),
        None => address.to_string(),
    };
    Request::builder()
        .method(check.method.as_str())
        .uri(check.path.as_str())
        .header(header::HOST, host)
        .header(header::USER_AGENT, "hairpin-health")
        .header(header::ACCEPT, "*/*")
        .header(header::CONNECTION, "close")
        .body(Empty::new())
        .map_err(|error| CheckFailure::Local(format!("the request cannot be made: {error}")))
}

/// The request of a check by HTTP/2, where the host is part of the target.
fn http2_request(scheme: &str, address: SocketAddr, check: &HttpCheck) -> Result<Request<Empty<Bytes>>, CheckFailure> {
    let host = check.host.clone().unwrap_or_else(|| address.to_string());
    Request::builder()
        .method(check.method.as_str())
        .uri(format!("{scheme}://{host}{}", check.path))
        .version(Version::HTTP_2)
        .header(header::USER_AGENT, "hairpin-health")
        .header(header::ACCEPT, "*/*")
        .body(Empty::new())
        .map_err(|error| CheckFailure::Local(format!("the request cannot be made: {error}")))
}

/// Drives an HTTP connection until `exchange` has ended; then both are dropped, and with them the socket.
pub(super) async fn alongside(exchange: impl Future<Output = CheckOutcome>, connection: impl Future) -> CheckOutcome {
    let (mut exchange, mut connection) = (pin!(exchange), pin!(connection));
    let mut connected = true;
    std::future::poll_fn(|context| {
        if let Poll::Ready(outcome) = exchange.as_mut().poll(context) {
            return Poll::Ready(outcome);
        }
        // The connection reports all its results, errors too, to the exchange, whose waker is this one.
        if connected {
            connected = connection.as_mut().poll(context).is_pending();
        }
        Poll::Pending
    })
    .await
}

async fn judge(response: Response<Incoming>, check: &HttpCheck) -> CheckOutcome {
    let status = response.status().as_u16();
    if !check.status.contains(status) {
        return Err(CheckFailure::Backend(format!("HTTP status {status}, expected {}", check.status)));
    }
    if let Some(text) = &check.body
        && !body_contains(response.into_body(), text.as_bytes()).await?
    {
        return Err(CheckFailure::Backend(format!("HTTP status {status}, but the body lacks {text:?}")));
    }
    Ok(format!("HTTP status {status}"))
}

/// Whether the first [`BODY_BYTES_MAX`] bytes of `body` contain `text`; reads no further than it must.
async fn body_contains(mut body: Incoming, text: &[u8]) -> Result<bool, CheckFailure> {
    let finder = memmem::Finder::new(text);
    let mut seen = Vec::new();
    while seen.len() < BODY_BYTES_MAX {
        let Some(frame) = body.frame().await else { break };
        let Ok(data) = frame.map_err(|error| http_failure(&error))?.into_data() else { continue };
        // Only where a new occurrence can begin, lest a body of single bytes cost their square.
        let from = seen.len().saturating_sub(text.len() - 1);
        seen.extend_from_slice(&data[..data.len().min(BODY_BYTES_MAX - seen.len())]);
        if finder.find(&seen[from..]).is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A connection that HTTP cannot shut down: a FIN before the backend's would end in TIME_WAIT in spite of the reset.
pub(super) struct Unclosed<S>(pub(super) S);

impl<S: AsyncRead + Unpin> AsyncRead for Unclosed<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context, to: &mut ReadBuf) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unclosed<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

pub(super) fn http_failure(error: &hyper::Error) -> CheckFailure {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    if let Some(source) = source {
        return io_failure(source);
    }
    CheckFailure::Backend(if error.is_parse() {
        // hyper's words are fixed, such as "message head is too large"; nothing of the answer is in them.
        format!("the answer is not HTTP as it should be: {error}")
    } else if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        "closed before the HTTP answer was complete".into()
    } else {
        format!("the HTTP answer is broken: {error}")
    })
}

pub(super) fn io_failure(error: &io::Error) -> CheckFailure {
    let backend = |text: &str| CheckFailure::Backend(text.into());
    if let Some(why) = hairpin_https::tls_failure(error) {
        return backend(why);
    }
    match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED) => backend("connection refused"),
        Some(Errno::CONNRESET | Errno::PIPE) => backend("connection reset"),
        Some(Errno::TIMEDOUT) => backend("connection timed out"),
        Some(Errno::HOSTUNREACH) => backend("host unreachable"),
        Some(Errno::NETUNREACH) => backend("network unreachable"),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT) => {
            CheckFailure::Local(format!("this host cannot check: {error}"))
        }
        _ if error.kind() == io::ErrorKind::UnexpectedEof => backend("closed before the HTTP answer was complete"),
        _ => CheckFailure::Backend(error.to_string()),
    }
}

fn text(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}
