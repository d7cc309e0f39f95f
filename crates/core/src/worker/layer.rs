//! Which layer a packet belongs to. The order is:
//!
//! 1. a connection of layer 4, by the worker's index (before this, in `packets.rs`, since nearly all packets have one);
//! 2. a spliced connection, client's or backend's, by the splices' index;
//! 3. a TCP packet to an HTTP or TLS service: it may begin a client connection;
//! 4. a TCP packet that can only be of a spliced backend connection that is gone: it is refused;
//! 5. layer 4 again: a packet to one of its services, from one of its backends, or not ours at all (`unmatched`).

use super::{Drop, Worker};
use crate::flow::{Direction, FlowKey, Protocol};
use crate::frame::{Batch, FrameIo};
use crate::l7::config::Kind;
use crate::offload::OffloadPolicy;
use crate::table::Table;
use crate::time::Time;
use crate::wire::Transport;

/// To whom a packet belongs that is of no connection of layer 4.
enum Owner {
    /// A spliced connection: where it is, and from which end the packet comes.
    Splice((u32, Direction)),
    /// An HTTP or TLS service, by its number: there is no such connection yet.
    SplicedService(u16),
    /// A spliced connection to a backend, which is gone.
    GoneSplice,
    /// Layer 4, or the kernel.
    Layer4,
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    fn owner(&self, at: &Transport) -> Owner {
        if at.key.protocol != Protocol::Tcp {
            return Owner::Layer4;
        }
        if let Some(found) = self.splices.find(&at.key) {
            return Owner::Splice(found);
        }
        let service = self.services.at(&at.key.destination, at.key.protocol);
        let is_spliced = |service: &u16| {
            self.snapshot.services.get(usize::from(*service)).is_some_and(|service| service.kind.is_spliced())
        };
        match service.filter(is_spliced) {
            Some(service) => Owner::SplicedService(service),
            None if self.is_of_gone_splice(&at.key) => Owner::GoneSplice,
            None => Owner::Layer4,
        }
    }

    /// Takes a packet of no connection of layer 4.
    pub(super) fn without_connection<IO: FrameIo>(
        &mut self,
        now: Time,
        io: &mut IO,
        frame: IO::Frame,
        at: Transport,
        tx: &mut Batch<IO::Frame>,
    ) {
        match self.owner(&at) {
            Owner::Splice(found) => self.splice_segment(now, io, frame, &at, found, tx),
            Owner::SplicedService(service) => self.splice_new_flow(now, io, frame, &at, service, tx),
            Owner::GoneSplice => self.refuse(now, frame, &at, Drop::Unknown, tx),
            Owner::Layer4 => self.unmatched(now, frame, at, tx),
        }
    }

    /// Whether a packet can only be of a splice's connection to a backend that is gone: its port is the pool's, and the
    /// backend serves no service of layer 4. Leaving it to the kernel would leave the next connection's to it too.
    fn is_of_gone_splice(&self, key: &FlowKey) -> bool {
        let Some(number) = self.backends.at(&key.source, key.protocol) else { return false };
        // Spliced services may lead to the backends of a terminated one.
        let spliced = |kind: &Kind| kind.is_spliced() || kind.is_group() || kind.is_terminated();
        self.snapshot.backend(number).is_some_and(|(service, _)| spliced(&service.kind))
            && self.ports.owns(&key.destination)
    }
}
