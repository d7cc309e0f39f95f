//! A client's connection, which knows when its kernel heard that it was reset.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What is known of an operation's connection.
#[derive(Clone, Debug, Default)]
pub(super) struct SoakConnection {
    /// The client's port; 0 before there is a connection.
    pub(super) port: u16,
    heard: Arc<OnceLock<Instant>>,
}

impl SoakConnection {
    /// When the client's kernel heard that the connection was reset, to the precision of the client's reads. It tells the
    /// client only when all has been read that came before: a socket holds up to 6 MB.
    pub(super) fn heard(&self) -> Option<Instant> {
        self.heard.get().copied()
    }
}

/// See the module's documentation.
pub(super) struct SoakSocket {
    stream: TcpStream,
    heard: Arc<OnceLock<Instant>>,
}

impl SoakSocket {
    /// And what will be known of it.
    pub(super) fn new(stream: TcpStream) -> io::Result<(SoakSocket, SoakConnection)> {
        let connection = SoakConnection { port: stream.local_addr()?.port(), ..SoakConnection::default() };
        Ok((SoakSocket { stream, heard: Arc::clone(&connection.heard) }, connection))
    }

    /// An error waits behind what is still to be read (tcp_poll in Linux).
    fn listen(&self) {
        if self.heard.get().is_none() {
            let mut asked = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
            let is_reset =
                |asked: &PollFd<'_>| asked.revents().is_some_and(|revents| revents.contains(PollFlags::POLLERR));
            if poll(&mut asked, PollTimeout::ZERO).is_ok() && is_reset(&asked[0]) {
                let _ = self.heard.set(Instant::now());
            }
        }
    }
}

impl AsyncRead for SoakSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.listen();
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for SoakSocket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.listen();
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
