//! A stream of HTTP/2 that takes the bytes of an HTTP/1.1 request, and gives those of an HTTP/1.1 response.

use super::translated::{self, Asked, Framed, Unfit};
use super::{StreamHold, failed};
use crate::translate;
use crate::unchunk::Unchunker;
use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use hairpin_core::flow::Endpoint;
use hairpin_core::l7::body::{Chunks, Length};
use hairpin_core::l7::edit::HEAD_ROOM;
use hairpin_core::l7::head::{self, Bounds, FIELDS_MAX, ParseStatus};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bounds of a request's head: it was written here.
const WRITTEN: Bounds = Bounds { bytes_max: HEAD_ROOM, fields_max: FIELDS_MAX, target_bytes_max: HEAD_ROOM };
/// Bytes that are given to the h2 crate at a time.
const PIECE: usize = 64 * 1024;

/// The request's side.
enum Up {
    /// Its head is not complete yet.
    Head(Vec<u8>),
    /// So many bytes of its body are still to come.
    Bytes(SendStream<Bytes>, u64),
    Chunked(SendStream<Bytes>, Box<Unchunker>),
    /// The other side has opened a tunnel, or is asked to.
    Tunnel(SendStream<Bytes>),
    /// All of it has been sent.
    Ended,
}

/// The response's side.
enum Down {
    /// The request has not been sent yet.
    Idle,
    Head(ResponseFuture, Asked),
    Body(RecvStream, Framed),
    /// All of it has come.
    Ended,
}

/// A stream of HTTP/2.
pub(crate) struct Http2Stream {
    up: Up,
    down: Down,
    /// The bytes that have come, as HTTP/1.1.
    come: VecDeque<Bytes>,
    /// A reader that waits for the request to be sent.
    reader: Option<Waker>,
    /// Whether the backend has said that it has not looked at the request (RFC 9113, 8.7).
    is_refused: bool,
    /// Why the request cannot go by HTTP/2, which is not the backend's fault.
    unfit: Option<Unfit>,
    /// The backend's end.
    end: Endpoint,
    hold: StreamHold,
}

impl Http2Stream {
    pub(super) fn new(hold: StreamHold, end: Endpoint) -> Http2Stream {
        Http2Stream {
            up: Up::Head(Vec::new()),
            down: Down::Idle,
            come: VecDeque::new(),
            reader: None,
            is_refused: false,
            unfit: None,
            end,
            hold,
        }
    }

    /// Whether the backend has said that it has not looked at the request.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Why the request cannot go by HTTP/2: nothing of it was sent.
    pub(crate) fn unfit(&self) -> Option<Unfit> {
        self.unfit
    }

    /// Gives its connection no further requests.
    pub(crate) fn retire(&self) {
        self.hold.0.is_retired.set(true);
    }

    /// Notes what an error of the stream means for its request, and returns the error as one of I/O.
    fn broken(&mut self, error: h2::Error) -> io::Error {
        let is_unseen = error.is_go_away() && error.is_remote();
        self.is_refused |= is_unseen || error.reason() == Some(Reason::REFUSED_STREAM);
        failed(error)
    }

