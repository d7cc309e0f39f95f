//! A request's head and body on their way to a backend.

use crate::translate;
use bytes::Bytes;
use h2::RecvStream;
use hairpin_core::l7::body::{BadChunk, Chunks};
use hairpin_core::l7::splice::Refused;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::AsyncWrite;
use tokio::time::timeout;

/// Bytes of a request that are read behind its response.
pub const DISCARDED_MAX: usize = 1 << 20;
/// How long they may take.
pub const DISCARDED_WITHIN: Duration = Duration::from_secs(2);

/// Why a request did not get to its backend.
pub(super) enum Broken {
    /// The client has reset the stream, or its connection has ended.
    Client,
    /// The client is answered so.
    Refused(u16, Refused),
    /// The backend takes no more of it.
    Backend,
}

/// The end that an upload waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    Client,
    Backend,
    /// All has been sent, or nothing more can be.
    Nothing,
}

/// A request that is sent to a backend.
pub(super) struct Upload {
    /// `None`: all of it has been read, or it is not wanted any more.
    body: Option<RecvStream>,
    has_body: bool,
    /// The body goes on in chunks, since its length is not known. These also read what is written: trailers have their bounds
    /// and forbidden names. (The h2 crate drops pseudo-fields of trailers, and fields beyond the size of a head.)
    chunks: Option<Chunks>,
    /// The bytes that are written first, then `data`, then `after`; `at` counts those written of all three.
    before: Vec<u8>,
    data: Bytes,
    after: Vec<u8>,
    at: usize,
    /// Bytes of the body that have been read.
    read: u64,
    /// Bytes read and written.
    pub(super) moved: u64,
    is_broken: bool,
    /// Bytes that were read to be thrown away.
    discarded: usize,
}

impl Upload {
    /// `chunked`: the most bytes of a body whose length is not known.
    pub(super) fn new(body: Option<RecvStream>, chunked: Option<u64>) -> Upload {
        Upload {
            has_body: body.is_some(),
            body,
            chunks: chunked.map(Chunks::at_most),
            before: Vec::new(),
            data: Bytes::new(),
            after: Vec::new(),
            at: 0,
            read: 0,
            moved: 0,
            is_broken: false,
            discarded: 0,
        }
    }

    /// Starts again with this head.
    pub(super) fn begin(&mut self, head: Vec<u8>) {
        self.before = head;
        self.at = 0;
        self.is_broken = false;
    }

    /// Whether no byte of the body has been read: it can be sent on another connection.
    pub(super) fn is_untouched(&self) -> bool {
        self.read == 0 && (self.body.is_some() || !self.has_body)
    }

    /// Bytes of the body that have come.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Whether all has been sent.
    pub(super) fn is_complete(&self) -> bool {
        !self.is_broken && self.body.is_none() && self.is_written()
    }

    fn is_written(&self) -> bool {
        self.at == self.before.len() + self.data.len() + self.after.len()
    }

    pub(super) fn waits(&self) -> Waits {
        match () {
            () if self.is_broken || self.is_complete() => Waits::Nothing,
            () if self.is_written() => Waits::Client,
            () => Waits::Backend,
        }
    }

    /// Whether the backend takes no more.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Sends what goes. Ready when all has been sent, or nothing more can be.
    pub(super) fn poll<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, to: &mut W) -> Poll<Result<(), Broken>> {
        if self.is_broken {
            return self.poll_discard(cx).map(Ok);
        }
        loop {
            if ready!(self.poll_write(cx, to)).is_err() {
                self.is_broken = true;
                return Poll::Ready(Err(Broken::Backend));
            }
            let written = std::mem::take(&mut self.data).len();
            (self.before, self.after, self.at) = (Vec::new(), Vec::new(), 0);
            let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
            // The client may send as much again.
            let _ = body.flow_control().release_capacity(written);
            match ready!(body.poll_data(cx)) {
                Some(Ok(data)) => self.put(data)?,
                Some(Err(_)) => return Poll::Ready(Err(Broken::Client)),
                None => {
                    let trailers = ready!(body.poll_trailers(cx)).map_err(|_| Broken::Client)?;
                    self.body = None;
                    let lines = trailers.as_ref().map(translate::trailer_lines).unwrap_or_default();
                    if let Some(chunks) = &mut self.chunks {
                        self.before = [b"0\r\n", &lines[..], b"\r\n"].concat();
                        chunks.feed(&self.before).map_err(refused)?;
                    }
                }
            }
        }
    }

    /// The bytes that were read are written next.
    fn put(&mut self, data: Bytes) -> Result<(), Broken> {
        if data.is_empty() {
            return Ok(());
        }
        self.read += data.len() as u64;
        self.moved += data.len() as u64;
        if let Some(chunks) = &mut self.chunks {
            self.before = format!("{:x}\r\n", data.len()).into_bytes();
            self.after = b"\r\n".to_vec();
            for part in [&self.before, &data[..], &self.after] {
                chunks.feed(part).map_err(refused)?;
            }
        }
        self.data = data;
        Ok(())
    }

    fn poll_write<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, to: &mut W) -> Poll<std::io::Result<()>> {
        let (one, two) = (self.before.len(), self.before.len() + self.data.len());
        while !self.is_written() {
            let parts = [
                self.before.get(self.at..).unwrap_or_default(),
                self.data.get(self.at.saturating_sub(one)..).unwrap_or_default(),
                self.after.get(self.at.saturating_sub(two)..).unwrap_or_default(),
            ];
            let parts = parts.map(std::io::IoSlice::new);
            match ready!(Pin::new(&mut *to).poll_write_vectored(cx, &parts))? {
                0 => return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into())),
                count => {
                    self.at += count;
                    self.moved += count as u64;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Nothing more is sent. What the client has sent, and sends yet, takes no part of its connection's window.
    pub(super) fn stop(&mut self) {
        self.is_broken = true;
        if let Some(body) = &mut self.body {
            let _ = body.flow_control().release_capacity(self.data.len());
        }
        (self.before, self.data, self.after, self.at) = (Vec::new(), Bytes::new(), Vec::new(), 0);
    }
}

impl Upload {
    /// Reads what is left of the body and throws it away, up to a bound: some clients (curl 7.88) take an RST_STREAM that comes
    /// before they have sent all for an error, whatever the response was. Ready when there is nothing more to read.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(body) = &mut self.body {
            match ready!(body.poll_data(cx)) {
                Some(Ok(data)) if self.discarded < DISCARDED_MAX => {
                    self.discarded += data.len();
                    let _ = body.flow_control().release_capacity(data.len());
                }
                _ => self.body = None,
            }
        }
        Poll::Ready(())
    }

    /// Reads what is left of the body, once the response has been sent.
    pub(super) async fn discard(mut self) {
        self.stop();
        let _ = timeout(DISCARDED_WITHIN, std::future::poll_fn(|cx| self.poll_discard(cx))).await;
    }
}

fn refused(bad: BadChunk) -> Broken {
    let (status, why) = Refused::of_chunks(bad);
    Broken::Refused(status, why)
}
