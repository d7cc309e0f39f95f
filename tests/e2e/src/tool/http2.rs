//! A client of HTTP/2 over TLS that sends whatever it is told, well-formed or not: frames and header blocks by hand, one request
//! on a connection.

use crate::tool::tls;
use anyhow::{Result, ensure};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Bytes of a payload that every server takes (RFC 9113, 4.2).
const PAYLOAD_MAX: usize = 16_384;

/// A part of a request, in frames of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Http2Part {
    /// A header block, of the head or of trailers: names and values.
    Fields(Vec<(Vec<u8>, Vec<u8>)>),
    /// A frame of data.
    Data(Vec<u8>),
}

/// The first thing that a server says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http2Answer {
    /// A response that is not interim.
    Status(u16),
    /// RST_STREAM with this code.
    Reset(u32),
    /// GOAWAY with this code, which is not NO_ERROR.
    GoAway(u32),
    /// The end of the connection.
    Closed,
    /// Nothing.
    Silence,
}

impl fmt::Display for Http2Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Http2Answer::Status(status) => write!(f, "{status}"),
            Http2Answer::Reset(code) => write!(f, "stream error {}", error_name(*code)),
            Http2Answer::GoAway(code) => write!(f, "connection error {}", error_name(*code)),
            Http2Answer::Closed => write!(f, "closed"),
            Http2Answer::Silence => write!(f, "no answer"),
        }
    }
}

/// The name of an error code (RFC 9113, 7).
fn error_name(code: u32) -> &'static str {
    const NAMES: [&str; 14] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ];
    NAMES.get(code as usize).copied().unwrap_or("unknown")
}

/// A client that makes a connection for each request.
#[derive(Clone, Debug)]
pub struct Http2Client {
    config: Arc<ClientConfig>,
    name: &'static str,
}

impl Http2Client {
    /// A client that trusts `certificate` for `name`.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn new(certificate: &Path, name: &'static str) -> Result<Http2Client> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = builder.with_root_certificates(tls::roots(certificate)?).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Http2Client { config: Arc::new(config), name })
    }

    /// Sends a request on stream 1, whose last frame ends the stream, and waits for what is said of it.
    ///
    /// # Errors
    /// There is no connection.
    pub fn ask(&self, to: SocketAddr, parts: &[Http2Part], patience: Duration) -> Result<Http2Answer> {
        let mut stream = tls::connect(&self.config, to, self.name)?;
        let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        said.extend(frame(SETTINGS, 0, 0, &[]));
        stream.write_all(&said)?;
        ensure!(stream.conn.alpn_protocol() == Some(b"h2"), "{to} does not speak HTTP/2");
        let last = parts.len().saturating_sub(1);
        for (at, part) in parts.iter().enumerate() {
            let end = if at == last { END_STREAM } else { 0 };
            let frames = match part {
                Http2Part::Data(data) => frame(DATA, end, 1, data),
                Http2Part::Fields(fields) => block_frames(&block(fields), end),
            };
            // A server may have broken off.
            if stream.write_all(&frames).is_err() {
                break;
            }
        }
        Ok(answer(&mut stream, patience))
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header block of stream 1 in as many frames as it needs.
fn block_frames(block: &[u8], end: u8) -> Vec<u8> {
    let mut pieces = block.chunks(PAYLOAD_MAX).peekable();
    let (mut frames, mut kind, mut flags) = (Vec::new(), HEADERS, end);
    loop {
        let piece = pieces.next().unwrap_or_default();
        let is_last = pieces.peek().is_none();
        frames.extend(frame(kind, flags | if is_last { END_HEADERS } else { 0 }, 1, piece));
        if is_last {
            return frames;
        }
        (kind, flags) = (CONTINUATION, 0);
    }
}

/// Fields as literals without indexing, with new names and no Huffman code (RFC 7541, 6.2.2): whatever they are.
fn block(fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            length(&mut block, text.len());
            block.extend_from_slice(text);
        }
    }
    block
}

