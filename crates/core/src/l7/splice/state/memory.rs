//! Where a worker's spliced connections lie.

use super::buffers::{Memory, SIZES, Use, counts};
use super::configurations::{self, Configurations};
use super::ended::{self, Bucket};
use super::entry::{BackendConn, ClientConn};
use super::resting::{self, RestingPort};
use crate::config::BACKENDS_MAX;
use crate::stored::{Stored, mixed};
use crate::table::numbered::{Done, Numbered};
use crate::table::region::{Array, Region};
use crate::table::slab::{Slab, Slot};
use alloc::vec::Vec;
use core::mem::offset_of;
use zerocopy::FromBytes;

/// To be raised whenever the meaning of what is stored changes in a way that [`SplicedMemory::LAYOUT_HASH`] cannot see.
const LAYOUT_VERSION: u64 = 2;

/// Memory for the spliced connections of one worker: all that has to outlive the process. What follows from it (index,
/// timers, idle lists, free buffers) is the process's.
pub struct SplicedMemory {
    region: Region,
    connections: u32,
}

/// Its parts, in order.
pub(in crate::l7::splice) struct Parts {
    pub(in crate::l7::splice) done: Done,
    pub(in crate::l7::splice) configurations: Configurations,
    pub(in crate::l7::splice) client_conns: Array<Slot<Numbered<ClientConn>>>,
    pub(in crate::l7::splice) backend_conns: Array<Slot<Numbered<BackendConn>>>,
    pub(in crate::l7::splice) ended: Array<Bucket>,
    pub(in crate::l7::splice) resting: Array<RestingPort>,
    pub(in crate::l7::splice) buffers: [Memory; 3],
}

impl SplicedMemory {
    /// Names how this memory is laid out. A process adopts what another has left only if theirs is the same.
    pub const LAYOUT_HASH: u64 = {
        let mut hash = mixed(<ClientConn as Stored>::LAYOUT_HASH, LAYOUT_VERSION);
        hash = mixed(hash, <BackendConn as Stored>::LAYOUT_HASH);
        hash = mixed(hash, <Bucket as Stored>::LAYOUT_HASH);
        hash = mixed(hash, <RestingPort as Stored>::LAYOUT_HASH);
        hash = mixed(hash, <Use as Stored>::LAYOUT_HASH);
        let mut i = 0;
        while i < SIZES.len() {
            hash = mixed(hash, SIZES[i] as u64);
            i += 1;
        }
        hash
    };

    /// Memory of this process, for `connections` clients' connections and as many to backends.
    pub fn own(connections: u32) -> SplicedMemory {
        SplicedMemory::new(Region::own(SplicedMemory::bytes(connections)), connections)
    }

    /// A region of at least [`SplicedMemory::bytes`], of which nothing has been taken.
    pub fn new(region: Region, connections: u32) -> SplicedMemory {
        SplicedMemory { region, connections }
    }

    /// Bytes that so many connections need. Most are touched only as they are used.
    pub const fn bytes(connections: u32) -> usize {
        let mut bytes = SplicedMemory::bytes_before_buffers(connections);
        let (counts, mut i) = (counts(connections), 0);
        while i < SIZES.len() {
            bytes += Region::room::<u8>(counts[i] as usize * SIZES[i]) + Region::room::<Use>(counts[i] as usize);
            i += 1;
        }
        bytes
    }

    /// Bytes of all that lies in front of the buffers.
    pub(in crate::l7::splice) const fn bytes_before_buffers(connections: u32) -> usize {
        let count = connections as usize;
        Region::room::<u64>(1)
            + Region::room::<u64>(configurations::WORDS)
            + Region::room::<Slot<Numbered<ClientConn>>>(count)
            + Region::room::<Slot<Numbered<BackendConn>>>(count)
            + Region::room::<Bucket>(ended::buckets(connections))
            + Region::room::<RestingPort>(resting::places(connections))
    }

    /// How many connections each backend has, by its number, before a process adopts them. Entries that an adopter would not
    /// believe count, too. The memory is as before.
    pub fn connections_by_backend(mut self) -> (SplicedMemory, Vec<u64>) {
        let mut counts = Vec::new();
        let mut entries = Slab::new(self.parts().backend_conns);
        entries.mend(|_, bytes| {
            let at = Numbered::<BackendConn>::VALUE_AT + offset_of!(BackendConn, number);
            let number = bytes.get(at..at + 2).and_then(|bytes| u16::read_from_bytes(bytes).ok()).unwrap_or(u16::MAX);
            let number = usize::from(number);
            if number < BACKENDS_MAX as usize {
                counts.resize(counts.len().max(number + 1), 0);
                counts[number] += 1;
            }
            true
        });
        drop(entries);
        (self.again(), counts)
    }

    /// Clients' connections there can be, and as many to backends.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// Sees it while it is in use.
    #[cfg(test)]
    pub(in crate::l7::splice) fn image(&self) -> crate::table::region::Image {
        self.region.image()
    }

    /// Makes it what an image of it has shown.
    #[cfg(test)]
    pub(crate) fn overwrite(&mut self, bytes: &[u8]) {
        self.region.overwrite(bytes);
    }

    /// As another process will find it, when its parts are no longer in use.
    pub(in crate::l7::splice) fn again(self) -> SplicedMemory {
        SplicedMemory { region: self.region.again(), ..self }
    }

    pub(in crate::l7::splice) fn parts(&mut self) -> Parts {
        let SplicedMemory { region, connections } = self;
        let connections = *connections;
        let (count, counts) = (connections as usize, counts(connections));
        Parts {
            done: Done::new(region.take(1)),
            configurations: Configurations::new(region.take(configurations::WORDS)),
            client_conns: region.take(count),
            backend_conns: region.take(count),
            ended: region.take(ended::buckets(connections)),
            resting: region.take(resting::places(connections)),
            buffers: [0, 1, 2].map(|size| {
                let uses = region.take(counts[size] as usize);
                (region.take(counts[size] as usize * SIZES[size]), uses)
            }),
        }
    }
}
