//! The stream below the h2 crate. It counts and bounds what that crate does not: unfinished header blocks, frames that carry no
//! head or data, resets, and a client that does not read.

use super::scanner::{CONTINUATION, DATA, Frame, GOAWAY, HEADERS, PREFACE_BYTES, RST_STREAM, Scanner};
use crate::client_stream::Prefixed;
use crate::local::Counts;
use crate::stream::TlsStream;
use h2::Reason;
use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// The time in which frames are counted, before counting starts anew.
pub const COUNTED_FOR: Duration = Duration::from_secs(10);
/// Streams that a client may reset, or have reset by what breaks HTTP/2, in [`COUNTED_FOR`], beyond those that came to their
/// end (CVE-2023-44487, CVE-2025-8671).
pub const RESETS_MAX: u64 = 100;
/// Frames that carry no head or data (PING, SETTINGS, WINDOW_UPDATE, PRIORITY, unknown ones, DATA without data) that a client may
/// send in [`COUNTED_FOR`] (CVE-2019-9511 to 9518) ...
pub const IDLE_FRAMES_MAX: u64 = 1000;
/// ... and beyond that for each frame with a head or data, of either side.
pub const IDLE_FRAMES_EACH: u64 = 10;

/// A stream that tells how much of what was written has left.
pub(crate) trait SendProgress {
    /// Bytes that the socket has taken.
    fn sent_bytes(&self) -> u64;
}

impl SendProgress for TlsStream {
    fn sent_bytes(&self) -> u64 {
        TlsStream::sent_bytes(self)
    }
}

impl<S> SendProgress for Prefixed<S> {
    fn sent_bytes(&self) -> u64 {
        Prefixed::sent_bytes(self)
    }
}

/// The record of a connection.
pub(super) struct Seen {
    counts: Rc<Counts>,
    read: Scanner,
    written: Scanner,
    /// Since when a header block has been incomplete.
    pub(super) block_since: Option<Instant>,
    /// Since when the client has taken nothing of what waits for it.
    pub(super) stuck_since: Option<Instant>,
    sent_bytes: u64,
    tally: Tally,
    /// The client has done something too often. Nothing more is read.
    pub(super) is_excessive: bool,
    /// Why the connection ends is counted.
    pub(super) is_counted: bool,
}

/// The counts since `start`.
struct Tally {
    start: Instant,
    /// Frames with a head or data.
    useful: u64,
    idle: u64,
    resets: u64,
    /// Streams whose response was sent to its end.
    finished: u64,
}

impl Tally {
    fn new(start: Instant) -> Tally {
        Tally { start, useful: 0, idle: 0, resets: 0, finished: 0 }
    }

    fn read(&mut self, frame: &Frame<'_>) {
        match frame.kind {
            HEADERS => self.useful += 1,
            DATA if !frame.is_empty_data() || frame.ends_stream() => self.useful += 1,
            RST_STREAM => self.resets += 1,
            // The h2 crate bounds them.
            CONTINUATION => {}
            _ => self.idle += 1,
        }
    }

    fn written(&mut self, frame: &Frame<'_>) {
        self.useful += u64::from(matches!(frame.kind, HEADERS | DATA));
        self.finished += u64::from(frame.ends_stream());
    }
}

impl Seen {
    pub(super) fn new(counts: &Rc<Counts>) -> Rc<RefCell<Seen>> {
        Rc::new(RefCell::new(Seen {
            counts: Rc::clone(counts),
            read: Scanner::new(PREFACE_BYTES),
            written: Scanner::new(0),
            block_since: None,
            stuck_since: None,
            sent_bytes: 0,
            tally: Tally::new(Instant::now()),
            is_excessive: false,
            is_counted: false,
        }))
    }

    fn read(&mut self, bytes: &[u8]) {
        let Seen { counts, read, tally, .. } = self;
        let now = Instant::now();
        if now.duration_since(tally.start) >= COUNTED_FOR {
            *tally = Tally::new(now);
        }
        let before = tally.resets;
        let has_ended = read.feed(bytes, |frame| tally.read(frame));
        if tally.resets > before {
            counts.change(|statistics| statistics.http2_resets += tally.resets - before);
        }
        self.block_since = match self.block_since.filter(|_| !has_ended) {
            Some(since) => Some(since),
            None => read.is_in_block().then_some(now),
        };
        let (resets, floods) = (
            tally.resets > RESETS_MAX + tally.finished,
            tally.idle > IDLE_FRAMES_MAX + IDLE_FRAMES_EACH * tally.useful,
        );
        if (resets || floods) && !self.is_excessive {
            self.is_excessive = true;
            self.is_counted = true;
            counts.change(|statistics| match resets {
                true => statistics.http2_resets_excessive += 1,
                false => statistics.http2_floods += 1,
            });
        }
    }

