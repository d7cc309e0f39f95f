//! The first page of a table's file: what it holds and how.

use anyhow::{Context, Result, ensure};
use hairpin_core::flow::SteerBy;
use hairpin_core::l4::connection::Connection;
use hairpin_core::l7::splice::SplicedMemory;
use hairpin_core::limit::LimitTable;
use hairpin_core::table::entry::LAYOUT;
use hairpin_core::table::slab::Slot;

/// Bytes before the first slot: a page, so that slots are aligned to cache lines.
pub(super) const HEADER_BYTES: usize = 4096;
/// Bytes of the header that are written when the file is made.
pub(super) const FIXED_BYTES: usize = 256;
/// The offset of the word that says how the last process ended: in a cache line of its own.
pub(super) const CLEAN_AT: usize = FIXED_BYTES;
/// Longest name of an instance, in bytes.
pub const INSTANCE_MAX: usize = 96;

/// The kernel's name for this boot has so many characters.
const BOOT_BYTES: usize = 36;
const CHECKSUM_AT: usize = FIXED_BYTES - 8;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Connections of layer 4.
    Connections,
    /// Connections of HTTP and TLS services, which are spliced: clients', and those to backends.
    Splices,
    /// Clients of limits.
    Limits,
}

impl Content {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Content::Connections => "connection table",
            Content::Splices => "table of HTTP and TLS connections",
            Content::Limits => "table of limits",
        }
    }

    /// The option of `[limits]` that says how many connections it has room for.
    pub(super) fn limit(self) -> &'static str {
        match self {
            Content::Connections => "connections_max",
            Content::Splices => "http_connections_max",
            Content::Limits => "limited_clients_max",
        }
    }

    /// The end of the file's name.
    pub fn extension(self) -> &'static str {
        match self {
            Content::Connections => "connections",
            Content::Splices => "splices",
            Content::Limits => "limits",
        }
    }

    /// Names the format of the header itself.
    fn magic(self) -> [u8; 8] {
        match self {
            Content::Connections => *b"hairpin1",
            Content::Splices => *b"hairpin7",
            Content::Limits => *b"hairpinL",
        }
    }

    /// Names how the connections are laid out.
    fn layout(self) -> u64 {
        match self {
            Content::Connections => LAYOUT,
            Content::Splices => SplicedMemory::LAYOUT_HASH,
            Content::Limits => LimitTable::LAYOUT,
        }
    }

    /// Bytes that one connection takes, beside what there is once for many.
    fn connection_bytes(self) -> u32 {
        const MANY: u32 = 1 << 10;
        match self {
            Content::Connections => size_of::<Slot<Connection>>() as u32,
            Content::Splices => (SplicedMemory::bytes(MANY) / MANY as usize) as u32,
            Content::Limits => (LimitTable::bytes(MANY) / MANY as usize) as u32,
        }
    }

    /// Bytes of a worker's region with room for `connections`, which are at most 2^31; a multiple of a cache line.
    pub(super) fn region_bytes(self, connections: u32) -> Option<usize> {
        match self {
            Content::Connections => (connections as usize).checked_mul(size_of::<Slot<Connection>>()),
            Content::Splices => SplicedMemory::bytes(connections).checked_next_multiple_of(HEADER_BYTES),
            Content::Limits => LimitTable::bytes(connections).checked_next_multiple_of(HEADER_BYTES),
        }
    }
}

/// The parameters of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableHeader {
    /// What it holds.
    pub content: Content,
    /// The instance it belongs to, 1 to [`INSTANCE_MAX`] bytes.
    pub instance: String,
    /// Workers, 1 to 256. Each has a region of its own.
    pub workers: u16,
    /// Connections a worker can have, at least 1 and at most 2^31. (Of HTTP and TLS services clients', and as many to
    /// backends.)
    pub connections: u32,
    /// The steering key (`Steering::key`), which has to outlive the process as well: connections lie with the worker
    /// that it steers them to.
    pub steering_key: [u64; 2],
    /// The part of a connection's 5-tuple that selects its worker.
    pub steer_by: SteerBy,
}

