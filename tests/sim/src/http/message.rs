//! HTTP/1.1 messages as the peers write and read them: a plain reader of its own, so that what the balancer under test
//! takes for a message is judged by independent code (RFC 9112).

use crate::stream::byte;
use fastrand::Rng;

/// Bytes of a head at most.
const HEAD_MAX: usize = 65_536;

/// A start line and fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageHead {
    /// The request or status line.
    pub start: String,
    /// Names as they were written, and values.
    pub fields: Vec<(String, String)>,
}

impl MessageHead {
    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.start.clone() + "\r\n";
        for (name, value) in &self.fields {
            out += &format!("{name}: {value}\r\n");
        }
        (out + "\r\n").into_bytes()
    }

    /// The values of a field.
    pub fn values(&self, name: &str) -> Vec<&str> {
        let same = |field: &&(String, String)| field.0.eq_ignore_ascii_case(name);
        self.fields.iter().filter(same).map(|(_, value)| value.as_str()).collect()
    }

    /// Whether `Connection` says so.
    pub fn says(&self, option: &str) -> bool {
        self.values("connection")
            .iter()
            .flat_map(|list| list.split(','))
            .any(|one| one.trim().eq_ignore_ascii_case(option))
    }

    /// The status of a response.
    pub fn status(&self) -> u16 {
        self.start.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    fn parse(bytes: &[u8]) -> Result<MessageHead, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "a head that is not text".to_string())?;
        let mut lines = text.split("\r\n");
        let start = lines.next().unwrap_or_default().to_string();
        let mut fields = Vec::new();
        for line in lines.take_while(|line| !line.is_empty()) {
            let Some((name, value)) = line.split_once(':') else {
                return Err(format!("a field without colon: {line:?}"));
            };
            if name.is_empty() || name.contains([' ', '\t']) || line.contains(['\r', '\n', '\0']) {
                return Err(format!("a bad field: {line:?}"));
            }
            fields.push((name.to_string(), value.trim().to_string()));
        }
        Ok(MessageHead { start, fields })
    }
}

/// How a body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// There is none, and nothing says how long it is.
    None,
    /// There is none, but a length is told: the answer to HEAD, or 304.
    Told,
    /// By its length.
    Length,
    /// In chunks.
    Chunked,
    /// By the end of the connection.
    Close,
}

/// A body.
#[derive(Clone, Debug)]
pub struct BodyContent {
    /// How it is framed.
    pub framing: BodyFraming,
    /// Its bytes.
    pub bytes: u64,
    /// The seed of its bytes, and of the sizes of its chunks.
    pub key: u64,
    /// Trailers behind its last chunk.
    pub trailers: Vec<(String, String)>,
}

impl BodyContent {
    /// No body.
    pub fn none() -> BodyContent {
        BodyContent { framing: BodyFraming::None, bytes: 0, key: 0, trailers: Vec::new() }
    }

    /// The fields that say how it is framed.
    pub fn fields(&self) -> Vec<(String, String)> {
        match self.framing {
            BodyFraming::None | BodyFraming::Close => Vec::new(),
            BodyFraming::Length | BodyFraming::Told => vec![("Content-Length".into(), self.bytes.to_string())],
            BodyFraming::Chunked => vec![("Transfer-Encoding".into(), "chunked".into())],
        }
    }

    /// Bytes that are sent of it, without framing.
    pub fn sent(&self) -> u64 {
        if matches!(self.framing, BodyFraming::None | BodyFraming::Told) { 0 } else { self.bytes }
    }

