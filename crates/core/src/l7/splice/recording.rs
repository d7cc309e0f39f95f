//! Records of exchanges (`crate::record`): when one begins and when it ends.
//!
//! An exchange whose `record` is not 0 has one to write. It is written once: when the exchange is concluded, when an answer of
//! ours is sent, or when its client's connection ends first.

use super::state::entry::{ClientConn, ClientConnState};
use super::state::exchange::NO_LENGTH;
use super::{Context, Refused, Splices};
use crate::frame::FrameIo;
use crate::l7::config::Kind;
use crate::l7::head::Version;
use crate::record::{self, Ending, Record, Recorder, Texts, flags};
use crate::time::Time;

/// Begins the record of the request at the front of a client connection's input, with what the request says of itself.
#[inline(always)]
pub(super) fn begin(
    now: Time,
    recorder: &mut Recorder,
    client_conn: &mut ClientConn,
    (version, texts): (Version, &Texts<'_>),
) {
    let exchange = &client_conn.exchange;
    if exchange.record != 0 {
        // It is decided anew.
        return;
    }
    let record = recorder.begin(client_conn.forwarded.map(|volume| volume.bytes), texts);
    let exchange = &mut client_conn.exchange;
    (exchange.record, exchange.started) = (record, now);
    // Of the exchange before.
    (exchange.status, exchange.tries, exchange.response_in_us) = (0, 0, record::NEVER_US);
    (exchange.is_sent, exchange.is_offloaded, exchange.ending) = (false, false, Ending::Aborted as u8);
    (exchange.route, exchange.version, exchange.lengths) = (record::NONE, version, [NO_LENGTH; 2]);
}

impl Splices {
    /// Notes by what the exchange of a client connection ends that is about to end.
    pub(super) fn ends_by(&mut self, position: u32, ending: Ending) {
        if let Some(client_conn) = self.client_conns.get_mut(position) {
            client_conn.exchange.ending = ending as u8;
        }
    }
}

impl<IO: FrameIo> Context<'_, IO> {
    /// Whether records are kept of a service's exchanges.
    #[inline]
    pub(super) fn records(&self, service: u16) -> bool {
        self.recorder.is_some()
            && self.snapshot.services.get(usize::from(service)).is_some_and(|service| service.is_recorded)
    }

    /// Writes the record of an exchange that is over, if it has one.
    #[inline]
    pub(super) fn record_end(&mut self, client_conn: &mut ClientConn, ending: Ending) {
        if client_conn.exchange.record != 0 {
            let bytes = client_conn.exchange_bytes(ending);
            self.write_record(client_conn, (ending, bytes), None);
        }
    }

    /// The client has all of a response: counts it, and writes the record of the exchange, if it has one.
    #[inline]
    pub(super) fn exchange_is_done(&mut self, client_conn: &mut ClientConn) {
        let bytes = client_conn.exchange_bytes(Ending::Done);
        self.delivered(client_conn, bytes.0);
        if client_conn.exchange.record != 0 {
            self.write_record(client_conn, (Ending::Done, bytes), None);
        }
    }

    /// A client's connection is over: it is none of its service's connections any more, however long it is kept.
    pub(super) fn count_out(&mut self, client_conn: &mut ClientConn) {
        // Of an exchange that is not over it is the end.
        self.record_end(client_conn, Ending::of(client_conn.exchange.ending));
        if core::mem::take(&mut client_conn.is_open)
            && let Some(service) = self.statistics.services.get_mut(usize::from(client_conn.service))
        {
            service.client_conns_now = service.client_conns_now.saturating_sub(1);
        }
    }

    /// Writes the record of a request that is answered by ourselves, with `length` bytes; `why`: with an error.
    pub(super) fn record_answer(
        &mut self,
        client_conn: &mut ClientConn,
        (status, why): (u16, Option<Refused>),
        length: usize,
    ) {
        let is_unread = client_conn.state == ClientConnState::Reading && self.records(client_conn.service);
        if client_conn.exchange.record == 0 && !is_unread {
            return;
        }
        client_conn.exchange.status = status;
        let bytes = client_conn.exchange_bytes(Ending::Answered);
        self.write_record(client_conn, (Ending::Answered, bytes), Some((why, length as u32)));
    }

    fn write_record(
        &mut self,
        client_conn: &mut ClientConn,
        (ending, ([request, response], mut low)): (Ending, ([u64; 2], u8)),
        answer: Option<(Option<Refused>, u32)>,
    ) {
        let number = core::mem::take(&mut client_conn.exchange.record);
        let service = self.snapshot.services.get(usize::from(client_conn.service));
        let is_http = service.is_some_and(|service| matches!(service.kind, Kind::Http(_)));
        let Some(recorder) = self.recorder.as_deref_mut() else { return };
        let exchange = &client_conn.exchange;
        // Of a head that cannot be read nothing was noted.
        let is_begun = number != 0;
        let started = if is_begun { exchange.started } else { self.now };
        let is_chosen = is_begun && exchange.tries > 0;
        let [up, down] = &client_conn.forwarded;
        let (why, response) = match answer {
            Some((why, length)) => {
                low &= !flags::LOW_OUT;
                (why.map_or(u8::MAX, |why| why as u8), u64::from(length))
            }
            None => (u8::MAX, response),
        };
        // Of a TLS connection all that passes is counted, as of layer 4's.
        let (packets, bytes) = match is_http {
            true => ([0; 2], [if is_begun { request } else { 0 }, response]),
            false => ([up.packets, down.packets], [up.bytes, down.bytes]),
        };
        let make = || Record {
            started: started.as_nanos(),
            took: self.now.as_nanos().saturating_sub(started.as_nanos()),
            bytes,
            packets,
            volumes: [up.bytes, down.bytes],
            number,
            to_backend_us: if is_begun && exchange.is_sent { exchange.chosen_in_us } else { record::NEVER_US },
            to_response_us: if is_begun { exchange.response_in_us } else { record::NEVER_US },
            client: client_conn.key.source,
            vip: client_conn.key.destination,
            service: client_conn.service,
            group: if is_chosen { exchange.group } else { record::NONE },
            backend: if is_chosen { exchange.backend } else { record::NONE },
            route: if is_begun { exchange.route } else { record::NONE },
            status: exchange.status,
            ending: ending as u8,
            why,
            tries: if is_begun { exchange.tries } else { 0 },
            flags: bit(is_http, flags::EXCHANGE)
                | bit(!is_http, flags::TLS)
                | bit(is_begun && exchange.version == Version::Http10, flags::HTTP10)
                | bit(is_begun && exchange.is_offloaded, flags::ENGINE)
                | if is_http && is_begun { low } else { 0 },
            unused: [0; 2],
        };
        if is_begun {
            recorder.end(make);
        } else {
            recorder.whole(&make(), &Texts::default());
        }
    }
}