/// Why bytes are no header of a table that can be adopted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderRefusal {
    /// The entries are of an earlier boot: their times mean nothing, and no engine holds their rules.
    OtherBoot,
    /// The difference.
    Unusable(String),
}

impl TableHeader {
    /// Bytes of a file with this header. Fails if the numbers are out of their ranges.
    pub(super) fn file_bytes(&self) -> Result<usize> {
        ensure!(
            (1..=INSTANCE_MAX).contains(&self.instance.len()),
            "an instance's name has 1 to {INSTANCE_MAX} bytes, {:?} has {}",
            self.instance,
            self.instance.len()
        );
        ensure!((1..=256).contains(&self.workers), "{} workers: there are 1 to 256", self.workers);
        ensure!((1..=1 << 31).contains(&self.connections), "a worker has room for 1 to 2^31 connections");
        let region = self.content.region_bytes(self.connections);
        let regions = region.and_then(|bytes| bytes.checked_mul(usize::from(self.workers)));
        let bytes = regions.and_then(|bytes| bytes.checked_add(HEADER_BYTES));
        bytes.filter(|&bytes| bytes <= isize::MAX as usize).context("more connections than memory can address")
    }

    /// The header as it lies in the file, for this boot.
    pub(super) fn encode(&self, boot: &str) -> [u8; FIXED_BYTES] {
        let mut bytes = [0; FIXED_BYTES];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&self.content.magic());
        put(&self.content.layout().to_le_bytes());
        put(&self.content.connection_bytes().to_le_bytes());
        put(&u32::from(self.workers).to_le_bytes());
        put(&self.connections.to_le_bytes());
        put(&(self.instance.len() as u32).to_le_bytes());
        self.steering_key.iter().for_each(|word| put(&word.to_le_bytes()));
        put(&padded::<BOOT_BYTES>(boot.as_bytes()));
        put(&padded::<INSTANCE_MAX>(self.instance.as_bytes()));
        put(&(self.steer_by as u32).to_le_bytes());
        let sum = checksum(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header that another process has written. The layout is checked first, because all that follows may
    /// depend on it.
    pub(super) fn decode(
        content: Content,
        bytes: &[u8; FIXED_BYTES],
        boot: &str,
    ) -> std::result::Result<TableHeader, HeaderRefusal> {
        let mut parts = HeaderBytes(bytes);
        if parts.take::<8>() != content.magic() {
            let why = format!("it is not a {} that this version knows", content.name());
            return Err(HeaderRefusal::Unusable(why));
        }
        let (layout, connection_bytes) = (parts.u64(), parts.u32());
        if (layout, connection_bytes) != (content.layout(), content.connection_bytes()) {
            return Err(HeaderRefusal::Unusable(format!(
                "another version of Hairpin made it: its layout is {layout:016x} with {connection_bytes} bytes for a \
                 connection, this version's is {:016x} with {}",
                content.layout(),
                content.connection_bytes()
            )));
        }
        if checksum(&bytes[..CHECKSUM_AT]).to_le_bytes() != bytes[CHECKSUM_AT..] {
            return Err(HeaderRefusal::Unusable("its header is damaged: the checksum is wrong".into()));
        }
        let (workers, connections, length) = (parts.u32(), parts.u32(), parts.u32() as usize);
        let steering_key = [parts.u64(), parts.u64()];
        if parts.take::<BOOT_BYTES>() != padded::<BOOT_BYTES>(boot.as_bytes()) {
            return Err(HeaderRefusal::OtherBoot);
        }
        let name = parts.take::<INSTANCE_MAX>();
        let instance = name.get(..length).and_then(|name| std::str::from_utf8(name).ok());
        // Earlier versions left zero here.
        let by = parts.u32();
        let steer_by = [SteerBy::Hash, SteerBy::Port].into_iter().find(|known| *known as u32 == by);
        let (Some(instance), Ok(workers), Some(steer_by)) = (instance, u16::try_from(workers), steer_by) else {
            return Err(HeaderRefusal::Unusable("its header makes no sense".into()));
        };
        Ok(TableHeader { content, instance: instance.into(), workers, connections, steering_key, steer_by })
    }
}

/// The kernel's name for this boot.
pub(super) fn boot() -> Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(PATH).with_context(|| format!("cannot read {PATH}; is /proc mounted?"))?;
    Ok(text.trim().to_string())
}

