//! One of the soak's clients: request after request of all kinds, on connections that are kept and on others, and
//! WebSockets. Every byte that comes is compared.

use super::book::{OPERATION, OperationFailure, OperationKind, SoakBook, SoakOperation};
use super::bytes::{Contents, StreamPlace};
use super::socket::{SoakConnection, SoakSocket};
use futures_util::{SinkExt, StreamExt};
use http_body_util::BodyExt;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONNECTION, HOST, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message, Role};

/// The longest bodies that come down, and that go up, in bytes.
const DOWN_MAX: u64 = 50_000_000;
const UP_MAX: u64 = 5_000_000;
/// The longest message of a WebSocket.
const MESSAGE_MAX: u64 = 256 << 10;
/// How long nothing may come: a client that hears nothing for so long hangs.
const STALL: Duration = Duration::from_secs(60);
/// Requests on a kept connection, and messages of a WebSocket, at most.
const KEPT_MAX: u32 = 30;

/// A connection that takes requests.
struct Kept {
    sender: SendRequest<Contents>,
    connection: SoakConnection,
}

/// See the module's documentation.
pub(super) struct SoakClient {
    pub(super) service: &'static str,
    pub(super) to: SocketAddr,
    pub(super) book: Arc<SoakBook>,
    pub(super) random: fastrand::Rng,
    pub(super) stop: Arc<AtomicBool>,
}

fn failed(what: &str, error: impl Display) -> OperationFailure {
    OperationFailure::Failed(format!("{what}: {error}"))
}

/// Waits, but not for ever.
async fn within<T, E: Display>(what: &str, future: impl Future<Output = Result<T, E>>) -> Result<T, OperationFailure> {
    match timeout(STALL, future).await {
        Ok(result) => result.map_err(|error| failed(what, error)),
        Err(_) => Err(OperationFailure::Failed(format!("{what}: nothing for {STALL:?}"))),
    }
}

