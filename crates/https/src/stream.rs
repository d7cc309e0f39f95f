//! A client's TLS stream: rustls over a socket of the runtime.
//!
//! Bytes that are written are sealed into full records and leave when the stream is flushed, or when there are many of them. So
//! session tickets, a response and the end of the stream can leave in one packet, and the frames of HTTP/2 do not each end with a
//! record of a few bytes. Only bytes that do not fill a record are copied before rustls copies and seals them.

use crate::challenge::{self, Challenges};
use crate::client_stream::{ClientStream, Socket};
use crate::hello::{accept_hello, tell};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustls::{ServerConfig, ServerConnection};
use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// The first byte of a TLS handshake (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;
/// Plain bytes of a full record (RFC 8446, 5.1).
const RECORD_BYTES: usize = 16 * 1024;
/// Bytes that sealing adds to a record at most: header, explicit nonce (TLS 1.2), type, tag.
const RECORD_MORE: usize = 32;
/// Sealed bytes that are worth sending before the stream is flushed. A connection with so many unsent takes no more.
const SENT_BYTES: usize = 64 * 1024;
/// Bytes that are sealed at a time at most.
const SEALED_BYTES: usize = 256 * 1024;

/// Why there is no TLS stream.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The client speaks clear text: its first byte is a letter.
    ClearText(Socket),
    /// The client does not speak TLS, or nothing can be agreed on with it.
    Failed,
}

/// A TLS stream whose handshake is done.
pub(crate) struct TlsStream {
    socket: Socket,
    session: ServerConnection,
    /// Plain bytes that are not sealed yet: less than a record.
    staged: Vec<u8>,
    /// Sealed bytes that the socket has not taken, at most.
    unsent: usize,
    /// Bytes that the socket has taken.
    sent_bytes: u64,
}

impl ClientStream for TlsStream {
    fn reset(&mut self) {
        self.socket.reset();
    }
}

impl TlsStream {
    /// Shakes hands with a client. Tickets wait for the first bytes that are written behind them.
    pub(crate) async fn accept(tcp: TcpStream, config: Arc<ServerConfig>) -> Result<TlsStream, HandshakeError> {
        let Ok(session) = ServerConnection::new(config) else { return Err(HandshakeError::Failed) };
        TlsStream::new(Socket::new(tcp), session).shake(true).await
    }

    /// As [`accept`](TlsStream::accept), but for the handshake of a CA, which gets the answer to its challenge.
    pub(crate) async fn accept_chosen(
        tcp: TcpStream,
        config: &Arc<ServerConfig>,
        challenges: &Challenges,
    ) -> Result<TlsStream, HandshakeError> {
        let mut socket = Socket::new(tcp);
        let accepted = match accept_hello(&mut socket.tcp).await {
            Ok(Some(accepted)) => accepted,
            Ok(None) => return Err(HandshakeError::ClearText(socket)),
            Err(_) => {
                socket.close();
                return Err(HandshakeError::Failed);
            }
        };
        let config = if challenge::is_asked(&accepted.client_hello()) { &challenges.0 } else { config };
        match accepted.into_connection(Arc::clone(config)) {
            Ok(session) => TlsStream::new(socket, session).shake(false).await,
            Err((_, alert)) => {
                tell(&mut socket.tcp, alert).await;
                socket.close();
                Err(HandshakeError::Failed)
            }
        }
    }

    fn new(socket: Socket, mut session: ServerConnection) -> TlsStream {
        // `poll_take` bounds what is sealed and not sent.
        session.set_buffer_limit(None);
        TlsStream { socket, session, staged: Vec::new(), unsent: 0, sent_bytes: 0 }
    }

    /// Does the rest of the handshake. `is_first`: nothing was read yet.
    async fn shake(self, mut is_first: bool) -> Result<TlsStream, HandshakeError> {
        let mut stream = self;
        let shaken = std::future::poll_fn(|cx| {
            while stream.session.is_handshaking() {
                ready!(stream.poll_send(cx))?;
                let mut source = Source { tcp: &mut stream.socket.tcp, cx, first: is_first.then_some(0) };
                match stream.session.read_tls(&mut source) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                    Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    result => drop(result?),
                }
                if is_clear_text(source.first) {
                    return Poll::Ready(Ok(false));
                }
                is_first = false;
                if let Err(error) = stream.session.process_new_packets() {
                    // The client is sent an alert, as far as it still takes one.
                    let _ = stream.poll_send(cx);
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
            }
            Poll::Ready(Ok(true))
        });
        match shaken.await {
            Ok(true) => Ok(stream),
            Ok(false) => Err(HandshakeError::ClearText(stream.socket)),
            Err(_) => {
                // The alert that says why is to be read.
                stream.socket.close();
                Err(HandshakeError::Failed)
            }
        }
    }

