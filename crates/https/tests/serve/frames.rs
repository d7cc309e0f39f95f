//! Frames of HTTP/2 written by hand, for what the client of the h2 crate does not send.

use crate::fixture::Site;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;

/// Error code ENHANCE_YOUR_CALM.
pub(crate) const CALM: u32 = 11;

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// The error code of a RST_STREAM or GOAWAY.
    pub(crate) fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

/// A connection over which frames are sent and read.
pub(crate) struct Frames(pub(crate) TlsStream<TcpStream>);

impl Frames {
    /// Connects, and sends the preface with these settings.
    pub(crate) async fn open(site: &Site, settings: &[(u16, u32)]) -> Frames {
        let mut frames = Frames(site.connect(&[b"h2"]).await);
        frames.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let settings: Vec<u8> =
            settings.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
        frames.send(SETTINGS, 0, 0, &settings).await;
        frames
    }

    pub(crate) async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.try_send(kind, flags, stream, payload).await.unwrap();
    }

    /// The server may have closed.
    pub(crate) async fn try_send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> std::io::Result<()> {
        self.0.write_all(&frame(kind, flags, stream, payload)).await?;
        self.0.flush().await
    }

    /// The next frame. `None`: the server has closed.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// The next frame of this kind, acknowledgements left out.
    pub(crate) async fn next_of(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let frame = self.next().await?;
            if frame.kind == kind && (kind != SETTINGS || frame.flags == 0) {
                return Some(frame);
            }
        }
    }

    /// Waits until the server has read all that was sent.
    pub(crate) async fn sync(&mut self) {
        self.send(PING, 0, 0, b"hairpin!").await;
        while self.next_of(PING).await.expect("an answer").payload != b"hairpin!" {}
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The header block of a request (RFC 7541): with indexed names, without Huffman codes or the dynamic table.
pub(crate) fn block(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0x87];
    let mut put = |index: u8, name: &str, value: &str| {
        block.push(index);
        if index == 0 {
            block.push(name.len() as u8);
            block.extend_from_slice(name.as_bytes());
        }
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    };
    put(2, "", method);
    put(4, "", path);
    put(1, "", "web.test");
    fields.iter().for_each(|(name, value)| put(0, name, value));
    block
}
