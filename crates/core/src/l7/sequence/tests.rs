//! The map against a plain model: every output byte, with where it comes from.

use super::*;
use proptest::prelude::*;
use std::vec::Vec;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Byte {
    /// The sender's, at this offset of its stream.
    Sent(u32),
    /// Put in by the edit of this index.
    Put(usize),
}

/// A stream of `sent` bytes and what has become of it. Offsets count from its start, which the map's numbers do not.
#[derive(Debug)]
struct Model {
    sent: u32,
    /// Start and end of what was taken out, in offsets of the sender's stream, and the number of bytes put in.
    edits: Vec<(u32, u32, u32)>,
    output: Vec<Byte>,
}

impl Model {
    /// Makes a map from edits given as (bytes since the last one, bytes taken, bytes put), and a tail without any.
    fn new(edits: &[(u32, u32, u32)], tail: u32) -> Model {
        let mut model = Model { sent: 0, edits: Vec::new(), output: Vec::new() };
        for (index, &(gap, taken, put)) in edits.iter().enumerate() {
            model.through(gap);
            model.edits.push((model.sent, model.sent + taken, put));
            model.sent += taken;
            model.output.extend((0..put).map(|_| Byte::Put(index)));
        }
        model.through(tail);
        model
    }

    fn through(&mut self, length: u32) {
        self.output.extend((self.sent..self.sent + length).map(Byte::Sent));
        self.sent += length;
    }

    /// Output offset of what the edit put in.
    fn put_start(&self, edit: usize) -> u32 {
        let (start, ..) = self.edits[edit];
        let sent_before = |byte: &&Byte| matches!(byte, Byte::Sent(at) if *at < start);
        let put_before = self.edits[..edit].iter().map(|edit| edit.2).sum::<u32>();
        self.output.iter().filter(sent_before).count() as u32 + put_before
    }

    fn edit_that_took(&self, offset: u32) -> Option<usize> {
        self.edits.iter().position(|edit| (edit.0..edit.1).contains(&offset))
    }

    fn output_of(&self, offset: u32) -> Option<u32> {
        self.output.iter().position(|byte| *byte == Byte::Sent(offset)).map(|at| at as u32)
    }

    /// Whether the receiver has what became of the byte at `offset` when it has output `left..right`.
    fn is_delivered(&self, offset: u32, left: u32, right: u32) -> bool {
        match self.edit_that_took(offset) {
            Some(edit) => left <= self.put_start(edit) && self.put_start(edit) + self.edits[edit].2 <= right,
            None => self.output_of(offset).is_some_and(|at| left <= at && at < right),
        }
    }

    fn acknowledgement(&self, output: u32) -> u32 {
        (0..self.sent).find(|at| !self.is_delivered(*at, 0, output)).unwrap_or(self.sent)
    }

    fn map(&self, start: u32, delta: u32) -> SequenceMap {
        let mut map = SequenceMap::new(delta);
        for (index, &(from, to, put)) in self.edits.iter().enumerate() {
            let output = map.edit(start.wrapping_add(from), to - from, put).unwrap();
            assert_eq!(output, start.wrapping_add(self.put_start(index)).wrapping_add(delta));
        }
        map
    }
}

fn models() -> impl Strategy<Value = Model> {
    let edit = (0..6_u32, 0..5_u32, 0..6_u32);
    (prop::collection::vec(edit, 0..=EDITS_MAX), 0..8_u32).prop_map(|(edits, tail)| Model::new(&edits, tail))
}

/// Numbers to start with, most of them such that something wraps within a few bytes.
fn starts() -> impl Strategy<Value = u32> {
    prop_oneof![3 => (0..80_u32).prop_map(|back| 0_u32.wrapping_sub(back)), 1 => any::<u32>(), 1 => Just(1 << 31)]
}

