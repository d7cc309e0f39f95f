//! A stream to a backend: TCP in clear text, TLS by rustls, or a stream of HTTP/2.

use crate::backend_tls::BackendTls;
use crate::http2_backend::{Http2Stream, Unfit};
use std::cell::RefCell;
use std::io::{self, IoSlice, Read};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, tcp};
use tokio_rustls::client::TlsStream;

/// A stream to a backend.
pub(crate) enum BackendStream {
    /// HTTP over TCP.
    Plain(TcpStream),
    /// HTTP over TLS. Both halves borrow it in turn, in one thread.
    Tls(Box<RefCell<TlsStream<TcpStream>>>),
    /// A stream of HTTP/2 that speaks HTTP/1.1 to this side. Both halves borrow it in turn, in one thread.
    Http2(Box<RefCell<Http2Stream>>),
}

impl BackendStream {
    /// Connects, and shakes hands if there is `tls`, behind bytes that go in clear text.
    ///
    /// # Errors
    /// The kernel's error, or [`io::ErrorKind::InvalidData`] if TLS cannot be agreed on.
    pub(crate) async fn connect(address: SocketAddr, tls: Option<(&BackendTls, &[u8])>) -> io::Result<BackendStream> {
        let mut tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let Some((tls, preface)) = tls else { return Ok(BackendStream::Plain(tcp)) };
        tcp.write_all(preface).await?;
        // In memory of its own: connections in clear text have no use for the room.
        let stream = Box::pin(tls.connect(tcp, address.ip())).await?;
        Ok(BackendStream::Tls(Box::new(RefCell::new(stream))))
    }

    /// Whether it is TCP, in clear text.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, BackendStream::Plain(_))
    }

    /// Whether TLS has been agreed on for HTTP/2 (ALPN).
    pub(crate) fn has_agreed_on_http2(&self) -> bool {
        match self {
            BackendStream::Tls(stream) => stream.borrow().get_ref().1.alpn_protocol() == Some(b"h2"),
            BackendStream::Plain(_) | BackendStream::Http2(_) => false,
        }
    }

    /// Whether it is a stream of a connection that others have streams of, too.
    pub(crate) fn is_http2(&self) -> bool {
        matches!(self, BackendStream::Http2(_))
    }

    /// Whether the backend has said that it has not looked at the request: another one may get it, whatever it is.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, BackendStream::Http2(stream) if stream.borrow().is_refused())
    }

    /// Why the request cannot go to this backend, which has not seen it.
    pub(crate) fn unfit(&self) -> Option<Unfit> {
        match self {
            BackendStream::Http2(stream) => stream.borrow().unfit(),
            BackendStream::Plain(_) | BackendStream::Tls(_) => None,
        }
    }

    /// The backend has not answered in time: its connection gets no further requests.
    pub(crate) fn retire(&self) {
        if let BackendStream::Http2(stream) = self {
            stream.borrow().retire();
        }
    }

    /// Whether nothing has come since the last response: neither bytes nor the end. Session tickets and other messages of
    /// TLS itself are read and do not count.
    pub(crate) fn is_quiet(&mut self) -> bool {
        match self {
            BackendStream::Plain(tcp) => {
                let mut byte = [0];
                matches!(tcp.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
            BackendStream::Http2(_) => false,
            BackendStream::Tls(stream) => {
                let (tcp, session) = stream.get_mut().get_mut();
                if session.wants_write() {
                    // The end of a request that the backend did not wait for.
                    return false;
                }
                loop {
                    match session.process_new_packets() {
                        Ok(state) if state.plaintext_bytes_to_read() == 0 && !state.peer_has_closed() => {}
                        _ => return false,
                    }
                    match session.read_tls(&mut Available(tcp)) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                        Ok(0) | Err(_) => return false,
                        Ok(_) => {}
                    }
                }
            }
        }
    }

    /// Its two directions.
    pub(crate) fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        match self {
            BackendStream::Plain(tcp) => {
                let (read, write) = tcp.split();
                (ReadHalf::Plain(read), WriteHalf::Plain(write))
            }
            BackendStream::Tls(stream) => (ReadHalf::Tls(stream), WriteHalf::Tls(stream)),
            BackendStream::Http2(stream) => (ReadHalf::Http2(stream), WriteHalf::Http2(stream)),
        }
    }
}