fn bit(is: bool, flag: u8) -> u8 {
    if is { flag } else { 0 }
}

impl ClientConn {
    /// Bytes of the exchange's request and response so far, and flags that say of which only the lower 32 bits are known.
    pub(super) fn exchange_bytes(&self, ending: Ending) -> ([u64; 2], u8) {
        let [request, response] = self.exchange.first;
        let request_end = match self.exchange.is_sent {
            true => self.exchange.request_end.get().unwrap_or(self.peer.highest),
            false => self.input_start(),
        };
        // The response of a request that waits has not begun.
        let response_end = self.peer.sent.wrapping_sub(u32::from(self.peer.was_closed));
        let mut low = 0;
        let sides = [
            (request_end, request, self.exchange.lengths[0], flags::LOW_IN),
            (response_end, response, self.exchange.lengths[1], flags::LOW_OUT),
        ];
        let bytes = sides.map(|(end, first, length, flag)| {
            let bytes = end.wrapping_sub(first);
            // FIN may stand where a byte would, before one that was never sent.
            let bytes = if bytes == u32::MAX { 0 } else { bytes };
            // A head is much shorter than the rest of 4 GiB.
            if length < (1 << 32) - (1 << 20) {
                u64::from(bytes)
            } else if length != NO_LENGTH && ending == Ending::Done {
                length.saturating_add(bytes.wrapping_sub(length as u32).into())
            } else {
                low |= flag;
                bytes.into()
            }
        });
        (bytes, low)
    }
}
