//! Puts the two parts of an exchange's record together: what its request says of itself, and its end.

use hairpin_core::record::{Look, Message, Record, Records, TEXT_BYTES_MAX, Texts};
use std::collections::{BTreeMap, VecDeque};

/// Exchanges of a worker that have begun and not ended, at most, whose texts are kept. Beyond that the oldest one's are
/// forgotten: its line has none.
pub(crate) const TEXTS_MAX: usize = 1 << 18;
/// Bytes of their texts at most.
pub(crate) const TEXTS_BYTES_MAX: usize = 64 << 20;

/// Bytes of a worker's ring that one look takes out at most: so their lines take a bounded room, and the log can end in the midst of a
/// large ring.
const LOOK_BYTES: usize = 1 << 20;

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
        let parts = texts.parts();
        let mut end = 0;
        let ends = parts.map(|part| {
            end += part.len() as u16;
            end
        });
        Begun { volumes, bytes: parts.concat().into(), ends }
    }

    fn texts(&self) -> Texts<'_> {
        let mut start = 0;
        Texts::from(self.ends.map(|end| {
            let part = &self.bytes[start..usize::from(end)];
            start = end.into();
            part
        }))
    }
}

/// The reader of one worker's ring.
pub(super) struct Joiner {
    records: Records,
    open: OpenExchanges,
}

/// Exchanges of a worker that have begun and not ended.
#[derive(Default)]
struct OpenExchanges {
    /// Of exchanges with numbers from `first` on, those that have begun and not ended.
    begun: VecDeque<Option<Begun>>,
    first: u32,
    /// Those that last longer than [`SLOTS_MAX`] others, by their numbers.
    long: BTreeMap<u32, Begun>,
    /// Exchanges that have begun and not ended, and bytes of their texts.
    count: usize,
    bytes: usize,
}

/// Exchanges at most between the oldest and the youngest in the queue, ended ones among them.
const SLOTS_MAX: usize = 1 << 16;

impl Joiner {
    pub(super) fn new(records: Records) -> Joiner {
        Joiner { records, open: OpenExchanges::default() }
    }

    /// Records that found no room in the ring so far.
    pub(super) fn lost(&self) -> u64 {
        self.records.lost()
    }

    /// Shows each record that has come to `each`, with the texts that are known: those in the first [`LOOK_BYTES`] of what the ring
    /// has.
    pub(super) fn read(&mut self, mut each: impl FnMut(&Record, &Texts<'_>)) -> Look {
        let Joiner { records, open } = self;
        records.read_some(LOOK_BYTES, |message| match message {
            Message::Begun(number, volumes, texts) => open.add(number, Begun::new(volumes, &texts)),
            Message::Ended(mut record) => match open.take(record.number) {
                Some(entry) => {
                    record.widen(entry.volumes);
                    each(&record, &entry.texts());
                }
                None => each(&record, &Texts::default()),
            },
            Message::Whole(record, texts) => each(&record, &texts),
        })
    }

    /// Takes out what is left; how many records of ended exchanges and connections that was.
    pub(super) fn discard(&mut self) -> u64 {
        self.records.discard()
    }
}

impl OpenExchanges {
    fn add(&mut self, number: u32, entry: Begun) {
        // Numbers follow one another; they begin again after four thousand million exchanges.
        let gap = number.wrapping_sub(self.first.wrapping_add(self.begun.len() as u32)) as usize;
        if self.begun.is_empty() || gap > SLOTS_MAX {
            while !self.begun.is_empty() {
                self.set_aside();
            }
            self.first = number;
        } else {
            // Whose beginnings were lost.
            self.begun.extend((0..gap).map(|_| None));
        }
        self.count += 1;
        self.bytes += entry.bytes.len();
        self.begun.push_back(Some(entry));
        while self.begun.len() > SLOTS_MAX || matches!(self.begun.front(), Some(None)) {
            self.set_aside();
        }
        // The ends of some may have been lost.
        while self.count > TEXTS_MAX || self.bytes > TEXTS_BYTES_MAX {
            let oldest = self.long.keys().next().copied().unwrap_or(self.first);
            if self.take(oldest).is_none() && self.begun.pop_front().is_some() {
                self.first = self.first.wrapping_add(1);
            }
        }
    }

    /// Moves the oldest in the queue, if it has not ended, to those that last long.
    fn set_aside(&mut self) {
        if let Some(Some(oldest)) = self.begun.pop_front() {
            self.long.insert(self.first, oldest);
        }
        self.first = self.first.wrapping_add(1);
    }

    fn take(&mut self, number: u32) -> Option<Begun> {
        let place = number.wrapping_sub(self.first) as usize;
        let found = self.begun.get_mut(place).and_then(Option::take).or_else(|| self.long.remove(&number))?;
        self.count -= 1;
        self.bytes -= found.bytes.len();
        Some(found)
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
            recorder.end(&record(number));
        }
        let mut seen = Vec::new();
        joiner.read(|_, texts| seen.push(String::from_utf8_lossy(texts.target()).into_owned()));
        assert_eq!(seen, ["/b", "/c", "/a", ""]);
        assert_eq!((joiner.open.count, joiner.open.bytes), (0, 0));
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
        assert!(joiner.open.bytes <= TEXTS_BYTES_MAX && joiner.open.count >= TEXTS_BYTES_MAX / 2048 - 1);
        recorder.end(&record(1));
        recorder.end(&record(all as u32));
        let mut seen = Vec::new();
        joiner.read(|_, texts| seen.push(texts.line.len()));
        assert_eq!(seen, [0, 2048], "the oldest ones' are gone");
    }

    #[test]
    fn one_that_lasts_keeps_its_texts_while_others_come_and_go() {
        let (mut recorder, records) = Recorder::new(1 << 22);
        let mut joiner = Joiner::new(records);
        let texts = |line: &'static str| Texts { line: line.as_bytes(), ..Texts::default() };
        let long = recorder.begin([0; 2], &texts("GET /long"));
        for _ in 0..3 * SLOTS_MAX {
            let number = recorder.begin([0; 2], &texts("GET /short"));
            recorder.end(&record(number));
            joiner.read(|_, texts| assert_eq!(texts.target(), b"/short"));
        }
        assert_eq!(joiner.open.count, 1);
        recorder.end(&record(long));
        let mut seen = 0;
        joiner.read(|_, texts| seen += usize::from(texts.target() == b"/long"));
        assert_eq!((seen, joiner.open.count, joiner.open.bytes), (1, 0, 0));
    }
}