/// Bytes of a header, taken one after the other.
struct HeaderBytes<'a>(&'a [u8]);

impl HeaderBytes<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((part, rest)) => {
                self.0 = rest;
                *part
            }
            None => [0; N],
        }
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

fn padded<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let length = text.len().min(N);
    bytes[..length].copy_from_slice(&text[..length]);
    bytes
}

/// FNV-1a: against accidents, not against malice. A user who can write the file could end the process anyway.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

const _: () =
    assert!(8 + 8 + 4 * 4 + 16 + BOOT_BYTES + INSTANCE_MAX + 4 <= CHECKSUM_AT && CLEAN_AT + 8 <= HEADER_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "01234567-89ab-cdef-0123-456789abcdef";

    fn header() -> TableHeader {
        TableHeader {
            content: Content::Connections,
            instance: "edge".into(),
            workers: 3,
            connections: 1000,
            steering_key: [5, u64::MAX],
            steer_by: SteerBy::Hash,
        }
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(TableHeader::decode(Content::Connections, &header().encode(BOOT), BOOT), Ok(header()));
        let longest = TableHeader { instance: "x".repeat(INSTANCE_MAX), ..header() };
        assert_eq!(TableHeader::decode(Content::Connections, &longest.encode(BOOT), BOOT), Ok(longest.clone()));
        let by_port = TableHeader { steer_by: SteerBy::Port, ..longest };
        assert_eq!(TableHeader::decode(Content::Connections, &by_port.encode(BOOT), BOOT), Ok(by_port));
    }

    #[test]
    fn every_wrong_bit_is_noticed() {
        let good = header().encode(BOOT);
        for bit in 0..FIXED_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(TableHeader::decode(Content::Connections, &bad, BOOT).is_err(), "bit {bit}");
        }
        assert!(TableHeader::decode(Content::Connections, &[0; FIXED_BYTES], BOOT).is_err());
    }

    #[test]
    fn another_boot_or_layout_is_told_apart() {
        let bytes = header().encode(BOOT);
        assert_eq!(
            TableHeader::decode(Content::Connections, &bytes, "fedcba98-89ab-cdef-0123-456789abcdef"),
            Err(HeaderRefusal::OtherBoot)
        );
        let mut other = bytes;
        other[8] ^= 1;
        let Err(HeaderRefusal::Unusable(why)) = TableHeader::decode(Content::Connections, &other, BOOT) else {
            panic!("another layout was accepted")
        };
        assert!(why.contains("another version of Hairpin") && why.contains("192"), "{why}");
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert_eq!(header().file_bytes().unwrap(), 4096 + 3000 * 192);
        for bad in [
            TableHeader { workers: 0, ..header() },
            TableHeader { workers: 257, ..header() },
            TableHeader { connections: 0, ..header() },
            TableHeader { connections: u32::MAX, ..header() },
            TableHeader { instance: String::new(), ..header() },
            TableHeader { instance: "x".repeat(INSTANCE_MAX + 1), ..header() },
        ] {
            assert!(bad.file_bytes().is_err(), "{bad:?}");
        }
        assert!(TableHeader { workers: 256, connections: 1 << 31, ..header() }.file_bytes().is_ok());
        assert!(boot().unwrap().len() == BOOT_BYTES);
    }
}