    /// The bytes on the wire.
    pub fn wire(&self) -> Vec<u8> {
        let data: Vec<u8> = (0..self.sent()).map(|offset| byte(self.key, offset)).collect();
        if self.framing != BodyFraming::Chunked {
            return data;
        }
        let mut random = Rng::with_seed(self.key);
        let mut out = Vec::with_capacity(data.len() + data.len() / 8 + 64);
        let mut rest = &data[..];
        while !rest.is_empty() {
            let most = if random.bool() { 30 } else { 9_000 };
            let (chunk, behind) = rest.split_at(random.usize(1..=most).min(rest.len()));
            let extension = if random.u8(..16) == 0 { ";name=value" } else { "" };
            out.extend(format!("{:x}{extension}\r\n", chunk.len()).bytes());
            out.extend_from_slice(chunk);
            out.extend_from_slice(b"\r\n");
            rest = behind;
        }
        out.extend_from_slice(b"0\r\n");
        for (name, value) in &self.trailers {
            out.extend(format!("{name}: {value}\r\n").bytes());
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

/// An event of a reader.
#[derive(Debug)]
pub enum ReaderEvent {
    /// Nothing whole.
    Nothing,
    /// A head. [`MessageReader::expect`] must say what follows.
    Head(MessageHead),
    /// Bytes of a body.
    Data(Vec<u8>),
    /// The end of a message, and its trailers.
    End(Vec<(String, String)>),
}

#[derive(Debug)]
enum ReaderState {
    Head,
    Length(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailers(Vec<(String, String)>),
    Close,
}

/// Reads messages, one behind the other.
#[derive(Debug)]
pub struct MessageReader {
    buffer: Vec<u8>,
    state: ReaderState,
}

impl Default for MessageReader {
    fn default() -> MessageReader {
        MessageReader { buffer: Vec::new(), state: ReaderState::Head }
    }
}

impl MessageReader {
    /// More bytes have come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether it is between two messages and has nothing of the next.
    pub fn is_clean(&self) -> bool {
        matches!(self.state, ReaderState::Head) && self.buffer.is_empty()
    }

    /// Says how the body of the head just read is framed.
    pub fn expect(&mut self, framing: BodyFraming, length: u64) {
        self.state = match framing {
            BodyFraming::None | BodyFraming::Told => ReaderState::Length(0),
            BodyFraming::Length => ReaderState::Length(length),
            BodyFraming::Chunked => ReaderState::ChunkSize,
            BodyFraming::Close => ReaderState::Close,
        };
    }

    /// The next event.
    pub fn event(&mut self) -> Result<ReaderEvent, String> {
        match &mut self.state {
            ReaderState::Head => {
                let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") else {
                    return if self.buffer.len() > HEAD_MAX {
                        Err("an endless head".into())
                    } else {
                        Ok(ReaderEvent::Nothing)
                    };
                };
                let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
                MessageHead::parse(&head).map(ReaderEvent::Head)
            }
            ReaderState::Length(0) => {
                self.state = ReaderState::Head;
                Ok(ReaderEvent::End(Vec::new()))
            }
            ReaderState::Length(left) | ReaderState::Chunk(left) if *left > 0 => {
                if self.buffer.is_empty() {
                    return Ok(ReaderEvent::Nothing);
                }
                let take = (*left).min(self.buffer.len() as u64);
                *left -= take;
                Ok(ReaderEvent::Data(self.buffer.drain(..take as usize).collect()))
            }
            ReaderState::Close if self.buffer.is_empty() => Ok(ReaderEvent::Nothing),
            ReaderState::Close => Ok(ReaderEvent::Data(std::mem::take(&mut self.buffer))),
            _ => self.next_line(),
        }
    }

    fn next_line(&mut self) -> Result<ReaderEvent, String> {
        if matches!(self.state, ReaderState::Chunk(_)) {
            self.state = ReaderState::ChunkEnd;
        }
        let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") else { return Ok(ReaderEvent::Nothing) };
        let line: Vec<u8> = self.buffer.drain(..end + 2).take(end).collect();
        let line = String::from_utf8(line).map_err(|_| "a line of chunks that is not text".to_string())?;
        match &mut self.state {
            ReaderState::ChunkSize => {
                let digits = line.split(';').next().unwrap_or_default();
                let size = u64::from_str_radix(digits, 16).map_err(|_| format!("a bad chunk size: {line:?}"))?;
                self.state = if size == 0 { ReaderState::Trailers(Vec::new()) } else { ReaderState::Chunk(size) };
            }
            ReaderState::ChunkEnd if line.is_empty() => self.state = ReaderState::ChunkSize,
            ReaderState::Trailers(trailers) if line.is_empty() => {
                let trailers = std::mem::take(trailers);
                self.state = ReaderState::Head;
                return Ok(ReaderEvent::End(trailers));
            }
            ReaderState::Trailers(trailers) => match line.split_once(':') {
                Some((name, value)) => trailers.push((name.to_string(), value.trim().to_string())),
                None => return Err(format!("a bad trailer: {line:?}")),
            },
            _ => return Err(format!("{line:?} behind a chunk")),
        }
        self.event()
    }
}

/// Fields as they are compared: names in lower case, in order of name and value, without those that are for one hop.
pub fn comparable(fields: &[(String, String)], hop_by_hop: bool) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = fields
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
        .filter(|(name, _)| {
            !hop_by_hop || !matches!(name.as_str(), "connection" | "keep-alive" | "te" | "proxy-connection")
        })
        .collect();
    out.sort();
    out
}