/// An integer with a prefix of seven bits (RFC 7541, 5.1).
fn length(block: &mut Vec<u8>, length: usize) {
    let Some(mut rest) = length.checked_sub(127) else { return block.push(length as u8) };
    block.push(127);
    while rest >= 128 {
        block.push((rest & 127) as u8 | 128);
        rest >>= 7;
    }
    block.push(rest as u8);
}

fn answer(stream: &mut StreamOwned<ClientConnection, TcpStream>, patience: Duration) -> Http2Answer {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.sock.set_read_timeout(Some(left)).is_err() {
            return Http2Answer::Silence;
        }
        let mut head = [0; 9];
        let mut payload = Vec::new();
        let read = stream.read_exact(&mut head).and_then(|()| {
            payload.resize(u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize, 0);
            stream.read_exact(&mut payload)
        });
        match read {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Http2Answer::Silence;
            }
            Err(_) => return Http2Answer::Closed,
        }
        let code =
            |at: usize| payload.get(at..at + 4).map(|code| code.iter().fold(0, |so, &byte| so << 8 | u32::from(byte)));
        match head[3] {
            HEADERS => match status(&payload) {
                Some(100..200) => {}
                status => return Http2Answer::Status(status.unwrap_or(0)),
            },
            RST_STREAM => return Http2Answer::Reset(code(0).unwrap_or(0)),
            GOAWAY if code(4) != Some(0) => return Http2Answer::GoAway(code(4).unwrap_or(0)),
            _ => {}
        }
    }
}

/// The status of a response whose header block begins so, on a connection that had none before: its first field.
fn status(block: &[u8]) -> Option<u16> {
    /// What the static table has from 8 on (RFC 7541, appendix A).
    const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    let updates = block.iter().take_while(|&&byte| byte & 0xe0 == 0x20).count();
    match block.get(updates..)? {
        [indexed @ 0x88..=0x8e, ..] => INDEXED.get(usize::from(indexed - 0x88)).copied(),
        [0x08..=0x0e | 0x18..=0x1e | 0x48..=0x4e, length, value @ ..] => {
            let value = value.get(..usize::from(length & 0x7f))?;
            if length & 0x80 == 0 { std::str::from_utf8(value).ok()?.parse().ok() } else { digits(value) }
        }
        _ => None,
    }
}

/// Three digits in Huffman code (RFC 7541, appendix B): 0 to 2 have five bits, the others six.
fn digits(code: &[u8]) -> Option<u16> {
    let bits = code.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte));
    let mut left = 8 * u32::try_from(code.len()).ok()?;
    let mut number = 0;
    for _ in 0..3 {
        let five = bits >> left.checked_sub(5)? & 31;
        let digit = if five <= 2 {
            left -= 5;
            five
        } else {
            left = left.checked_sub(6)?;
            (bits >> left & 63).checked_sub(0b01_1001)? + 3
        };
        number = 10 * number + u16::try_from(digit).ok().filter(|&digit| digit <= 9)?;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read_in_all_their_forms() {
        for (block, expected) in [
            (&[0x88, 0x5c][..], 200),
            (&[0x20, 0x8e], 500),
            (&[0x48, 3, b'4', b'1', b'7'], 417),
            // RFC 7541, C.6.1: "302".
            (&[0x48, 0x82, 0x64, 0x02], 302),
            // C.6.2: "307".
            (&[0x48, 0x83, 0x64, 0x0e, 0xff], 307),
            (&[0x08, 3, b'5', b'0', b'2'], 502),
        ] {
            assert_eq!(status(block), Some(expected), "{block:x?}");
        }
    }

    #[test]
    fn long_blocks_are_continued() {
        let block = block(&[(b"x".to_vec(), vec![b'a'; 20_000])]);
        assert_eq!(&block[..6], [0, 1, b'x', 127, 0xa1, 0x9b]);
        let frames = block_frames(&block, END_STREAM);
        assert_eq!(frames.len(), 18 + block.len());
        assert_eq!((frames[3], frames[4]), (HEADERS, END_STREAM));
        let second = &frames[9 + PAYLOAD_MAX..];
        assert_eq!((second[3], second[4]), (CONTINUATION, END_HEADERS));
    }
}
