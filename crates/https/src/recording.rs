//! Records of exchanges ([`hairpin_core::record`]): one is written when what it is of is dropped.

use crate::exchange::Client;
use crate::local::Local;
use hairpin_core::l7::head::{Request, Version};
use hairpin_core::l7::splice::Refused;
use hairpin_core::record::{Ending, Record, Recorder, Texts, flags};
use std::cell::RefCell;
use std::rc::Rc;
use tokio::time::Instant;

/// What is known so far of an exchange that is recorded.
pub(crate) struct Recording {
    recorder: Rc<RefCell<Recorder>>,
    record: RefCell<Record>,
    /// As [`Texts`] has them.
    texts: [Box<[u8]>; 4],
    started: Instant,
}

impl Recording {
    /// Of a request that begins now, if its service is recorded. `request`: its head, if that could be read.
    pub(crate) fn begin(local: &Local, client: &Client, request: Option<&Request<'_>>) -> Option<Box<Recording>> {
        let setup = local.setup();
        if !setup.service(client.service).is_some_and(|service| service.is_recorded) {
            return None;
        }
        let mut record = Record::new((local.now)(), client.key.source, client.key.destination, client.service);
        let is_old = request.is_some_and(|request| request.version == Version::Http10);
        record.flags = flags::EXCHANGE
            | if client.tls { flags::TLS } else { 0 }
            | if client.http2 { flags::HTTP2 } else { 0 }
            | if is_old { flags::HTTP10 } else { 0 };
        record.ending = Ending::Aborted as u8;
        record.bytes[0] = request.map_or(0, |request| request.bytes.len() as u64);
        let texts = request.map(Texts::of).unwrap_or_default();
        let texts = [texts.line, texts.host, texts.agent, texts.referer].map(Box::from);
        let (recorder, started) = (Rc::clone(&local.recorder), Instant::now());
        Some(Box::new(Recording { recorder, record: RefCell::new(record), texts, started }))
    }

    /// Notes something.
    pub(crate) fn note(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.record.borrow_mut());
    }

    /// Microseconds since it began.
    pub(crate) fn so_far(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_micros()).unwrap_or(u32::MAX)
    }

    /// Hairpin answers it by itself, with so many bytes; `why`: with an error.
    pub(crate) fn answered(&self, status: u16, why: Option<Refused>, bytes: usize) {
        self.note(|record| {
            record.status = status;
            record.why = why.map_or(u8::MAX, |why| why as u8);
            (record.ending, record.bytes[1]) = (Ending::Answered as u8, bytes as u64);
        });
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let record = self.record.get_mut();
        record.took = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let [line, host, agent, referer] = &self.texts;
        self.recorder.borrow_mut().whole(record, &Texts { line, host, agent, referer });
    }
}

/// Records a request that Hairpin answers by itself, without a backend.
pub(crate) fn answer(
    local: &Local,
    client: &Client,
    request: Option<&Request<'_>>,
    (status, why): (u16, Option<Refused>),
    bytes: usize,
) {
    if let Some(recording) = Recording::begin(local, client, request) {
        recording.answered(status, why, bytes);
    }
}