    pub(crate) fn session(&self) -> &ServerConnection {
        &self.session
    }

    /// Bytes that the socket has taken: that a client reads shows in it.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Sends what is sealed.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send_with(cx, SendFlags::empty())
    }

    fn poll_send_with(&mut self, cx: &mut Context<'_>, flags: SendFlags) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Sink { tcp: &self.socket.tcp, cx, flags }) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    self.sent_bytes += count as u64;
                    self.unsent = self.unsent.saturating_sub(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.unsent = 0;
        Poll::Ready(Ok(()))
    }

    /// Seals what is staged.
    fn seal(&mut self) -> io::Result<()> {
        // A connection that waits holds no buffer.
        let staged = std::mem::take(&mut self.staged);
        self.session.writer().write_all(&staged)?;
        self.sealed(staged.len());
        Ok(())
    }

    /// Notes how many plain bytes were sealed.
    fn sealed(&mut self, count: usize) {
        self.unsent += count + count.div_ceil(RECORD_BYTES) * RECORD_MORE;
    }

    /// Takes plain bytes of two buffers: full records are sealed, the rest is staged. Pending: enough waits for the socket.
    fn poll_take(&mut self, cx: &mut Context<'_>, bufs: [&[u8]; 2]) -> Poll<io::Result<usize>> {
        let (before, all) = (self.staged.len(), bufs[0].len() + bufs[1].len());
        let whole = ((before + all) / RECORD_BYTES * RECORD_BYTES).min(SEALED_BYTES);
        // Small writes wait as well: each flush seals them, and rustls has no bound of its own here.
        if self.unsent >= SENT_BYTES {
            let sent = self.poll_send(cx);
            if sent.is_ready() || self.unsent >= SENT_BYTES {
                ready!(sent)?;
            }
        }
        let mut count = 0;
        if whole > 0 {
            let mut left = whole;
            let parts = [&self.staged[..], bufs[0], bufs[1]].map(|buf| {
                let part = &buf[..buf.len().min(left)];
                left -= part.len();
                IoSlice::new(part)
            });
            // Without a bound rustls takes all.
            if self.session.writer().write_vectored(&parts)? != whole {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.staged.clear();
            self.sealed(whole);
            if self.unsent >= SENT_BYTES {
                ready_or_later(self.poll_send(cx))?;
            }
            count = whole - before;
        }
        if all - count < RECORD_BYTES {
            let first = &bufs[0][count.min(bufs[0].len())..];
            let second = &bufs[1][count.saturating_sub(bufs[0].len())..];
            self.staged.extend_from_slice(first);
            self.staged.extend_from_slice(second);
            count = all;
        }
        Poll::Ready(Ok(count))
    }
}

/// Whether a connection that begins with this byte is one in clear text.
pub(crate) fn is_clear_text(first: Option<u8>) -> bool {
    first.is_some_and(|byte| byte != HANDSHAKE && byte.is_ascii_uppercase())
}

impl AsyncRead for TlsStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        loop {
            match stream.session.reader().read(buf.initialize_unfilled()) {
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            match stream.session.read_tls(&mut Source { tcp: &mut stream.socket.tcp, cx, first: None }) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Tickets and answers to the client's messages leave while it is waited for.
                    return match stream.poll_send(cx) {
                        Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                        _ => Poll::Pending,
                    };
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            if let Err(error) = stream.session.process_new_packets() {
                let _ = stream.poll_send(cx);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
            }
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_take(cx, [buf, &[]])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut filled = bufs.iter().map(|buf| &buf[..]).filter(|buf| !buf.is_empty());
        let bufs = [filled.next().unwrap_or_default(), filled.next().unwrap_or_default()];
        self.get_mut().poll_take(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        stream.seal()?;
        stream.poll_send(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if !stream.socket.is_closed() {
            stream.seal()?;
            stream.session.send_close_notify();
            stream.socket.close();
        }
        // The FIN follows at once, and leaves with the last segment instead of in a packet of its own.
        ready!(stream.poll_send_with(cx, SendFlags::MORE))?;
        Pin::new(&mut stream.socket.tcp).poll_shutdown(cx)
    }
}

/// Bytes that cannot be sent now are sent later.
fn ready_or_later(sent: Poll<io::Result<()>>) -> io::Result<()> {
    match sent {
        Poll::Ready(result) => result,
        Poll::Pending => Ok(()),
    }
}

/// The socket as rustls reads it.
pub(crate) struct Source<'a, 'b> {
    pub(crate) tcp: &'a mut TcpStream,
    pub(crate) cx: &'a mut Context<'b>,
    /// The first byte that is read, if it is wanted.
    pub(crate) first: Option<u8>,
}

impl Read for Source<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(into);
        match Pin::new(&mut *self.tcp).poll_read(self.cx, &mut buffer) {
            Poll::Ready(result) => result?,
            Poll::Pending => return Err(io::ErrorKind::WouldBlock.into()),
        }
        if self.first.is_some() {
            self.first = buffer.filled().first().copied();
        }
        Ok(buffer.filled().len())
    }
}

/// The socket as rustls writes to it.
struct Sink<'a, 'b> {
    tcp: &'a TcpStream,
    cx: &'a mut Context<'b>,
    flags: SendFlags,
}

impl Write for Sink<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            let Poll::Ready(is_ready) = self.tcp.poll_write_ready(self.cx) else {
                return Err(io::ErrorKind::WouldBlock.into());
            };
            is_ready?;
            let sent = self.tcp.try_io(Interest::WRITABLE, || {
                let flags = self.flags | SendFlags::NOSIGNAL;
                Ok(sendmsg(self.tcp, bytes, &mut SendAncillaryBuffer::default(), flags)?)
            });
            match sent {
                // The socket was thought to have room: what wakes the task is set up by the next look.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use std::task::Waker;

    fn configs() -> (ServerConfig, ClientConfig) {
        let made = rcgen::generate_simple_self_signed(vec!["web.test".into()]).unwrap();
        let certificate = CertificateDer::from(made.cert);
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let server = server.unwrap().with_no_client_auth().with_single_cert(vec![certificate], key);
        (server.unwrap(), client.unwrap().with_root_certificates(roots).with_no_client_auth())
    }

    /// A stream, and the socket of its client, which has shaken hands and reads no more.
    async fn unread() -> (TlsStream, std::net::TcpStream) {
        let (server, client) = configs();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::thread::spawn(move || {
            let mut socket = std::net::TcpStream::connect(address).unwrap();
            let name = ServerName::try_from("web.test").unwrap();
            let mut session = ClientConnection::new(Arc::new(client), name).unwrap();
            while session.is_handshaking() {
                session.complete_io(&mut socket).unwrap();
            }
            socket
        });
        let (tcp, _) = listener.accept().await.unwrap();
        let stream = TlsStream::accept(tcp, Arc::new(server)).await.unwrap();
        (stream, client.join().unwrap())
    }

    /// Writes pages of `page` bytes, flushes each, and goes on although the socket takes no more: as HTTP/2 with many small
    /// responses does. Returns the bytes that wait when the stream takes no more.
    fn fill(page: usize) -> usize {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut stream, _client) = unread().await;
            let cx = &mut Context::from_waker(Waker::noop());
            let page = vec![7; page];
            // The sockets' own buffers take some megabytes.
            let mut written = 0;
            while written < 100 << 20 {
                match Pin::new(&mut stream).poll_write(cx, &page) {
                    Poll::Ready(count) => written += count.unwrap(),
                    Poll::Pending => {
                        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                        if Pin::new(&mut stream).poll_write(cx, &page).is_pending() {
                            return stream.unsent + stream.staged.len();
                        }
                    }
                }
                ready_or_later(Pin::new(&mut stream).poll_flush(cx)).unwrap();
            }
            panic!("the stream takes {written} bytes that no client reads");
        })
    }

    #[test]
    fn client_that_does_not_read_has_few_bytes_waiting() {
        assert!(fill(1024) < SENT_BYTES + RECORD_BYTES);
        assert!(fill(100 << 10) < SENT_BYTES + SEALED_BYTES + RECORD_BYTES);
    }
}
