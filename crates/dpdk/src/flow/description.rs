//! Rules in plain words: what `shim/flow.h` makes rte_flow's arrays of. The two say the same.

use super::raw;
use hairpin_core::flow::{Address, Endpoint};
use std::ops::BitOr;

macro_rules! bits {
    ($(#[$of:meta])* $name:ident { $($(#[$doc:meta])* $bit:ident = $value:expr;)* }) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            $($(#[$doc])* pub const $bit: $name = $name($value);)*

            /// Nothing of it.
            pub const NONE: $name = $name(0);

            /// Whether all of `other` is in it.
            pub const fn has(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }

            /// This and `other`.
            pub const fn and(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }

            /// This without `other`.
            pub const fn without(self, other: $name) -> $name {
                $name(self.0 & !other.0)
            }
        }

        impl BitOr for $name {
            type Output = $name;
            fn bitor(self, other: $name) -> $name {
                self.and(other)
            }
        }
    };
}

bits! {
    /// The match of a rule, besides family and protocol.
    Match {
        /// The source address.
        SOURCE = 1 << 0;
        /// The destination address.
        DESTINATION = 1 << 1;
        /// The source port.
        SOURCE_PORT = 1 << 2;
        /// The destination port.
        DESTINATION_PORT = 1 << 3;
        /// TCP without SYN, FIN and RST: those go to software.
        NO_CONTROL = 1 << 4;
        /// TCP with ACK.
        ACK = 1 << 5;
        /// TCP with a header of 20 bytes: no SACK block that would have to be translated.
        NO_OPTIONS = 1 << 6;
        /// No fragment, the first one included.
        WHOLE = 1 << 7;
        /// TTL or hop limit 0 or 1.
        LAST_HOP = 1 << 8;
    }
}

impl Match {
    /// The 5-tuple.
    pub const FLOW: Match = Match::SOURCE.and(Match::DESTINATION).and(Match::SOURCE_PORT).and(Match::DESTINATION_PORT);
}

bits! {
    /// The actions of a rule. Exactly one of them is a fate: `QUEUE`, `RSS`, `PORT_ID`, `REPRESENTED_PORT`,
    /// `PORT_REPRESENTOR`, `JUMP`.
    Does {
        /// Sets the source's Ethernet address.
        SOURCE_MAC = 1 << 0;
        /// Sets the destination's Ethernet address.
        DESTINATION_MAC = 1 << 1;
        /// Sets the source address.
        SOURCE = 1 << 2;
        /// Sets the destination address.
        DESTINATION = 1 << 3;
        /// Sets the source port.
        SOURCE_PORT = 1 << 4;
        /// Sets the destination port.
        DESTINATION_PORT = 1 << 5;
        /// Takes one off the TTL or hop limit.
        TTL = 1 << 6;
        /// Adds to the sequence number, wrapping.
        SEQUENCE = 1 << 7;
        /// Adds to the acknowledgement number, wrapping.
        ACKNOWLEDGEMENT = 1 << 8;
        /// Notes when it was last hit.
        AGE = 1 << 9;
        /// Counts packets and bytes.
        COUNT = 1 << 10;
        /// Marks the packet for software.
        MARK = 1 << 11;
        /// Into a queue: a worker's, or one that hairpins.
        QUEUE = 1 << 12;
        /// Into one of the workers' queues, as their port spreads flows.
        RSS = 1 << 13;
        /// Out of a port, named as testpmd's PORT_ID does.
        PORT_ID = 1 << 14;
        /// Out of a port, through the embedded switch.
        REPRESENTED_PORT = 1 << 15;
        /// On to another group's rules.
        JUMP = 1 << 16;
        /// From the embedded switch to the process that has the port.
        PORT_REPRESENTOR = 1 << 17;
    }
}

impl Does {
    /// Every address of a packet, all of which full address translation changes, and its TTL.
    pub const REWRITE: Does = Does::SOURCE_MAC
        .and(Does::DESTINATION_MAC)
        .and(Does::SOURCE)
        .and(Does::DESTINATION)
        .and(Does::SOURCE_PORT)
        .and(Does::DESTINATION_PORT)
        .and(Does::TTL);
    /// Both numbers of TCP.
    pub const SEQUENCE_NUMBERS: Does = Does::SEQUENCE.and(Does::ACKNOWLEDGEMENT);
}

bits! {
    /// How a rule is said.
    How {
        /// In the domain of the embedded switch, else in that of what comes in on the port.
        TRANSFER = 1 << 0;
        /// By MODIFY_FIELD, else by SET_*, DEC_TTL, INC_TCP_* and DEC_TCP_*.
        MODIFY = 1 << 1;
        /// By SET_* and the like: deltas of 2^31 and more are subtracted by their complement, else added.
        SIGNED = 1 << 2;
    }
}

