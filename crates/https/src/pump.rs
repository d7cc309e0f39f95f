//! Bytes from one stream to another, without a buffer for a stream that waits.
//!
//! Bytes that are read lie in the core's buffer, and are written from there in the same poll. Only what the receiver does not
//! take at once is copied into memory of the connection's own, and nothing is read until that is written. So a sender is slowed
//! down to what the receiver takes, and a connection that waits for its sender holds nothing.

use crate::control::Control;
use crate::deadline::Deadline;
use crate::local::Local;
use hairpin_core::l7::body::{BadChunk, Chunks, Length};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of heads that are read at a time.
const HEAD_BYTES: usize = 32 * 1024;

/// Reads what there is, at least a byte, behind what `input` has. 0: the sender has closed.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] at the deadline, else what the stream says.
pub(crate) async fn read<S: AsyncRead + Unpin>(
    local: &Local,
    io: &mut S,
    input: &mut Vec<u8>,
    deadline: &mut Deadline,
) -> io::Result<usize> {
    read_unless(local, io, input, deadline, None).await
}

/// Reads what there is, unless the connection is told to end before: then it is as if the sender had closed.
///
/// # Errors
/// As for [`read`].
pub(crate) async fn read_unless<S: AsyncRead + Unpin>(
    local: &Local,
    io: &mut S,
    input: &mut Vec<u8>,
    deadline: &mut Deadline,
    control: Option<&Control>,
) -> io::Result<usize> {
    std::future::poll_fn(|cx| match poll_read(cx, local, io, input) {
        Poll::Pending if control.is_some_and(|control| control.poll_draining(cx)) => Poll::Ready(Ok(0)),
        Poll::Pending => deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
        ready => ready,
    })
    .await
}

/// Reads what there is behind what `input` has.
pub(crate) fn poll_read<S: AsyncRead + Unpin>(
    cx: &mut Context<'_>,
    local: &Local,
    io: &mut S,
    input: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    let mut copied = local.copied.borrow_mut();
    let mut buffer = ReadBuf::new(&mut copied[..HEAD_BYTES]);
    ready!(Pin::new(io).poll_read(cx, &mut buffer))?;
    input.extend_from_slice(buffer.filled());
    Poll::Ready(Ok(buffer.filled().len()))
}

/// Writes all of `bytes`, and flushes the stream.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if the receiver takes nothing for `patience`, else what the stream says.
pub(crate) async fn write<S: AsyncWrite + Unpin>(
    io: &mut S,
    bytes: &[u8],
    deadline: &mut Deadline,
    patience: Duration,
) -> io::Result<()> {
    write_and(io, bytes, (deadline, patience), true).await
}

/// As [`write`]; `flushes`: else what is written may wait for what follows.
///
/// # Errors
/// As for [`write`].
pub(crate) async fn write_and<S: AsyncWrite + Unpin>(
    io: &mut S,
    bytes: &[u8],
    (deadline, patience): (&mut Deadline, Duration),
    flushes: bool,
) -> io::Result<()> {
    let mut rest = bytes;
    let mut is_set = false;
    std::future::poll_fn(|cx| {
        loop {
            let written = match rest.is_empty() {
                true if !flushes => return Poll::Ready(Ok(())),
                true => Pin::new(&mut *io).poll_flush(cx).map_ok(|()| 0),
                false => Pin::new(&mut *io).poll_write(cx, rest),
            };
            match written {
                Poll::Ready(Ok(0)) if rest.is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => {
                    rest = &rest[count..];
                    is_set = false;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    if !is_set {
                        deadline.set(patience);
                        is_set = true;
                    }
                    return deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
    })
    .await
}

/// Where a body ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BodyEnd {
    /// So many bytes are still to come.
    Bytes(u64),
    /// Where its chunks say.
    Chunked(Chunks),
    /// Where its sender closes.
    Close,
}

impl BodyEnd {
    /// Of a body of this length; `chunks` are to be read as these.
    pub(crate) fn of(length: Length, chunks: Chunks) -> BodyEnd {
        match length {
            Length::None => BodyEnd::Bytes(0),
            Length::Bytes(bytes) => BodyEnd::Bytes(bytes),
            Length::Chunked => BodyEnd::Chunked(chunks),
            Length::UntilClose | Length::Tunnel => BodyEnd::Close,
        }
    }

    /// Whether nothing more is to come.
    pub(crate) fn is_reached(&self) -> bool {
        match self {
            BodyEnd::Bytes(left) => *left == 0,
            BodyEnd::Chunked(chunks) => chunks.is_done(),
            BodyEnd::Close => false,
        }
    }

    /// Goes on with the next bytes of the stream: how many of them belong to the body.
    ///
    /// # Errors
    /// The error that its chunks have.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<usize, BadChunk> {
        match self {
            BodyEnd::Bytes(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= taken as u64;
                Ok(taken)
            }
            BodyEnd::Chunked(chunks) => chunks.feed(bytes),
            BodyEnd::Close => Ok(bytes.len()),
        }
    }
}

/// Why copying stopped before the end.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The sender's connection broke, or ended in the middle.
    Source,
    /// The receiver's connection broke.
    Sink,
    /// The sender's chunks are none.
    Malformed(BadChunk),
    /// The sender sent nothing for too long.
    Silent,
    /// The receiver took nothing for too long.
    Stuck,
}