/// Reads what a socket has now. Unlike a poll, the read is not refused to a task that has done much already.
struct Available<'a>(&'a TcpStream);

impl Read for Available<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(into)
    }
}

/// The direction from a backend.
pub(crate) enum ReadHalf<'a> {
    /// Of TCP.
    Plain(tcp::ReadHalf<'a>),
    /// Of TLS.
    Tls(&'a RefCell<TlsStream<TcpStream>>),
    /// Of HTTP/2.
    Http2(&'a RefCell<Http2Stream>),
}

/// The direction to a backend.
pub(crate) enum WriteHalf<'a> {
    /// Of TCP.
    Plain(tcp::WriteHalf<'a>),
    /// Of TLS.
    Tls(&'a RefCell<TlsStream<TcpStream>>),
    /// Of HTTP/2.
    Http2(&'a RefCell<Http2Stream>),
}

/// Reads. What TLS has taken and a full socket has not leaves meanwhile: the writer may have nothing more to write, and the
/// backend waits for it.
fn poll_read_and_send(
    stream: &mut TlsStream<TcpStream>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    if stream.get_ref().1.wants_write() {
        // A backend that takes no more may have answered before.
        let _ = Pin::new(&mut *stream).poll_flush(cx);
    }
    Pin::new(stream).poll_read(cx, buf)
}

impl AsyncRead for BackendStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            BackendStream::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            BackendStream::Tls(stream) => poll_read_and_send(stream.get_mut(), cx, buf),
            BackendStream::Http2(stream) => Pin::new(stream.get_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncRead for ReadHalf<'_> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ReadHalf::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            ReadHalf::Tls(stream) => poll_read_and_send(&mut stream.borrow_mut(), cx, buf),
            ReadHalf::Http2(stream) => Pin::new(&mut *stream.borrow_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for BackendStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            BackendStream::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            BackendStream::Tls(stream) => Pin::new(stream.get_mut()).poll_write(cx, buf),
            BackendStream::Http2(stream) => Pin::new(stream.get_mut()).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            BackendStream::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            BackendStream::Tls(stream) => Pin::new(stream.get_mut()).poll_write_vectored(cx, bufs),
            BackendStream::Http2(stream) => Pin::new(stream.get_mut()).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            BackendStream::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            BackendStream::Tls(stream) => Pin::new(stream.get_mut()).poll_flush(cx),
            BackendStream::Http2(stream) => Pin::new(stream.get_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            BackendStream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            BackendStream::Tls(stream) => Pin::new(stream.get_mut()).poll_shutdown(cx),
            BackendStream::Http2(stream) => Pin::new(stream.get_mut()).poll_shutdown(cx),
        }
    }
}

impl AsyncWrite for WriteHalf<'_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            WriteHalf::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            WriteHalf::Tls(stream) => Pin::new(&mut *stream.borrow_mut()).poll_write(cx, buf),
            WriteHalf::Http2(stream) => Pin::new(&mut *stream.borrow_mut()).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            WriteHalf::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            WriteHalf::Tls(stream) => Pin::new(&mut *stream.borrow_mut()).poll_write_vectored(cx, bufs),
            WriteHalf::Http2(stream) => Pin::new(&mut *stream.borrow_mut()).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            WriteHalf::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            WriteHalf::Tls(stream) => Pin::new(&mut *stream.borrow_mut()).poll_flush(cx),
            WriteHalf::Http2(stream) => Pin::new(&mut *stream.borrow_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            WriteHalf::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            WriteHalf::Tls(stream) => Pin::new(&mut *stream.borrow_mut()).poll_shutdown(cx),
            WriteHalf::Http2(stream) => Pin::new(&mut *stream.borrow_mut()).poll_shutdown(cx),
        }
    }
}