/// An IP version; its value is that number, 0 for frames of any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Family {
    /// Any frame.
    #[default]
    Any = 0,
    /// IPv4.
    V4 = 4,
    /// IPv6.
    V6 = 6,
}

/// One rule of a port. What it neither matches nor does may stand as it likes, 0 by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Description {
    /// The rule's name in ageing.
    pub context: u64,
    /// The fields RSS hashes, as DPDK numbers them.
    pub rss_types: u64,
    /// The table of rules it is in.
    pub group: u32,
    /// 0 is asked first.
    pub priority: u32,
    /// The match.
    pub matches: Match,
    /// The actions.
    pub does: Does,
    /// How it is said.
    pub how: How,
    /// Added to the sequence number.
    pub sequence_delta: u32,
    /// Added to the acknowledgement number.
    pub acknowledgement_delta: u32,
    /// Seconds of silence after which the device may call it aged, below 2^24.
    pub age_seconds: u32,
    /// The mark.
    pub mark: u32,
    /// The group it goes on to.
    pub jump: u32,
    /// The queue, or for RSS how many from 0 on, 1 to 64.
    pub queue: u16,
    /// DPDK's number of the port it leaves by.
    pub port: u16,
    /// Matched.
    pub source_port: u16,
    /// Matched.
    pub destination_port: u16,
    /// Set.
    pub new_source_port: u16,
    /// Set.
    pub new_destination_port: u16,
    /// Which bits of the source port are matched; 0: all.
    pub source_port_bits: u16,
    /// Which bits of the destination port are matched; 0: all.
    pub destination_port_bits: u16,
    /// Which packets.
    pub family: Family,
    /// The protocol, as IANA numbers it: 6, 17, or 0 for any.
    pub protocol: u8,
    /// Set.
    pub source_mac: [u8; 6],
    /// Set.
    pub destination_mac: [u8; 6],
    /// Matched; IPv4 in the first four bytes.
    pub source: [u8; 16],
    /// Matched.
    pub destination: [u8; 16],
    /// Set.
    pub new_source: [u8; 16],
    /// Set.
    pub new_destination: [u8; 16],
}

/// Why a description has no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoText {
    /// errno: `EINVAL` for a description that contradicts itself.
    pub code: i32,
}

impl Description {
    /// Matches the packets of a flow from `source` to `destination`.
    pub(crate) fn match_flow(&mut self, source: &Endpoint, destination: &Endpoint) {
        self.source = octets(&source.address);
        self.destination = octets(&destination.address);
        (self.source_port, self.destination_port) = (source.port, destination.port);
        self.matches = self.matches | Match::FLOW;
    }

    /// The common part of all rules of a template: everything but a rule's own values.
    pub(crate) fn shape(&self) -> Description {
        Description {
            group: self.group,
            priority: self.priority,
            matches: self.matches,
            does: self.does,
            how: self.how,
            family: self.family,
            protocol: self.protocol,
            source_port_bits: self.source_port_bits,
            destination_port_bits: self.destination_port_bits,
            // Which group, and which queues, is part of a template.
            jump: self.jump,
            rss_types: self.rss_types,
            queue: if self.does.has(Does::RSS) { self.queue } else { 0 },
            ..Description::default()
        }
    }

    /// rte_flow's arrays for this rule, as text: one item or action a line. With `masks`, also which part of each
    /// action would be a template's.
    ///
    /// # Errors
    /// [`NoText`].
    pub fn arrays(&self, masks: bool) -> Result<String, NoText> {
        // SAFETY: the description is as C has it, and the text is written only as far as it reaches.
        text(|at, size| unsafe { raw::hairpin_flow_dump(self, i32::from(masks), at, size) })
    }

    /// The text that `rte_flow_conv` makes of the arrays.
    ///
    /// # Errors
    /// [`NoText`], also when DPDK does not convert them.
    pub fn converted(&self) -> Result<String, NoText> {
        // SAFETY: as above.
        text(|at, size| unsafe { raw::hairpin_flow_dump_converted(self, at, size) })
    }
}

/// An address as a description has it.
pub(crate) fn octets(address: &Address) -> [u8; 16] {
    if !address.is_ipv4() {
        return address.0;
    }
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&address.ipv4_octets());
    bytes
}

fn text(write: impl FnOnce(*mut std::ffi::c_char, usize) -> i32) -> Result<String, NoText> {
    const SIZE: usize = 8192;
    let mut bytes = vec![0u8; SIZE];
    let length = write(bytes.as_mut_ptr().cast(), SIZE);
    let length = usize::try_from(length).map_err(|_| NoText { code: length.wrapping_neg() })?;
    bytes.truncate(length.min(SIZE - 1));
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