    /// Takes more of the request's head: how many bytes of `bytes` belong to it. When it is complete, it is sent.
    fn take_head(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Up::Head(head) = &mut self.up else { return Ok(0) };
        let before = head.len();
        head.extend_from_slice(bytes);
        let head = std::mem::take(head);
        let read = head::request(&head, &WRITTEN);
        let request = match &read {
            Ok(ParseStatus::Complete(request)) => request,
            Ok(ParseStatus::Partial) => {
                self.up = Up::Head(head);
                return Ok(bytes.len());
            }
            Err(_) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let taken = request.bytes.len() - before;
        let (block, asked) = translated::request(&self.hold.0, self.end, request).map_err(|unfit| {
            self.unfit = Some(unfit);
            io::Error::from(io::ErrorKind::InvalidInput)
        })?;
        let is_tunnel = block.method() == http::Method::CONNECT;
        let is_whole = !is_tunnel && request.body == Length::None;
        let sent = self.hold.0.send.clone().send_request(block, is_whole);
        let (response, stream) = sent.map_err(|error| {
            // Nothing of it has left.
            self.is_refused = true;
            failed(error)
        })?;
        self.up = match request.body {
            _ if is_tunnel => Up::Tunnel(stream),
            Length::Bytes(bytes) => Up::Bytes(stream, bytes),
            Length::Chunked => Up::Chunked(stream, Box::new(Unchunker::new(Chunks::at_most(u64::MAX)))),
            _ => Up::Ended,
        };
        self.down = Down::Head(response, asked);
        self.reader.take().into_iter().for_each(Waker::wake);
        Ok(taken)
    }

    /// The request was not sent, so no response comes: a reader hears of the end.
    fn give_up(&mut self) {
        (self.up, self.down) = (Up::Ended, Down::Ended);
        self.reader.take().into_iter().for_each(Waker::wake);
    }

    /// Sends more of the body: how many of `bytes` were taken.
    fn poll_body(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let (taken, ended) = match &mut self.up {
            Up::Head(_) | Up::Ended => return Poll::Ready(Ok(0)),
            Up::Tunnel(stream) => {
                let room = ready!(poll_room(cx, stream, bytes.len()));
                (room.and_then(|room| send(stream, &bytes[..room], false)), false)
            }
            Up::Bytes(stream, left) => {
                let most = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                let room = ready!(poll_room(cx, stream, most));
                let sent = room.and_then(|room| send(stream, &bytes[..room], room as u64 == *left));
                *left -= *sent.as_ref().unwrap_or(&0) as u64;
                (sent, *left == 0)
            }
            Up::Chunked(stream, chunks) => {
                // The framing of the data needs no room on the stream, and its end must not wait for any.
                let mut data = Vec::new();
                let mut taken = chunks.feed_at_most(bytes, 0, &mut data).map_err(|_| io::ErrorKind::InvalidInput)?;
                let mut sent = Ok(taken);
                if taken < bytes.len() && !chunks.is_done() {
                    match poll_room(cx, stream, bytes.len() - taken) {
                        Poll::Ready(Ok(room)) => {
                            let fed = chunks.feed_at_most(&bytes[taken..], room, &mut data);
                            taken += fed.map_err(|_| io::ErrorKind::InvalidInput)?;
                            sent = stream.send_data(data.into(), false).map(|()| taken);
                        }
                        Poll::Ready(Err(error)) => sent = Err(error),
                        Poll::Pending if taken == 0 => return Poll::Pending,
                        Poll::Pending => {}
                    }
                }
                if chunks.is_done() && sent.is_ok() {
                    let trailers = chunks.trailers().ok_or(io::ErrorKind::InvalidInput)?;
                    let ended = match trailers {
                        Some(trailers) => stream.send_trailers(trailers),
                        None => stream.send_data(Bytes::new(), true),
                    };
                    sent = ended.map(|()| taken);
                }
                (sent, chunks.is_done())
            }
        };
        if ended {
            self.up = Up::Ended;
        }
        Poll::Ready(taken.map_err(|error| self.broken(error)))
    }

    /// Waits for more of the response: false, it has ended.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        match &mut self.down {
            Down::Idle => {
                self.reader = Some(cx.waker().clone());
                Poll::Pending
            }
            Down::Head(response, asked) => {
                if let Poll::Ready(Some(Ok(interim))) = response.poll_informational(cx) {
                    let (head, _) = translated::response(asked, &interim.into_parts().0, false)?;
                    self.come.push_back(head.into());
                    return Poll::Ready(Ok(true));
                }
                let (parts, body) = match ready!(Pin::new(response).poll(cx)) {
                    Ok(response) => response.into_parts(),
                    Err(error) => return Poll::Ready(Err(self.broken(error))),
                };
                let (head, framed) = translated::response(asked, &parts, body.is_end_stream())?;
                self.come.push_back(head.into());
                self.down = if framed == Framed::None { Down::Ended } else { Down::Body(body, framed) };
                Poll::Ready(Ok(true))
            }
            Down::Body(body, framed) => {
                let framed = *framed;
                match ready!(body.poll_data(cx)) {
                    Some(Ok(data)) => {
                        let _ = body.flow_control().release_capacity(data.len());
                        self.put(data, framed);
                        return Poll::Ready(Ok(true));
                    }
                    // The response is whole; the rest of its request is not wanted (RFC 9113, 8.1).
                    Some(Err(error)) if error.is_reset() && error.reason() == Some(Reason::NO_ERROR) => {}
                    Some(Err(error)) => return Poll::Ready(Err(self.broken(error))),
                    None => {}
                }
                let trailers = match body.poll_trailers(cx) {
                    Poll::Ready(Ok(trailers)) => trailers,
                    Poll::Ready(Err(error)) if error.reason() != Some(Reason::NO_ERROR) => {
                        return Poll::Ready(Err(self.broken(error)));
                    }
                    Poll::Ready(Err(_)) => None,
                    Poll::Pending => return Poll::Pending,
                };
                self.down = Down::Ended;
                if framed == Framed::Plain {
                    return Poll::Ready(Ok(false));
                }
                let lines = trailers.as_ref().map(translate::trailer_lines).unwrap_or_default();
                self.come.push_back([b"0\r\n", &lines[..], b"\r\n"].concat().into());
                Poll::Ready(Ok(true))
            }
            Down::Ended => Poll::Ready(Ok(false)),
        }
    }

    /// The part of a body that has come is read next.
    fn put(&mut self, data: Bytes, framed: Framed) {
        if data.is_empty() {
            return;
        }
        if framed == Framed::Plain {
            return self.come.push_back(data);
        }
        self.come.push_back(format!("{:x}\r\n", data.len()).into());
        self.come.push_back(data);
        self.come.push_back(Bytes::from_static(b"\r\n"));
    }
}