    /// Errors that the h2 crate finds are counted by the frames that report them: the crate tells the client more than its caller.
    fn written(&mut self, bytes: &[u8]) {
        let Seen { counts, written, tally, is_counted, .. } = self;
        written.feed(bytes, |frame| {
            tally.written(frame);
            let Some((code, text)) = frame.error() else { return };
            match (frame.kind, Reason::from(code)) {
                (RST_STREAM, Reason::REFUSED_STREAM) => {
                    counts.change(|statistics| statistics.http2_refused_streams += 1);
                }
                (
                    RST_STREAM,
                    Reason::PROTOCOL_ERROR
                    | Reason::FLOW_CONTROL_ERROR
                    | Reason::STREAM_CLOSED
                    | Reason::FRAME_SIZE_ERROR,
                ) => {
                    tally.resets += 1;
                    counts.change(|statistics| statistics.http2_malformed_streams += 1);
                }
                (GOAWAY, Reason::NO_ERROR) => {}
                (GOAWAY, reason) if !*is_counted => {
                    *is_counted = true;
                    let is_calm = reason == Reason::ENHANCE_YOUR_CALM;
                    let is_reset = text.starts_with(b"too_many_resets") || text.starts_with(b"too_many_intern");
                    counts.change(|statistics| match (is_calm, is_reset) {
                        (true, true) => statistics.http2_resets_excessive += 1,
                        (true, false) => statistics.http2_floods += 1,
                        _ => statistics.http2_malformed += 1,
                    });
                }
                _ => {}
            }
        });
    }

    /// Notes that a write went on, or had to wait.
    fn sent(&mut self, sent_bytes: u64, is_pending: bool) {
        let has_moved = std::mem::replace(&mut self.sent_bytes, sent_bytes) != sent_bytes;
        if self.stuck_since.is_none() && is_pending || self.stuck_since.is_some() && has_moved {
            self.stuck_since = Some(Instant::now());
        }
    }
}

/// The stream of a client, as the h2 crate has it.
pub(super) struct Watched<'a, S> {
    io: &'a mut S,
    seen: Rc<RefCell<Seen>>,
}

impl<'a, S> Watched<'a, S> {
    pub(super) fn new(io: &'a mut S, seen: Rc<RefCell<Seen>>) -> Watched<'a, S> {
        Watched { io, seen }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<'_, S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let watched = self.get_mut();
        let mut seen = watched.seen.borrow_mut();
        if seen.is_excessive {
            // The connection is ended at once, not when all that has come is read.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut *watched.io).poll_read(cx, buf))?;
        seen.read(&buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + SendProgress + Unpin> AsyncWrite for Watched<'_, S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let watched = self.get_mut();
        let written = Pin::new(&mut *watched.io).poll_write(cx, buf);
        let mut seen = watched.seen.borrow_mut();
        seen.sent(watched.io.sent_bytes(), written.is_pending());
        if let Poll::Ready(Ok(count)) = written {
            seen.written(&buf[..count]);
        }
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let watched = self.get_mut();
        let written = Pin::new(&mut *watched.io).poll_write_vectored(cx, bufs);
        let mut seen = watched.seen.borrow_mut();
        seen.sent(watched.io.sent_bytes(), written.is_pending());
        if let Poll::Ready(Ok(mut count)) = written {
            for buf in bufs {
                let part = count.min(buf.len());
                seen.written(&buf[..part]);
                count -= part;
            }
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let watched = self.get_mut();
        let flushed = Pin::new(&mut *watched.io).poll_flush(cx);
        let mut seen = watched.seen.borrow_mut();
        seen.sent(watched.io.sent_bytes(), flushed.is_pending());
        if flushed.is_ready() {
            seen.stuck_since = None;
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let watched = self.get_mut();
        let shut = Pin::new(&mut *watched.io).poll_shutdown(cx);
        watched.seen.borrow_mut().sent(watched.io.sent_bytes(), shut.is_pending());
        shut
    }
}