impl SoakClient {
    /// Goes on until it is told to stop; what is under way then comes to its end.
    pub(super) async fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            match self.random.u8(0..10) {
                0..2 => self.websocket().await,
                2..6 => self.requests(1).await,
                _ => {
                    let count = self.random.u32(2..=KEPT_MAX);
                    self.requests(count).await;
                }
            }
        }
    }

    /// A length: each order of magnitude as often as any other.
    fn length(&mut self, most: u64) -> u64 {
        let length = (self.random.f64() * (most as f64 + 1.0).ln()).exp() as u64;
        length.clamp(1, most)
    }

    fn operation(&self, kind: OperationKind, about: String) -> SoakOperation {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        SoakOperation {
            number,
            service: self.service,
            kind,
            about,
            began: Instant::now(),
            connection: SoakConnection::default(),
        }
    }

    async fn connect(&self) -> Result<Kept, OperationFailure> {
        let stream = within("connecting", TcpStream::connect(self.to)).await?;
        stream.set_nodelay(true).map_err(|error| failed("connecting", error))?;
        let (socket, connection) = SoakSocket::new(stream).map_err(|error| failed("connecting", error))?;
        let (sender, driver) = within("beginning", handshake(TokioIo::new(socket))).await?;
        // Errors in it are reported to the operation.
        tokio::spawn(driver.with_upgrades());
        self.book.note(|tally| tally.connections += 1);
        Ok(Kept { sender, connection })
    }

    /// So many requests on one connection, or on several if it is closed in between or one of them fails.
    async fn requests(&mut self, count: u32) {
        let mut kept: Option<Kept> = None;
        for number in 1..=count {
            if number > 1 && self.stop.load(Ordering::Relaxed) {
                return;
            }
            if let Some(kept_now) = &mut kept
                && kept_now.sender.ready().await.is_err()
            {
                self.book.note(|tally| tally.closed_idle += 1);
                kept = None;
            }
            let kinds = [
                OperationKind::Get,
                OperationKind::Get,
                OperationKind::Chunked,
                OperationKind::Echo,
                OperationKind::Echo,
                OperationKind::Mirror,
            ];
            let kind = *self.random.choice(&kinds).unwrap_or(&OperationKind::Get);
            let length = self.length(if matches!(kind, OperationKind::Get | OperationKind::Chunked) {
                DOWN_MAX
            } else {
                UP_MAX
            });
            let told = self.random.bool();
            let (last, how) = (number == count, if kept.is_some() { "kept" } else { "new" });
            let about = format!("{length} bytes, told {told}, {how} connection, last {last}");
            let mut operation = self.operation(kind, about);
            let result = self.request(&mut kept, &mut operation, (length, told, last)).await;
            if result.is_err() {
                kept = None;
            }
            self.book.end(&operation, result);
            if self.random.u8(0..4) == 0 {
                sleep(Duration::from_millis(self.random.u64(1..200))).await;
            }
        }
    }

    /// One of them; how many bytes it brought.
    async fn request(
        &self,
        kept: &mut Option<Kept>,
        operation: &mut SoakOperation,
        (length, told, last): (u64, bool, bool),
    ) -> Result<u64, OperationFailure> {
        let kept = match kept {
            Some(kept) => kept,
            None => kept.insert(self.connect().await?),
        };
        operation.connection = kept.connection.clone();
        self.book.begin(operation);
        let stream = operation.number;
        let (method, path, body) = match operation.kind {
            OperationKind::Echo => (Method::POST, "/echo".to_owned(), Contents::of(stream, length, told)),
            OperationKind::Mirror => (Method::POST, "/mirror".to_owned(), Contents::of(stream, length, told)),
            OperationKind::Chunked => (Method::GET, format!("/{stream}/{length}/chunked"), Contents::of(0, 0, true)),
            OperationKind::Get | OperationKind::WebSocket => {
                (Method::GET, format!("/{stream}/{length}"), Contents::of(0, 0, true))
            }
        };
        let mut request = self.head(operation, method, &path);
        if last {
            request = request.header(CONNECTION, "close");
        }
        let request = request.body(body).map_err(|error| failed("asking", error))?;
        let answer = within("asking", kept.sender.send_request(request)).await?;
        compare(answer, stream, length).await
    }

    fn head(&self, operation: &SoakOperation, method: Method, path: &str) -> hyper::http::request::Builder {
        let request = Request::builder().method(method).uri(path).header(HOST, self.service);
        request.header(OPERATION, operation.number)
    }

    /// A WebSocket, from its handshake to its end.
    async fn websocket(&mut self) {
        let count = self.random.u32(1..=KEPT_MAX);
        let mut operation = self.operation(OperationKind::WebSocket, format!("{count} messages"));
        let result = self.converse(&mut operation, count).await;
        self.book.end(&operation, result);
    }

    async fn converse(&mut self, operation: &mut SoakOperation, count: u32) -> Result<u64, OperationFailure> {
        let mut socket = self.upgraded(operation).await?;
        let (mut out, mut back, mut bytes) = (StreamPlace::of(operation.number), StreamPlace::of(operation.number), 0);
        for number in 1..=count {
            let (mut message, mut left) = (Vec::new(), self.length(MESSAGE_MAX));
            while left > 0 {
                let piece = out.take(left as usize);
                message.extend_from_slice(piece);
                left -= piece.len() as u64;
            }
            let length = message.len();
            within("sending a message", socket.send(Message::binary(message))).await?;
            let echoed = within("receiving a message", async {
                socket.next().await.unwrap_or(Err(tokio_tungstenite::tungstenite::Error::ConnectionClosed))
            });
            let echoed = echoed.await?.into_data();
            if echoed.len() != length || !back.is_next(&echoed) {
                let came = echoed.len();
                return Err(OperationFailure::WrongBytes(format!(
                    "message {number} of {length} bytes came back as {came} others"
                )));
            }
            bytes += length as u64;
            self.book.note(|tally| tally.messages += 1);
        }
        within("closing", socket.close(None)).await?;
        match within("being closed", async { socket.next().await.transpose() }).await? {
            None | Some(Message::Close(_)) => Ok(bytes),
            Some(other) => Err(OperationFailure::WrongBytes(format!("more than was sent, {} bytes", other.len()))),
        }
    }

    async fn upgraded(
        &self,
        operation: &mut SoakOperation,
    ) -> Result<WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>, OperationFailure> {
        let mut kept = self.connect().await?;
        operation.connection = kept.connection.clone();
        self.book.begin(operation);
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        let request = self.head(operation, Method::GET, "/socket").header(CONNECTION, "Upgrade");
        let request = request.header(UPGRADE, "websocket").header(SEC_WEBSOCKET_VERSION, "13");
        let request = request.header(SEC_WEBSOCKET_KEY, key).body(Contents::of(0, 0, true));
        let request = request.map_err(|error| failed("asking", error))?;
        let answer = within("asking for a WebSocket", kept.sender.send_request(request)).await?;
        let accept = answer.headers().get(SEC_WEBSOCKET_ACCEPT).and_then(|value| value.to_str().ok());
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS || accept != Some(&derive_accept_key(key.as_bytes())) {
            return Err(OperationFailure::Failed(format!(
                "no WebSocket but {} {:?}",
                answer.status(),
                answer.headers()
            )));
        }
        let upgraded = within("becoming a WebSocket", hyper::upgrade::on(answer)).await?;
        Ok(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await)
    }
}

/// Reads an answer to its end: it has to be 200, with the first `length` bytes of the stream.
async fn compare(answer: Response<hyper::body::Incoming>, stream: u64, length: u64) -> Result<u64, OperationFailure> {
    if answer.status() != StatusCode::OK {
        return Err(OperationFailure::Failed(format!("status {} {:?}", answer.status(), answer.headers())));
    }
    let (mut body, mut place, mut came) = (answer.into_body(), StreamPlace::of(stream), 0);
    while let Some(frame) =
        within("reading", async { body.frame().await.transpose() }).await.map_err(|failure| after(failure, came))?
    {
        let Some(bytes) = frame.data_ref() else { continue };
        if !place.is_next(bytes) {
            return Err(OperationFailure::WrongBytes(format!(
                "wrong bytes, within {} after {came} of {length}",
                bytes.len()
            )));
        }
        came += bytes.len() as u64;
    }
    match came == length {
        true => Ok(came),
        false => Err(OperationFailure::WrongBytes(format!("another length, {came} instead of {length}"))),
    }
}

fn after(failure: OperationFailure, came: u64) -> OperationFailure {
    match failure {
        OperationFailure::Failed(why) => OperationFailure::Failed(format!("{why}, after {came} bytes")),
        wrong @ OperationFailure::WrongBytes(_) => wrong,
    }
}