/// Waits until the stream takes a part of `wanted` bytes: how many.
fn poll_room(cx: &mut Context<'_>, stream: &mut SendStream<Bytes>, wanted: usize) -> Poll<Result<usize, h2::Error>> {
    let wanted = wanted.min(PIECE);
    stream.reserve_capacity(wanted);
    let room = match stream.capacity() {
        0 => match ready!(stream.poll_capacity(cx)) {
            Some(room) => room?,
            // The stream has been reset.
            None => return Poll::Ready(Err(Reason::CANCEL.into())),
        },
        room => room,
    };
    Poll::Ready(Ok(room.min(wanted)))
}

fn send(stream: &mut SendStream<Bytes>, bytes: &[u8], ends: bool) -> Result<usize, h2::Error> {
    stream.send_data(Bytes::copy_from_slice(bytes), ends).map(|()| bytes.len())
}

impl AsyncRead for Http2Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        loop {
            if buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            while let Some(piece) = this.come.front_mut() {
                let length = piece.len().min(buf.remaining());
                buf.put_slice(&piece.split_to(length));
                if !piece.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                this.come.pop_front();
            }
            match this.poll_more(cx) {
                Poll::Ready(Ok(true)) => {}
                // The bytes that have been read come first.
                _ if buf.filled().len() > before => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(false)) => return Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl AsyncWrite for Http2Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match this.up {
            _ if bytes.is_empty() => Poll::Ready(Ok(0)),
            Up::Head(_) => Poll::Ready(this.take_head(bytes).inspect_err(|_| this.give_up())),
            _ => this.poll_body(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's task sends.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Up::Tunnel(stream) = &mut this.up {
            let ended = stream.send_data(Bytes::new(), true);
            this.up = Up::Ended;
            return Poll::Ready(ended.map_err(|error| this.broken(error)));
        }
        Poll::Ready(Ok(()))
    }
}