/// A body on its way from one stream to the other.
pub(crate) struct Pump {
    end: BodyEnd,
    /// The bytes that were read and not written, from `at` on.
    leftover: Vec<u8>,
    at: usize,
    /// All has been read.
    is_read: bool,
    /// The receiver's stream is flushed in the end.
    flushes: bool,
    /// Bytes read so far.
    pub(crate) moved: u64,
}

impl Pump {
    /// `leftover` has been read already and is to be written first; the body's end is `end` behind that.
    pub(crate) fn new(end: BodyEnd, leftover: Vec<u8>) -> Pump {
        let is_read = end.is_reached();
        Pump { end, leftover, at: 0, is_read, flushes: true, moved: 0 }
    }

    /// The last bytes written may wait for those that follow.
    pub(crate) fn leave_unflushed(&mut self) {
        self.flushes = false;
    }

    /// Whether all of the body has been handed to the receiver's stream.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_read && self.leftover.is_empty()
    }

    /// Whether it waits for the receiver, not for the sender.
    pub(crate) fn waits_for_sink(&self) -> bool {
        self.at < self.leftover.len() || self.is_read
    }

    /// Copies as much as goes. What is read behind the body's end lies in `excess`.
    pub(crate) fn poll<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        local: &Local,
        (from, to): (&mut R, &mut W),
        excess: &mut Vec<u8>,
    ) -> Poll<Result<(), Stopped>> {
        loop {
            ready!(self.poll_leftover(cx, to)).map_err(|_| Stopped::Sink)?;
            if self.is_read && !self.flushes {
                return Poll::Ready(Ok(()));
            }
            if self.is_read {
                return Pin::new(to).poll_flush(cx).map_err(|_| Stopped::Sink);
            }
            let mut copied = local.copied.borrow_mut();
            let most = match self.end {
                BodyEnd::Bytes(left) => usize::try_from(left).unwrap_or(usize::MAX).min(copied.len()),
                _ => copied.len(),
            };
            let mut buffer = ReadBuf::new(&mut copied[..most]);
            match Pin::new(&mut *from).poll_read(cx, &mut buffer) {
                Poll::Pending => {
                    // The bytes written so far go out while the sender is waited for.
                    if let Poll::Ready(Err(_)) = Pin::new(to).poll_flush(cx) {
                        return Poll::Ready(Err(Stopped::Sink));
                    }
                    return Poll::Pending;
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Stopped::Source)),
                Poll::Ready(Ok(())) => {}
            }
            let bytes = buffer.filled();
            if bytes.is_empty() {
                if !matches!(self.end, BodyEnd::Close) {
                    return Poll::Ready(Err(Stopped::Source));
                }
                self.is_read = true;
                continue;
            }
            self.moved += bytes.len() as u64;
            let taken = self.end.feed(bytes).map_err(Stopped::Malformed)?;
            excess.extend_from_slice(&bytes[taken..]);
            self.is_read = self.end.is_reached();
            ready!(self.poll_through(cx, to, &bytes[..taken])).map_err(|_| Stopped::Sink)?;
        }
    }

    /// Writes `bytes`; what the receiver does not take at once is kept.
    fn poll_through<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut W,
        mut bytes: &[u8],
    ) -> Poll<io::Result<()>> {
        while !bytes.is_empty() {
            match Pin::new(&mut *to).poll_write(cx, bytes) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => bytes = &bytes[count..],
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.leftover = bytes.to_vec();
                    self.at = 0;
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_leftover<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, to: &mut W) -> Poll<io::Result<()>> {
        while self.at < self.leftover.len() {
            match ready!(Pin::new(&mut *to).poll_write(cx, &self.leftover[self.at..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.at += count,
            }
        }
        self.leftover = Vec::new();
        self.at = 0;
        Poll::Ready(Ok(()))
    }
}

/// How long a pump waits for its two ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For the sender to send.
    pub(crate) source: Duration,
    /// For the receiver to take something.
    pub(crate) sink: Duration,
}

/// Watches that a pump moves.
pub(crate) struct Watch {
    patience: Patience,
    deadline: Deadline,
    /// The bytes moved, and the end waited for, when the deadline was set.
    seen: Option<(u64, usize, bool)>,
}

impl Watch {
    pub(crate) fn new(patience: Patience) -> Watch {
        Watch { patience, deadline: Deadline::default(), seen: None }
    }

    /// Ready when a pump that is pending has waited for one end for too long. What `beside` it has moved meanwhile counts, too:
    /// the other direction of the same exchange.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, pump: &Pump, beside: u64) -> Poll<Stopped> {
        let waits_for_sink = pump.waits_for_sink();
        let now = (pump.moved.wrapping_add(beside), pump.at, waits_for_sink);
        if self.seen != Some(now) {
            self.seen = Some(now);
            self.deadline.set(if waits_for_sink { self.patience.sink } else { self.patience.source });
        }
        ready!(self.deadline.poll(cx));
        Poll::Ready(if waits_for_sink { Stopped::Stuck } else { Stopped::Silent })
    }
}
