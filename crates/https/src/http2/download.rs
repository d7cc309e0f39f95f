//! A response's body on its way to a stream.

use crate::local::Local;
use crate::pump::BodyEnd;
use crate::unchunk::Unchunker;
use bytes::{BufMut, Bytes, BytesMut};
use h2::SendStream;
use hairpin_core::l7::body::{Chunks, Length};
use http::HeaderMap;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

/// Bytes of a body from which on they are read to where the h2 crate has them, and not copied there.
const UNCOPIED_MIN: usize = 8 * 1024;

/// Why a response did not get to its client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The client has reset the stream, or its connection has ended.
    Client,
    /// The backend's connection ended in the middle, or the body's framing is wrong.
    Backend,
}

/// Data that waits for room on a stream.
pub(super) struct Outgoing {
    data: Bytes,
    /// Bytes that the stream has taken.
    pub(super) moved: u64,
}

impl Outgoing {
    /// `data` is sent next. Room is asked for when the data is there: what a stream has asked for, no other stream has.
    pub(super) fn new(data: Bytes, stream: &mut SendStream<Bytes>) -> Outgoing {
        stream.reserve_capacity(data.len());
        Outgoing { data, moved: 0 }
    }

    fn put(&mut self, data: Bytes, stream: &mut SendStream<Bytes>) {
        stream.reserve_capacity(data.len());
        self.data = data;
    }

    /// Sends what there is; `ends`: the stream ends behind it.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut SendStream<Bytes>,
        ends: bool,
    ) -> Poll<Result<(), Broken>> {
        while !self.data.is_empty() {
            let room = match stream.capacity() {
                0 => match ready!(stream.poll_capacity(cx)) {
                    Some(Ok(room)) => room,
                    Some(Err(_)) | None => return Poll::Ready(Err(Broken::Client)),
                },
                room => room,
            };
            let piece = self.data.split_to(room.min(self.data.len()));
            self.moved += piece.len() as u64;
            stream.send_data(piece, ends && self.data.is_empty()).map_err(|_| Broken::Client)?;
        }
        Poll::Ready(Ok(()))
    }
}

/// Where a body ends, and what it is without its framing.
enum Framing {
    Plain(BodyEnd),
    Chunked(Unchunker),
}

/// A body that is sent to a client.
pub(super) struct Download {
    framing: Framing,
    /// Bytes that are read at a time.
    most: usize,
    out: Outgoing,
    trailers: Option<HeaderMap>,
    /// All of it has been read.
    is_read: bool,
    /// The stream's end has been sent.
    has_ended: bool,
    /// Nothing was read behind it.
    is_clean: bool,
}

impl Download {
    /// `first` was read behind the head; `most` bytes are read at a time.
    ///
    /// # Errors
    /// Its framing is wrong.
    pub(super) fn new(
        length: Length,
        first: &[u8],
        stream: &mut SendStream<Bytes>,
        most: usize,
    ) -> Result<Download, Broken> {
        let framing = match length {
            Length::Chunked => Framing::Chunked(Unchunker::default()),
            length => Framing::Plain(BodyEnd::of(length, Chunks::of_response())),
        };
        let out = Outgoing::new(Bytes::new(), stream);
        let mut down =
            Download { framing, most, out, trailers: None, is_read: false, has_ended: false, is_clean: true };
        if !first.is_empty() {
            let data = down.take(first)?;
            down.out.put(data, stream);
        }
        Ok(down)
    }

    /// Bytes that the stream has taken.
    pub(super) fn moved(&self) -> u64 {
        self.out.moved
    }

    /// Whether it waits for the client to take something.
    pub(super) fn waits_for_client(&self) -> bool {
        !self.out.data.is_empty()
    }

    /// Whether the backend's connection is at the end of the response.
    pub(super) fn is_clean(&self) -> bool {
        self.is_clean && self.is_read
    }

    /// The data in what was read.
    fn take(&mut self, bytes: &[u8]) -> Result<Bytes, Broken> {
        let (data, taken) = match &mut self.framing {
            Framing::Plain(end) => {
                let taken = end.feed(bytes).map_err(|_| Broken::Backend)?;
                self.is_read = end.is_reached();
                (Bytes::copy_from_slice(&bytes[..taken]), taken)
            }
            Framing::Chunked(unchunker) => {
                let mut data = Vec::new();
                let taken = unchunker.feed(bytes, &mut data).map_err(|_| Broken::Backend)?;
                self.is_read = unchunker.is_done();
                if self.is_read {
                    self.trailers = unchunker.trailers().ok_or(Broken::Backend)?;
                }
                (Bytes::from(data), taken)
            }
        };
        self.is_clean = taken == bytes.len();
        Ok(data)
    }

    /// Copies as much as goes. Ready when the stream's end has been sent.
    pub(super) fn poll<R: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        local: &Local,
        from: &mut R,
        stream: &mut SendStream<Bytes>,
    ) -> Poll<Result<(), Broken>> {
        loop {
            // A client that has reset the stream wants no more of it.
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(Broken::Client));
            }
            let ends = self.is_read && self.trailers.is_none();
            let ended_with_data = ends && !self.out.data.is_empty();
            ready!(self.out.poll(cx, stream, ends))?;
            self.has_ended |= ended_with_data;
            if self.is_read && !self.has_ended {
                match self.trailers.take() {
                    Some(trailers) => stream.send_trailers(trailers),
                    None => stream.send_data(Bytes::new(), true),
                }
                .map_err(|_| Broken::Client)?;
                self.has_ended = true;
            }
            if self.has_ended {
                return Poll::Ready(Ok(()));
            }
            let data = ready!(self.poll_read(cx, local, from))?;
            self.out.put(data, stream);
        }
    }

    /// The next data of the backend. None, with nothing more to read: it has ended.
    fn poll_read<R: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        local: &Local,
        from: &mut R,
    ) -> Poll<Result<Bytes, Broken>> {
        let most = match self.framing {
            Framing::Plain(BodyEnd::Bytes(left)) => usize::try_from(left).unwrap_or(usize::MAX).min(self.most),
            _ => self.most,
        };
        if most >= UNCOPIED_MIN
            && let Framing::Plain(end @ BodyEnd::Bytes(_)) = &mut self.framing
        {
            let mut data = BytesMut::with_capacity(most).limit(most);
            ready!(pin!(from.read_buf(&mut data)).poll(cx)).map_err(|_| Broken::Backend)?;
            let data = data.into_inner();
            if data.is_empty() {
                return Poll::Ready(Err(Broken::Backend));
            }
            end.feed(&data).map_err(|_| Broken::Backend)?;
            self.is_read = end.is_reached();
            // A few bytes do not hold a large buffer while they wait for the client.
            let is_sparse = data.len() < most / 2;
            return Poll::Ready(Ok(if is_sparse { Bytes::copy_from_slice(&data) } else { data.freeze() }));
        }
        let mut copied = local.copied.borrow_mut();
        let mut buffer = ReadBuf::new(&mut copied[..most]);
        ready!(Pin::new(from).poll_read(cx, &mut buffer)).map_err(|_| Broken::Backend)?;
        if buffer.filled().is_empty() {
            // Only a body that its sender's end ends may end here.
            return Poll::Ready(match self.framing {
                Framing::Plain(BodyEnd::Close) => {
                    (self.is_read, self.is_clean) = (true, false);
                    Ok(Bytes::new())
                }
                _ => Err(Broken::Backend),
            });
        }
        Poll::Ready(self.take(buffer.filled()))
    }
}
