//! A client's stream as the protocols above it see it: bytes, and a reset that the client cannot take for an end.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A client's stream, with or without TLS.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Unpin {
    /// Has the client see the connection break, once it is dropped.
    fn reset(&mut self);
}

impl ClientStream for TcpStream {
    fn reset(&mut self) {
        // Setting the option fails for a connection that is broken already.
        let _ = self.set_zero_linger();
    }
}

/// A stream some of which has been read already.
pub(crate) struct Prefixed<S> {
    /// The bytes that are to be read before the rest of the stream.
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

    /// Whether dropping it ends the connection in order.
    pub(crate) fn is_closed(&self) -> bool {
        self.has_closed
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
