//! Records of exchanges (`crate::record`): when one begins and when it ends.
//!
//! An exchange whose `record` is not 0 has one to write. It is written once: when the exchange is concluded, when an answer of
//! ours is sent, or when its client's connection ends first.

use super::state::entry::{ClientConn, ClientConnState};
use super::state::exchange::{Exchange, NO_LENGTH};
use super::{Context, Refused, Splices};
use crate::frame::FrameIo;
use crate::l7::config::Kind;
use crate::l7::head::Version;
use crate::record::{self, Ending, IS_KEPT, LOST, NEVER_US, Record, RecordRest, RecordStart, Texts, flags};
use crate::time::Time;

/// What is noted of a request when its head has been read.
#[derive(Clone, Copy)]
pub(super) struct Noted {
    /// [`Exchange::first`].
    pub(super) first: [u32; 2],
    /// [`Exchange::trace`].
    pub(super) trace: u64,
    /// [`Exchange::record`].
    pub(super) record: u32,
}

impl Noted {
    /// Of the request at the front of a client connection's input. One that is decided anew keeps what was noted with its record.
    #[inline]
    pub(super) fn of(client_conn: &ClientConn) -> Noted {
        let Exchange { first, trace, record, .. } = client_conn.exchange;
        match record {
            0 => Noted { first: [client_conn.input_start(), client_conn.peer.sent], trace: 0, record },
            _ => Noted { first, trace, record },
        }
    }
}

impl Exchange {
    /// A request that begins `now` may come no further than here.
    #[inline(never)]
    pub(super) fn note(&mut self, now: Time, noted: &Noted, (version, route): (Version, u16)) {
        let is_decided_anew = self.record != 0;
        (self.first, self.trace, self.record, self.route) = (noted.first, noted.trace, noted.record, route);
        if is_decided_anew || noted.record == 0 {
            return;
        }
        self.started = now;
        // Of the exchange before.
        (self.status, self.tries, self.chosen_in_us, self.response_in_us) = (0, 0, NEVER_US, NEVER_US);
        (self.is_sent, self.is_offloaded, self.ending) = (false, false, Ending::Aborted as u8);
        (self.version, self.lengths) = (version, [NO_LENGTH; 2]);
    }
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
        IS_KEPT
            && self.recorder.is_some()
            && self.snapshot.services.get(usize::from(service)).is_some_and(|service| service.is_recorded)
    }

    /// Writes the record of an exchange that is over, if it has one.
    #[inline]
    fn record_end(&mut self, client_conn: &mut ClientConn, ending: Ending) {
        if IS_KEPT && client_conn.exchange.record != 0 {
            let bytes = client_conn.exchange_bytes(ending);
            let is_http = self.is_http(client_conn.service);
            self.write_record(client_conn, is_http, (ending, u8::MAX), bytes);
        }
    }

    /// The client of an HTTP service has all of a response: counts it, and writes the record of the exchange, if it has one.
    #[inline]
    pub(super) fn exchange_is_done(&mut self, client_conn: &mut ClientConn) {
        if !IS_KEPT {
            return;
        }
        let bytes = client_conn.exchange_bytes(Ending::Done);
        self.delivered(client_conn, bytes.0);
        if client_conn.exchange.record != 0 {
            self.write_record(client_conn, true, (Ending::Done, u8::MAX), bytes);
        }
    }

    /// A client's connection is over: it is none of its service's connections any more, however long it is kept.
    pub(super) fn count_out(&mut self, client_conn: &mut ClientConn) {
        // Of an exchange that is not over it is the end.
        self.record_end(client_conn, Ending::of(client_conn.exchange.ending));
        if !core::mem::take(&mut client_conn.is_open) {
            return;
        }
        self.count_for_limits(client_conn.service, &client_conn.key.source.address, false);
        if let Some(service) = self.statistics.services.get_mut(usize::from(client_conn.service)) {
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
        let (why, response) = (why.map_or(u8::MAX, |why| why as u8), length as u64);
        if client_conn.exchange.record != 0 {
            client_conn.exchange.status = status;
            let ([request, _], low) = client_conn.exchange_bytes(Ending::Answered);
            let bytes = ([request, response], low & !flags::LOW_OUT);
            let is_http = self.is_http(client_conn.service);
            self.write_record(client_conn, is_http, (Ending::Answered, why), bytes);
        } else if client_conn.state == ClientConnState::Reading && self.records(client_conn.service) {
            self.record_unread(client_conn, (status, why), response);
        }
    }

    /// Writes the record of a request whose head could not be read: nothing was noted of it.
    fn record_unread(&mut self, client_conn: &ClientConn, (status, why): (u16, u8), response: u64) {
        let (is_http, key) = (self.is_http(client_conn.service), &client_conn.key);
        let Some(recorder) = self.recorder.as_deref_mut() else { return };
        let forwarded = &client_conn.forwarded;
        let volumes = forwarded.each_ref().map(|volume| volume.bytes);
        let record = Record {
            bytes: if is_http { [0, response] } else { volumes },
            packets: if is_http { [0; 2] } else { forwarded.each_ref().map(|volume| volume.packets) },
            volumes,
            status,
            ending: Ending::Answered as u8,
            why,
            flags: if is_http { flags::EXCHANGE } else { flags::TLS },
            ..Record::new(self.now, key.source, key.destination, client_conn.service)
        };
        recorder.whole(&record, &Texts::default());
    }

    /// Writes the record of an exchange. `why`: [`Record::why`]. Of how many of its bytes only the lower 32 bits are known, `low` says.
    #[inline(always)]
    fn write_record(
        &mut self,
        client_conn: &mut ClientConn,
        is_http: bool,
        (ending, why): (Ending, u8),
        (bytes, low): ([u64; 2], u8),
    ) {
        let number = core::mem::take(&mut client_conn.exchange.record);
        let Some(recorder) = self.recorder.as_deref_mut().filter(|_| number != LOST) else { return };
        let exchange = &client_conn.exchange;
        let [up, down] = &client_conn.forwarded;
        let volumes = [up.bytes, down.bytes];
        // Of a TLS connection all that passes is counted, as of layer 4's.
        let (packets, bytes, kind) = match is_http {
            true => ([0; 2], bytes, flags::EXCHANGE | low),
            false => ([up.packets, down.packets], volumes, flags::TLS),
        };
        let (started, took) = (exchange.started.as_nanos(), self.now.nanos_since(exchange.started));
        recorder.end_in_parts(RecordStart { started, took, bytes, packets, volumes }, || {
            let (group, backend) = match exchange.tries {
                0 => (record::NONE, record::NONE),
                _ => (exchange.group, exchange.backend),
            };
            RecordRest {
                client: client_conn.key.source,
                vip: client_conn.key.destination,
                service: client_conn.service,
                group,
                backend,
                route: exchange.route,
                status: exchange.status,
                ending: ending as u8,
                why,
                number,
                to_backend_us: exchange.chosen_in_us,
                to_response_us: exchange.response_in_us,
                tries: exchange.tries,
                flags: kind
                    | (u8::from(exchange.version == Version::Http10) * flags::HTTP10)
                    | (u8::from(exchange.is_offloaded) * flags::ENGINE),
                unused: [0; 2],
            }
        });
    }

    fn is_http(&self, service: u16) -> bool {
        matches!(self.kind(service), Kind::Http(_))
    }
}

