//! Marks: what BPF and worker tell each other in the Ethernet destination address of frames on a worker device
//! (`enum mark` in `crates/linux/bpf/hairpin.h`).

use hairpin_core::frame::{Arrival, Egress, Meta};

/// To the worker: it arrived on an interface.
pub(crate) const RECEIVED: u8 = 0x0a;
/// To the worker: the worker sent it, and it is too big for the egress MTU.
pub(crate) const TOO_BIG: u8 = 0x0e;
/// From the worker: route it.
pub(crate) const ROUTE: u8 = 0x12;
/// From the worker: not ours.
pub(crate) const TO_KERNEL: u8 = 0x16;

/// From the worker: to the backend whose number is in place of the ticket, whatever the packet's destination.
pub(crate) const DIRECT: u8 = 0x1a;

/// Decodes the mark `destination`, for a frame that is otherwise ordinary. `None`: the plane did not send this frame
/// (the kernel itself did, or another program).
///
/// A ticket is the CPU that gave it (upper 8 bits) and its number (lower 24); frames that come back too big carry
/// none, and 0 stands there.
pub(crate) fn decode(destination: [u8; 6]) -> Option<Meta> {
    let [kind, slot, ticket @ ..] = destination;
    let port = u16::from(slot);
    match kind {
        RECEIVED => Some(Meta { port, ticket: u32::from_be_bytes(ticket), ..Meta::default() }),
        TOO_BIG => {
            let mtu = u16::from_be_bytes([ticket[2], ticket[3]]);
            Some(Meta { port, arrival: Arrival::too_big(mtu), ..Meta::default() })
        }
        _ => None,
    }
}

/// The mark that tells BPF what becomes of a frame.
pub(crate) fn encode(meta: &Meta) -> [u8; 6] {
    let (kind, rest) = match meta.egress {
        Egress::Route => (ROUTE, meta.ticket),
        Egress::Kernel => (TO_KERNEL, meta.ticket),
        Egress::Direct(backend) => (DIRECT, u32::from(backend) << 16),
    };
    let [cpu, high, middle, low] = rest.to_be_bytes();
    // Slots are below INTERFACES_MAX (64); one that is not names no interface in BPF's map and the frame is dropped.
    [kind, u8::try_from(meta.port).unwrap_or(u8::MAX), cpu, high, middle, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_contract() {
        let contract = include_str!("../../bpf/hairpin.h");
        let all = [
            ("RECEIVED", RECEIVED),
            ("TOO_BIG", TOO_BIG),
            ("ROUTE", ROUTE),
            ("TO_KERNEL", TO_KERNEL),
            ("DIRECT", DIRECT),
        ];
        for (name, value) in all {
            assert!(contract.contains(&format!("MARK_{name} = {value:#04x},")), "MARK_{name}");
            assert_eq!(value & 3, 2, "MARK_{name} must be a locally administered unicast address");
        }
    }

    #[test]
    fn arrivals_are_decoded() {
        let meta = decode([RECEIVED, 63, 0xfe, 0x12, 0x34, 0x56]).unwrap();
        assert_eq!((meta.port, meta.ticket, meta.arrival), (63, 0xfe12_3456, Arrival::Received));
        let meta = decode([TOO_BIG, 1, 0, 0, 0x05, 0x78]).unwrap();
        assert_eq!((meta.port, meta.ticket, meta.arrival), (1, 0, Arrival::too_big(1400)));
    }

    #[test]
    fn marks_of_others_are_not() {
        for kind in (0..=255).filter(|&kind| kind != RECEIVED && kind != TOO_BIG) {
            assert!(decode([kind, 0, 0, 0, 0, 0]).is_none(), "{kind:#x}");
        }
    }

    #[test]
    fn departures_have_slot_and_ticket() {
        let mut meta = Meta { port: 5, ticket: 0x0701_0203, ..Meta::default() };
        assert_eq!(encode(&meta), [ROUTE, 5, 7, 1, 2, 3]);
        meta.egress = Egress::Kernel;
        assert_eq!(encode(&meta), [TO_KERNEL, 5, 7, 1, 2, 3]);
        meta.egress = Egress::Direct(0x1234);
        assert_eq!(encode(&meta), [DIRECT, 5, 0x12, 0x34, 0, 0]);
        meta.port = 300;
        assert_eq!(encode(&meta)[1], 255);
    }
}
