//! A client's TLS stream: rustls over a socket of the runtime.
//!
//! What is written is sealed into full records and leaves when the stream is flushed, or when there is much of it. So session
//! tickets, a response and the end of the stream can leave in one packet, and the frames of HTTP/2 do not each end with a
//! record of a few bytes.

use crate::challenge::{self, Challenges};
use crate::hello::{accept_hello, tell};
use rustls::{ServerConfig, ServerConnection};
use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The first byte of a TLS handshake (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;
/// Plain bytes that wait to be sealed at most; a multiple of a record's 16 KiB.
const STAGED_BYTES: usize = 64 * 1024;
/// Bytes that rustls takes before they have been sent.
const SEALED_BYTES: usize = 256 * 1024;

/// A client's stream, with or without TLS.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Unpin {
    /// Has the client see the connection break, once it is dropped.
    fn reset(&mut self);
}

impl ClientStream for TcpStream {
    fn reset(&mut self) {
        // It fails for a connection that is broken already.
        let _ = self.set_zero_linger();
    }
}

impl ClientStream for TlsStream {
    fn reset(&mut self) {
        self.socket.has_closed = false;
    }
}

/// A stream some of which has been read already.
pub(crate) struct Prefixed<S> {
    /// What is to be read before the rest of the stream.
    prefix: Vec<u8>,
    stream: S,
    sent_bytes: u64,
}

impl<S> Prefixed<S> {
    /// `prefix` was read from `stream`.
    pub(crate) fn new(prefix: Vec<u8>, stream: S) -> Prefixed<S> {
        Prefixed { prefix, stream, sent_bytes: 0 }
    }

    /// Bytes that the stream has taken.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }
}

impl<S: ClientStream> ClientStream for Prefixed<S> {
    fn reset(&mut self) {
        self.stream.reset();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Prefixed { prefix, stream, .. } = self.get_mut();
        if prefix.is_empty() {
            return Pin::new(stream).poll_read(cx, buf);
        }
        let count = prefix.len().min(buf.remaining());
        buf.put_slice(&prefix[..count]);
        prefix.drain(..count);
        if prefix.is_empty() {
            *prefix = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = written {
            self.sent_bytes += count as u64;
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(count)) = written {
            self.sent_bytes += count as u64;
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Why there is no TLS stream.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The client speaks clear text: its first byte is a letter.
    ClearText(Socket),
    /// It is no client of TLS, or one with which nothing can be agreed on.
    Failed,
}

/// A client's socket. Dropping it resets the connection, unless [`close`](Socket::close) was called: a client must not take a
/// part of a response for the whole.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) tcp: TcpStream,
    has_closed: bool,
}

impl Socket {
    pub(crate) fn new(tcp: TcpStream) -> Socket {
        Socket { tcp, has_closed: false }
    }

    /// Dropping it ends the connection in order.
    pub(crate) fn close(&mut self) {
        self.has_closed = true;
    }
}

impl ClientStream for Socket {
    fn reset(&mut self) {
        self.has_closed = false;
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close();
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.has_closed {
            self.tcp.reset();
        }
    }
}

/// A TLS stream whose handshake is done.
pub(crate) struct TlsStream {
    socket: Socket,
    session: ServerConnection,
    /// Plain bytes that are not sealed yet.
    staged: Vec<u8>,
    /// Bytes that the socket has taken.
    sent_bytes: u64,
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
        session.set_buffer_limit(Some(SEALED_BYTES));
        TlsStream { socket, session, staged: Vec::new(), sent_bytes: 0 }
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
                    // What is wrong is told, as far as the client still takes it.
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
        while self.session.wants_write() {
            match self.session.write_tls(&mut Sink { tcp: &mut self.socket.tcp, cx }) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => self.sent_bytes += count as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Seals what is staged. Pending: rustls takes no more before some is sent.
    fn poll_seal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut at = 0;
        while at < self.staged.len() {
            let count = self.session.writer().write(&self.staged[at..])?;
            at += count;
            if count == 0
                && let sent = self.poll_send(cx)
                && !matches!(sent, Poll::Ready(Ok(())))
            {
                self.staged.drain(..at);
                return sent;
            }
        }
        // A connection that waits holds no buffer.
        self.staged = Vec::new();
        Poll::Ready(Ok(()))
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
        let stream = self.get_mut();
        if stream.staged.len() >= STAGED_BYTES {
            ready!(stream.poll_seal(cx))?;
            ready_or_later(stream.poll_send(cx))?;
        }
        if !stream.staged.is_empty() || buf.len() < STAGED_BYTES {
            let count = buf.len().min(STAGED_BYTES - stream.staged.len());
            stream.staged.extend_from_slice(&buf[..count]);
            return Poll::Ready(Ok(count));
        }
        loop {
            let count = stream.session.writer().write(buf)?;
            let sent = stream.poll_send(cx);
            if count > 0 {
                ready_or_later(sent)?;
                return Poll::Ready(Ok(count));
            }
            ready!(sent)?;
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let all: usize = bufs.iter().map(|buf| buf.len()).sum();
        if stream.staged.len() + all <= STAGED_BYTES {
            bufs.iter().for_each(|buf| stream.staged.extend_from_slice(buf));
            return Poll::Ready(Ok(all));
        }
        let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
        Pin::new(stream).poll_write(cx, first)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        ready!(stream.poll_seal(cx))?;
        stream.poll_send(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if !stream.socket.has_closed {
            ready!(stream.poll_seal(cx))?;
            stream.session.send_close_notify();
            stream.socket.close();
        }
        ready!(stream.poll_send(cx))?;
        Pin::new(&mut stream.socket.tcp).poll_shutdown(cx)
    }
}

/// What cannot be sent now is sent later.
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
    tcp: &'a mut TcpStream,
    cx: &'a mut Context<'b>,
}

impl Sink<'_, '_> {
    fn done(written: Poll<io::Result<usize>>) -> io::Result<usize> {
        match written {
            Poll::Ready(result) => result,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Write for Sink<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Sink::done(Pin::new(&mut *self.tcp).poll_write(self.cx, bytes))
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        Sink::done(Pin::new(&mut *self.tcp).poll_write_vectored(self.cx, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