impl ClientConn {
    /// Bytes of the exchange's request and response so far, and flags that say of which only the lower 32 bits are known.
    #[inline]
    fn exchange_bytes(&self, ending: Ending) -> ([u64; 2], u8) {
        let [request, response] = self.exchange.first;
        let request_end = match self.exchange.is_sent {
            true => self.exchange.request_end.get().unwrap_or(self.peer.highest),
            false => self.input_start(),
        };
        // The response of a request that waits has not begun.
        let response_end = self.peer.sent.wrapping_sub(u32::from(self.peer.was_closed));
        let lengths = self.exchange.lengths;
        // FIN may stand where a byte would, before one that was never sent.
        let bytes = [request_end.wrapping_sub(request), response_end.wrapping_sub(response)];
        let bytes = bytes.map(|bytes| if bytes == u32::MAX { 0 } else { bytes });
        if lengths[0] | lengths[1] < 1 << 31 {
            return (bytes.map(u64::from), 0);
        }
        wide_bytes(bytes, lengths, ending)
    }
}

/// Bytes of request and response of which these are the lower 32 bits, and flags that say of which no more is known.
#[cold]
fn wide_bytes(low_bytes: [u32; 2], lengths: [u64; 2], ending: Ending) -> ([u64; 2], u8) {
    let (mut bytes, mut low) = (low_bytes.map(u64::from), 0);
    for ((bytes, length), flag) in bytes.iter_mut().zip(lengths).zip([flags::LOW_IN, flags::LOW_OUT]) {
        // A head is much shorter than the rest of 4 GiB.
        if length < (1 << 32) - (1 << 20) {
            continue;
        }
        match length != NO_LENGTH && ending == Ending::Done {
            true => *bytes = length.saturating_add((*bytes as u32).wrapping_sub(length as u32).into()),
            false => low |= flag,
        }
    }
    (bytes, low)
}