/// Cases of each property; `HAIRPIN_SEQUENCE_CASES` raises it.
#[expect(clippy::disallowed_methods, reason = "not the data plane, but how long its test runs")]
fn cases() -> ProptestConfig {
    let cases = std::env::var("HAIRPIN_SEQUENCE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(2000);
    ProptestConfig::with_cases(cases)
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn bytes_go_where_the_model_says((model, start, delta) in (models(), starts(), starts())) {
        let map = model.map(start, delta);
        let output = |at: u32| start.wrapping_add(delta).wrapping_add(at);
        for offset in 0..=model.sent {
            match map.sequence(start.wrapping_add(offset)) {
                Place::Through(number) if offset == model.sent => {
                    prop_assert_eq!(number, output(model.output.len() as u32), "the end");
                }
                Place::Through(number) => {
                    prop_assert_eq!(Some(number), model.output_of(offset).map(output), "offset {}", offset);
                }
                Place::Inside { input, output: put } => {
                    let edit = model.edit_that_took(offset).unwrap();
                    let (from, to, length) = model.edits[edit];
                    prop_assert_eq!(input, start.wrapping_add(from)..start.wrapping_add(to));
                    let first = model.put_start(edit);
                    prop_assert_eq!(put, output(first)..output(first + length));
                }
            }
        }
        for (at, byte) in (0..).zip(&model.output) {
            let edit = map.inside(output(at)).map(|edit| edit.at);
            let expected = match *byte {
                Byte::Sent(_) => None,
                Byte::Put(edit) => Some(start.wrapping_add(model.edits[edit].0)),
            };
            prop_assert_eq!(edit, expected, "output {}", at);
        }
        let behind = start.wrapping_add(model.sent).wrapping_add(map.delta_at_end());
        prop_assert_eq!(behind, output(model.output.len() as u32));
    }

    #[test]
    fn segments_are_cut_where_something_was_put_in(
        (model, start, delta) in (models(), starts(), starts()), from in 0..20_u32, length in 0..60_u32,
    ) {
        let map = model.map(start, delta);
        let from = from.min(model.sent);
        let length = length.min(model.sent - from);
        let mut bytes = Vec::new();
        let mut last = None;
        for piece in map.pieces(start.wrapping_add(from), length) {
            prop_assert!(piece.length > 0 && piece.offset + piece.length <= length);
            // No cut without need: either the input or the output has a gap.
            prop_assert_ne!(last, Some((piece.offset, piece.output)));
            last = Some((piece.offset + piece.length, piece.output.wrapping_add(piece.length)));
            let output = piece.output.wrapping_sub(start).wrapping_sub(delta);
            bytes.extend((0..piece.length).map(|at| (from + piece.offset + at, output + at)));
        }
        let expected: Vec<(u32, u32)> =
            (from..from + length).filter_map(|at| Some((at, model.output_of(at)?))).collect();
        prop_assert_eq!(bytes, expected);
    }

    #[test]
    fn acknowledgements_cover_what_is_delivered((model, start, delta) in (models(), starts(), starts())) {
        let map = model.map(start, delta);
        for output in 0..=model.output.len() as u32 {
            let number = map.acknowledgement(start.wrapping_add(delta).wrapping_add(output));
            prop_assert_eq!(number.wrapping_sub(start), model.acknowledgement(output), "output {}", output);
        }
    }

    #[test]
    fn blocks_cover_what_is_delivered((model, start, delta) in (models(), starts(), starts())) {
        let map = model.map(start, delta);
        let output = |at: u32| start.wrapping_add(delta).wrapping_add(at);
        for left in 0..=model.output.len() as u32 {
            for right in left..=model.output.len() as u32 {
                let block = map.sack(output(left), output(right));
                let covered: Vec<u32> = match block {
                    Some((from, to)) => (from.wrapping_sub(start)..to.wrapping_sub(start)).collect(),
                    None => Vec::new(),
                };
                prop_assert_eq!(block.is_some(), !covered.is_empty());
                let delivered = |at: &u32| left < right && model.is_delivered(*at, left, right);
                let expected: Vec<u32> = (0..model.sent).filter(delivered).collect();
                prop_assert_eq!(covered, expected, "{}..{}", left, right);
            }
        }
    }

    #[test]
    fn the_window_keeps_the_sender_within_the_receivers((model, start, delta) in (models(), starts(), starts())) {
        let map = model.map(start, delta);
        let is_adjacent = model.edits.windows(2).any(|pair| pair[0].1 == pair[1].0);
        // The end counts as a byte: the next the sender will send.
        let output_of = |at: u32| if at == model.sent { Some(model.output.len() as u32) } else { model.output_of(at) };
        for acknowledged in 0..=model.output.len() as u32 {
            let excess = map.window_excess(start.wrapping_add(delta).wrapping_add(acknowledged));
            let input = model.acknowledgement(acknowledged);
            let moved = |at: u32| Some((output_of(at)? - acknowledged).saturating_sub(at - input));
            let needed = (input..=model.sent).filter_map(moved).max().unwrap_or(0);
            prop_assert!(excess >= needed, "acknowledged {}: {} < {}", acknowledged, excess, needed);
            prop_assert!(is_adjacent || excess == needed, "acknowledged {}: {} > {}", acknowledged, excess, needed);
        }
    }

    /// After any acknowledgement: nothing changes for what lies at or behind it, and older numbers lead to older ones.
    #[test]
    fn settling_changes_nothing_behind((model, start, delta) in (models(), starts(), starts()), step in 1..9_u32) {
        let whole = model.map(start, delta);
        let mut map = whole;
        let output = |at: u32| start.wrapping_add(delta).wrapping_add(at);
        let end = model.output.len() as u32;
        for acknowledged in (0..end).step_by(step as usize).chain([end]) {
            map.settle(output(acknowledged));
            let input = model.acknowledgement(acknowledged);
            for offset in input..=model.sent {
                let number = start.wrapping_add(offset);
                prop_assert_eq!(map.sequence(number), whole.sequence(number), "settled {}", acknowledged);
            }
            for at in acknowledged..=end {
                prop_assert_eq!(map.acknowledgement(output(at)), whole.acknowledgement(output(at)));
                prop_assert_eq!(map.window_excess(output(at)), whole.window_excess(output(at)));
                for right in at..=end {
                    // A block starts behind what is acknowledged.
                    let (left, right) = (output(at + 1), output(right));
                    prop_assert_eq!(map.sack(left, right), whole.sack(left, right));
                }
            }
            for offset in 0..input {
                let Place::Through(number) = map.sequence(start.wrapping_add(offset)) else {
                    panic!("{offset} is delivered, and inside an edit that is not");
                };
                prop_assert!(before(number, output(acknowledged)), "offset {} got ahead", offset);
            }
            for at in 0..acknowledged {
                let number = map.acknowledgement(output(at)).wrapping_sub(start) as i32;
                prop_assert!(number <= input as i32, "an old acknowledgement got ahead");
            }
            let waits = |index: &usize| model.put_start(*index) + model.edits[*index].2 > acknowledged;
            let changes = |index: &usize| model.edits[*index].0 != model.edits[*index].1 || model.edits[*index].2 > 0;
            let waiting = (0..model.edits.len()).filter(changes).filter(waits).count();
            prop_assert_eq!(map.edits().len(), waiting, "settled {}", acknowledged);
        }
        prop_assert!(map.is_settled());
        prop_assert_eq!(map.delta_at_end(), whole.delta_at_end());
    }
}

#[test]
fn the_papers_figure_6() {
    let mut map = SequenceMap::new(0);
    assert_eq!(map.edit(100, 0, 100), Some(100));
    assert_eq!(map.edit(1000, 0, 100), Some(1100));
    assert_eq!(map.sequence(99), Place::Through(99));
    assert_eq!(map.sequence(100), Place::Through(200));
    assert_eq!(map.sequence(1500), Place::Through(1700));
    assert_eq!(
        [100, 150, 200, 201, 1100, 1101, 1200, 1201].map(|ack| map.acknowledgement(ack)),
        [100, 100, 100, 101, 1000, 1000, 1000, 1001]
    );
    assert_eq!([0, 100, 150, 200, 1199, 1200].map(|ack| map.window_excess(ack)), [200, 200, 150, 100, 1, 0]);
}

#[test]
fn edits_are_refused_when_full_and_out_of_order() {
    let mut map = SequenceMap::new(7);
    assert_eq!(map.edit(5, 0, 0), Some(12), "changes nothing");
    assert!(map.is_settled());
    let start = u32::MAX - 15;
    assert_eq!(map.edit(start, 10, 3), Some(start.wrapping_add(7)));
    assert_eq!(map.edit(start.wrapping_add(9), 1, 1), None, "inside the one before");
    assert_eq!(map.edit(start.wrapping_add(10), 1 << 30, 1), None, "too long");
    assert_eq!(map.edit(start.wrapping_add(10), 1, 1 << 30), None, "too long");
    assert_eq!(map.edit(start.wrapping_add(1 << 30), 1, 1), None, "too far");
    for index in 0..EDITS_MAX as u32 - 1 {
        assert!(map.edit(start.wrapping_add(10 + index), 1, 1).is_some());
    }
    let full = map.edits().to_vec();
    assert_eq!(map.edit(start.wrapping_add(100), 1, 1), None, "full");
    assert_eq!(map.edits(), full);
    map.settle(start.wrapping_add(7 + 3));
    assert_eq!(map.edits(), &full[1..]);
    assert!(map.edit(start.wrapping_add(100), 1, 1).is_some());
}

#[test]
fn an_edit_that_is_made_longer_is_as_one() {
    for start in [100, u32::MAX - 15, u32::MAX - 45] {
        let (mut longer, mut one) = (SequenceMap::new(7), SequenceMap::new(7));
        assert_eq!(longer.extend(start, 1, 1), None, "there is none");
        assert_eq!(longer.edit(start, 10, 3), one.edit(start, 30, 53));
        assert_eq!(longer.extend(start.wrapping_add(11), 1, 1), None, "not at once");
        assert_eq!(longer.extend(start.wrapping_add(9), 1, 1), None, "inside");
        assert_eq!(longer.extend(start.wrapping_add(10), 1 << 30, 1), None, "too long");
        assert_eq!(longer.extend(start.wrapping_add(10), 20, 50), Some(start.wrapping_add(7 + 3)));
        assert_eq!((longer.edits(), longer.delta_at_end()), (one.edits(), one.delta_at_end()));
        longer.settle(start.wrapping_add(7 + 3));
        assert!(!longer.is_settled(), "a part of it");
        longer.settle(start.wrapping_add(7 + 53));
        assert!(longer.is_settled());
    }
}

#[test]
fn removal_at_the_acknowledged_number_settles() {
    let mut map = SequenceMap::new(0);
    assert_eq!(map.edit(100, 25, 0), Some(100));
    assert_eq!(map.acknowledgement(100), 125, "the sender's removed bytes are delivered");
    map.settle(99);
    assert!(!map.is_settled());
    map.settle(100);
    assert!(map.is_settled());
    assert_eq!((map.sequence(125), map.acknowledgement(100)), (Place::Through(100), 125));
}

#[test]
fn the_map_stays_small() {
    assert_eq!(core::mem::size_of::<SequenceMap>(), 8 + 16 * EDITS_MAX);
}

mod options {
    use super::*;

    /// A SACK option of `blocks`.
    fn option(blocks: &[(u32, u32)]) -> Vec<u8> {
        let mut bytes = std::vec![5, 2 + 8 * blocks.len() as u8];
        bytes.extend(blocks.iter().flat_map(|(left, right)| [left.to_be_bytes(), right.to_be_bytes()].concat()));
        bytes
    }

    /// 100 bytes put in at 1000 instead of 20, behind a shift of 10.
    fn map() -> SequenceMap {
        let mut map = SequenceMap::new(10);
        assert_eq!(map.edit(1000, 20, 100), Some(1010));
        map
    }

    fn translated(mut options: Vec<u8>, map: &SequenceMap) -> (bool, Vec<u8>) {
        let changed = translate_sack(&mut options, |left, right| map.sack(left, right));
        (changed, options)
    }

    #[test]
    fn blocks_are_carried_through() {
        let before = [&[1, 1][..], &option(&[(1510, 1610), (500, 600)])].concat();
        let after = [&[1, 1][..], &option(&[(1420, 1520), (490, 590)])].concat();
        assert_eq!(translated(before, &map()), (true, after));
        // At any alignment, between other options.
        let before = [&[1][..], &option(&[(1510, 1610)]), &[8, 10, 5, 10, 0, 0, 0, 0, 0, 0]].concat();
        let after = [&[1][..], &option(&[(1420, 1520)]), &[8, 10, 5, 10, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(translated(before, &map()), (true, after));
    }

    #[test]
    fn blocks_of_which_nothing_is_left_are_removed() {
        let before = [&[1, 1][..], &option(&[(1020, 1050), (1510, 1610), (1060, 1070)])].concat();
        let after = [&[1, 1][..], &option(&[(1420, 1520)]), &[1; 16]].concat();
        assert_eq!(translated(before, &map()), (true, after));
        let before = [&[1, 1][..], &option(&[(1020, 1050)])].concat();
        assert_eq!(translated(before, &map()), (true, std::vec![1; 12]));
        let turned = [&[1, 1][..], &option(&[(600, 500)])].concat();
        assert_eq!(translated(turned, &map()), (true, std::vec![1; 12]));
    }

    #[test]
    fn nothing_changes_without_need() {
        let blocks = option(&[(500, 600)]);
        assert_eq!(translated(blocks.clone(), &SequenceMap::new(0)), (false, blocks));
        // Not a SACK option, not one of whole blocks, beyond the end, behind the end of the list.
        for bytes in [&[8, 10, 0, 0, 0, 0, 0, 0, 0, 0][..], &[5, 6, 0, 0, 0, 9], &[5, 2], &[5, 18, 0, 0], &[5]] {
            assert_eq!(translated(bytes.to_vec(), &map()), (false, bytes.to_vec()));
        }
        let behind = [&[0][..], &option(&[(500, 600)])].concat();
        assert_eq!(translated(behind.clone(), &map()), (false, behind.clone()));
        assert!(!strip_sack(&mut behind.clone()));
    }

    #[test]
    fn strips_every_sack_option() {
        let mut options = [&option(&[(1, 2)])[..], &[2, 4, 5, 180, 5, 6, 9, 9, 9, 9], &option(&[(3, 4)])].concat();
        assert!(strip_sack(&mut options));
        assert_eq!(options, [&[1; 10][..], &[2, 4, 5, 180], &[1; 16]].concat());
        assert!(!strip_sack(&mut options));
    }

    proptest! {
        /// Any bytes: other options stay, SACK options keep their place, and what is left is what `sack` says.
        #[test]
        fn any_options(mut options in prop::collection::vec(prop_oneof![Just(5), Just(10), Just(1), any::<u8>()], 0..=40)) {
            let map = map();
            let blocks = |options: &[u8]| {
                let number = |at: usize| u32::from_be_bytes(options[at..at + 4].try_into().unwrap());
                let edges: Vec<u32> = crate::wire::tcp::sack_edges(options).map(number).collect();
                edges.chunks(2).map(|edges| (edges[0], edges[1])).collect::<Vec<_>>()
            };
            let others = |options: &[u8]| {
                let other = crate::wire::tcp::Options::new(options).filter(|option| option.kind != 5);
                other.map(|other| options[other.offset - 2..other.offset + other.length].to_vec()).collect::<Vec<_>>()
            };
            let (was, expected) = (options.clone(), others(&options));
            let through: Vec<_> = blocks(&options).iter().filter_map(|block| map.sack(block.0, block.1)).collect();
            let changed = translate_sack(&mut options, |left, right| map.sack(left, right));
            prop_assert_eq!(changed, was != options);
            prop_assert_eq!(blocks(&options), through);
            prop_assert_eq!(others(&options), expected.clone());
            strip_sack(&mut options);
            prop_assert_eq!(others(&options), expected);
            prop_assert!(crate::wire::tcp::Options::new(&options).all(|option| option.kind != 5));
        }
    }
}
