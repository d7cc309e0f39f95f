//! TCP timestamps of hosts: smoltcp sends and echoes them, and leaves it to others to refuse old ones (RFC 7323, 5.3).

use crate::segments::{acknowledgement, sequence};
use hairpin_core::flow::Endpoint;
use hairpin_core::time::Time;
use hairpin_core::wire::Transport;
use hairpin_core::wire::tcp::{ACK, FIN, RST, SEQUENCE, SYN, timestamps};
use smoltcp::socket::tcp::Socket;
use std::cell::Cell;
use std::collections::BTreeMap;

thread_local! {
    /// The clock of the host that is at work.
    static CLOCK: Cell<u32> = const { Cell::new(0) };
}

/// A host's clock, in ms, which begins at some number, and what it knows of those of others.
pub(crate) struct HostClock {
    ahead: u32,
    /// Of those that have agreed on timestamps with it.
    seen: BTreeMap<(Endpoint, u16), SeenClock>,
    /// The values in SYNs.
    offered: BTreeMap<(Endpoint, u16), u32>,
    /// What a segment lacked or had that it may not.
    pub(crate) wrong: Option<String>,
}

/// What a host knows of another's clock.
#[derive(Clone, Copy)]
struct SeenClock {
    /// TS.Recent.
    recent: u32,
    /// The last number that the host has acknowledged.
    acknowledged: u32,
}

fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The value of a segment's timestamps.
fn value(frame: &[u8], at: &Transport) -> Option<u32> {
    let options = frame.get(at.l4 + 20..at.payload)?;
    let value = timestamps(options).last()?;
    Some(u32::from_be_bytes(options.get(value..value + 4)?.try_into().ok()?))
}

impl HostClock {
    pub(crate) fn new(seed: u64) -> HostClock {
        HostClock {
            ahead: (seed >> 7) as u32 ^ seed as u32,
            seen: BTreeMap::new(),
            offered: BTreeMap::new(),
            wrong: None,
        }
    }

    /// Sockets with timestamps go by this host's clock until the next call.
    pub(crate) fn set(&self, now: Time) {
        CLOCK.set(self.ahead.wrapping_add((now.as_nanos() / 1_000_000) as u32));
    }

    /// Has a socket send timestamps, if its peer does.
    pub(crate) fn wind(socket: &mut Socket<'static>) {
        socket.set_tsval_generator(Some(|| CLOCK.get()));
    }

    /// The host sends a segment.
    pub(crate) fn sends(&mut self, frame: &[u8], at: &Transport) {
        let flow = (at.key.destination, at.key.source.port);
        match at.tcp_flags & (SYN | ACK) {
            SYN => drop(self.seen.remove(&flow)),
            ACK => {}
            _ => {
                self.seen.remove(&flow);
                let offered = self.offered.get(&flow).filter(|_| value(frame, at).is_some());
                self.seen.extend(offered.map(|&recent| (flow, SeenClock { recent, acknowledged: 0 })));
            }
        }
        if let Some(seen) = self.seen.get_mut(&flow).filter(|_| at.tcp_flags & ACK != 0) {
            seen.acknowledged = acknowledgement(frame, at);
        }
    }

    /// A segment with a right checksum arrives. One that is refused gets a number outside any window: the host answers it, and
    /// takes nothing from it. But one that only acknowledges something old is lost (Linux does not
    /// answer many of those). With a number that the host has acknowledged it is a question: half of all hosts are as Linux
    /// from 6.14 on, which answers one without timestamps and loses one with old ones; the others do as RFC 7323, 3.2 and 5.3 say.
    pub(crate) fn gets(&mut self, frame: &mut [u8], at: &Transport) -> SegmentAge {
        let flow = (at.key.source, at.key.destination.port);
        let (value, number) = (value(frame, at), sequence(frame, at));
        match (at.tcp_flags & (SYN | ACK), value) {
            (SYN, Some(value)) => drop(self.offered.insert(flow, value)),
            (SYN, None) => drop(self.offered.remove(&flow)),
            // Not one that the network brings twice.
            (flags, Some(recent)) if flags & SYN != 0 => {
                self.seen.entry(flow).or_insert(SeenClock { recent, acknowledged: number.wrapping_add(1) });
            }
            _ => {}
        }
        let is_exempt = at.tcp_flags & (SYN | RST) != 0;
        let Some(seen) = self.seen.get_mut(&flow).filter(|_| !is_exempt) else { return SegmentAge::Good };
        let is_bare = at.payload == at.end && at.tcp_flags == ACK;
        let (is_question, is_newer_linux) = (is_bare && before(number, seen.acknowledged), self.ahead & 1 != 0);
        match value {
            None if is_question && is_newer_linux => SegmentAge::Good,
            None if is_question => SegmentAge::Lost,
            None => {
                let lacks = || format!("no timestamps from {:?} to port {}", flow.0, flow.1);
                self.wrong.get_or_insert_with(lacks);
                SegmentAge::Lost
            }
            Some(value) if before(value, seen.recent) => {
                // smoltcp counts a FIN that is out of its window.
                let is_lost =
                    at.payload == at.end && (!before(number, seen.acknowledged) || is_question && is_newer_linux);
                if is_lost || at.tcp_flags & FIN != 0 {
                    return SegmentAge::Lost;
                }
                let number = seen.acknowledged.wrapping_add(1 << 30);
                frame[at.l4 + SEQUENCE..at.l4 + SEQUENCE + 4].copy_from_slice(&number.to_be_bytes());
                at.fill_checksum(frame);
                SegmentAge::Refused
            }
            Some(value) => {
                if !before(seen.acknowledged, number) {
                    seen.recent = value;
                }
                SegmentAge::Good
            }
        }
    }
}

/// What a host makes of a segment's timestamps.
pub(crate) enum SegmentAge {
    /// It is taken.
    Good,
    /// It is answered, and not taken.
    Refused,
    /// It is as if it had not come.
    Lost,
}
