//! Puts the two parts of an exchange's record together: what its request says of itself, and its end.

use hairpin_core::record::{Message, Record, Records, TEXT_BYTES_MAX, Texts};
use std::collections::VecDeque;

/// Exchanges of a worker that have begun and not ended, at most, whose texts are kept. Beyond that the oldest one's are
/// forgotten: its line has none.
pub(crate) const TEXTS_MAX: usize = 1 << 18;
/// Bytes of their texts at most.
pub(crate) const TEXTS_BYTES_MAX: usize = 64 << 20;

/// What is known of an exchange until it ends.
struct Begun {
    /// [`Record::volumes`] of that moment.
    volumes: [u64; 2],
    /// The texts, one behind the other.
    bytes: Box<[u8]>,
    /// Where each ends.
    ends: [u16; TEXT_BYTES_MAX.len()],
}

impl Begun {
    fn new(volumes: [u64; 2], texts: &Texts<'_>) -> Begun {
        let parts = [texts.line, texts.host, texts.agent, texts.referer];
        let mut end = 0;
        let ends = parts.map(|part| {
            end += part.len() as u16;
            end
        });
        Begun { volumes, bytes: parts.concat().into(), ends }
    }

    fn texts(&self) -> Texts<'_> {
        let mut start = 0;
        let [line, host, agent, referer] = self.ends.map(|end| {
            let part = &self.bytes[start..usize::from(end)];
            start = end.into();
            part
        });
        Texts { line, host, agent, referer }
    }
}

/// The reader of one worker's ring.
pub(super) struct Joiner {
    records: Records,
    /// Of exchanges with numbers from `first` on, those that have begun and not ended.
    begun: VecDeque<Option<Begun>>,
    first: u32,
    bytes: usize,
}

impl Joiner {
    pub(super) fn new(records: Records) -> Joiner {
        Joiner { records, begun: VecDeque::new(), first: 0, bytes: 0 }
    }

    /// Messages that found no room in the ring so far.
    pub(super) fn lost(&self) -> u64 {
        self.records.lost()
    }

    /// Shows each record that has come to `each`, with the texts that are known.
    pub(super) fn read(&mut self, mut each: impl FnMut(&Record, &Texts<'_>)) {
        let Joiner { records, begun, first, bytes } = self;
        records.read(|message| match message {
            Message::Begun(number, volumes, texts) => {
                // Numbers follow one another; they begin again after four thousand million exchanges.
                let next = first.wrapping_add(begun.len() as u32);
                let gap = number.wrapping_sub(next) as usize;
                if begun.is_empty() || gap > TEXTS_MAX {
                    begun.clear();
                    (*first, *bytes) = (number, 0);
                } else {
                    // Whose beginnings were lost.
                    begun.extend((0..gap).map(|_| None));
                }
                let entry = Begun::new(volumes, &texts);
                *bytes += entry.bytes.len();
                begun.push_back(Some(entry));
                // The ends of some may have been lost.
                while begun.len() > TEXTS_MAX || *bytes > TEXTS_BYTES_MAX || matches!(begun.front(), Some(None)) {
                    let Some(oldest) = begun.pop_front() else { break };
                    *bytes -= oldest.map_or(0, |oldest| oldest.bytes.len());
                    *first = first.wrapping_add(1);
                }
            }
            Message::Ended(mut record) => {
                let place = record.number.wrapping_sub(*first) as usize;
                match begun.get_mut(place).and_then(Option::take) {
                    Some(entry) => {
                        *bytes -= entry.bytes.len();
                        record.widen(entry.volumes);
                        each(&record, &entry.texts());
                    }
                    None => each(&record, &Texts::default()),
                }
            }
            Message::Whole(record, texts) => each(&record, &texts),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_core::flow::Endpoint;
    use hairpin_core::record::Recorder;
    use hairpin_core::time::Time;

    fn record(number: u32) -> Record {
        Record { number, ..Record::new(Time::ZERO, Endpoint::default(), Endpoint::default(), 0) }
    }

    #[test]
    fn parts_meet_in_any_order_of_ends() {
        let (mut recorder, records) = Recorder::new(1 << 20);
        let mut joiner = Joiner::new(records);
        let texts = |line: &'static str| Texts { line: line.as_bytes(), ..Texts::default() };
        let numbers = ["GET /a", "GET /b", "GET /c"].map(|target| recorder.begin([0; 2], &texts(target)));
        for number in [numbers[1], numbers[2], numbers[0], 99] {
            recorder.end(record(number));
        }
        let mut seen = Vec::new();
        joiner.read(|_, texts| seen.push(String::from_utf8_lossy(texts.target()).into_owned()));
        assert_eq!(seen, ["/b", "/c", "/a", ""]);
        assert!(joiner.begun.iter().all(Option::is_none));
        assert_eq!(joiner.bytes, 0);
    }

    #[test]
    fn texts_of_exchanges_whose_ends_are_lost_do_not_pile_up() {
        let (mut recorder, records) = Recorder::new(1 << 22);
        let mut joiner = Joiner::new(records);
        let long = vec![b'a'; 2048];
        let texts = Texts { line: &long, ..Texts::default() };
        let all = TEXTS_BYTES_MAX / 2048 + 500;
        for _ in 0..all {
            recorder.begin([0; 2], &texts);
            joiner.read(|_, _| panic!("nothing has ended"));
        }
        assert!(joiner.bytes <= TEXTS_BYTES_MAX && joiner.begun.len() >= TEXTS_BYTES_MAX / 2048 - 1);
        recorder.end(record(1));
        recorder.end(record(all as u32));
        let mut seen = Vec::new();
        joiner.read(|_, texts| seen.push(texts.line.len()));
        assert_eq!(seen, [0, 2048], "the oldest ones' are gone");
    }
}
