//! What comes out of a ring.

use super::*;
use crate::l7::head::{self, Bounds, ParseStatus};
use crate::record::tests::record;
use alloc::string::String;
use std::{format, thread, vec};

const BOUNDS: Bounds = Bounds { bytes_max: 16_384, fields_max: 64, target_bytes_max: 8192 };

#[test]
fn messages_come_out_as_they_went_in() {
    let (mut recorder, mut records) = Recorder::new(1 << 16);
    let texts = Texts { line: b"GET /a?b=c", host: b"example.org", ..Texts::default() };
    // More than the ring holds, so that it wraps.
    for round in 0..1000 {
        let number = recorder.begin([9, round.into()], &texts);
        assert_eq!(number, round + 1);
        recorder.end(&record(number));
        recorder.whole(&record(7), &Texts { agent: b"curl", ..texts });
        let mut seen = 0;
        records.read(|message| {
            seen += 1;
            match message {
                Message::Begun(begun, volumes, said) => {
                    assert_eq!((begun, volumes, said), (number, [9, round.into()], texts));
                }
                Message::Ended(ended) => assert_eq!((ended.number, ended.service), (number, 3)),
                Message::Whole(whole, said) => assert_eq!((whole.number, said.agent), (7, &b"curl"[..])),
            }
        });
        assert_eq!(seen, 3);
    }
    assert_eq!(records.lost(), 0);
}

#[test]
fn requests_have_the_texts_of_their_heads() {
    let (mut recorder, mut records) = Recorder::new(1 << 16);
    let long = "x".repeat(3000);
    let heads = [
        // The last text ends where the head does, but for the empty line.
        String::from("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        String::from("\r\nGET /b HTTP/1.1\r\nUser-agent: curl\r\nHost: a:80\r\nREFERER: http://c/\r\nX: y\r\n\r\n"),
        String::from("GET /old HTTP/1.0\r\n\r\n"),
        String::from("GET http://d/e?f HTTP/1.1\r\nHost: d\r\nUser-Agent: one\r\nUser-Agent: two\r\n\r\n"),
        // Longer than what is copied as one piece, and than what is kept.
        format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {long}\r\nReferer: http://c/\r\n\r\n"),
        format!("GET /{long} HTTP/1.1\r\nHost: a\r\nUser-Agent: {long}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nUser-Agent: {}\r\nHost: a\r\n\r\n", &long[..600]),
    ];
    for head in &heads {
        let Ok(ParseStatus::Complete(request)) = head::request(head.as_bytes(), &BOUNDS) else { panic!("{head}") };
        assert_ne!(recorder.begin_request([1, 2], &request), LOST);
        let texts = Texts::of(&request, &[], &[]).cut();
        let mut seen = 0;
        records.read(|message| {
            let Message::Begun(_, _, said) = message else { panic!("{message:?}") };
            assert_eq!(said, texts, "{head}");
            seen += 1;
        });
        assert_eq!(seen, 1);
    }
    let Ok(ParseStatus::Complete(request)) = head::request(heads[1].as_bytes(), &BOUNDS) else { panic!() };
    let texts = Texts::of(&request, b"id", b"");
    assert_eq!(
        texts.parts(),
        [&b"GET /b"[..], b"a:80", b"curl", b"http://c/", b"id", b""],
        "an empty line may stand before it"
    );
}

#[test]
fn what_finds_no_room_is_lost_whole_and_counted() {
    let (mut recorder, mut records) = Recorder::new(0);
    let long = vec![b'x'; 10_000];
    let texts = Texts { line: &long, agent: &long, ..Texts::default() };
    let begun = (0..100).filter(|_| recorder.begin([0; 2], &texts) != LOST).count() as u64;
    let mut seen = 0;
    records.read(|message| {
        let Message::Begun(_, _, said) = message else { panic!("{message:?}") };
        assert_eq!([said.line.len(), said.agent.len()], [TEXT_BYTES_MAX[0], TEXT_BYTES_MAX[2]]);
        seen += 1;
    });
    assert!(seen > 0);
    assert_eq!((seen, seen + records.lost()), (begun, 100));
    // There is room again.
    recorder.end(&record(1));
    let mut ended = 0;
    records.read(|message| ended += u32::from(matches!(message, Message::Ended(_))));
    assert_eq!(ended, 1);
}

/// What a reader in another thread sees of records of all lengths is what was written, and what it does not see is counted.
#[test]
#[allow(clippy::disallowed_methods, reason = "a reader in another thread is what is tested")]
fn reader_beside_the_writer_sees_whole_messages_in_order() {
    const ALL: u32 = if cfg!(miri) { 2_000 } else { 300_000 };
    let (mut recorder, mut records) = Recorder::new(0);
    let line = |number: u32| vec![number as u8; (number % 500) as usize];
    let writer = thread::spawn(move || {
        for number in 1..=ALL {
            recorder.whole(&record(number), &Texts { line: &line(number), ..Texts::default() });
        }
    });
    let (mut seen, mut last) = (0, 0);
    let mut read = |records: &mut Records| {
        records.read(|message| {
            let Message::Whole(record, texts) = message else { panic!("{message:?}") };
            assert!(record.number > last && texts.line == line(record.number), "{record:?} after {last}");
            (seen, last) = (seen + 1, record.number);
        });
    };
    while !writer.is_finished() {
        read(&mut records);
    }
    writer.join().unwrap();
    read(&mut records);
    assert!(seen > 0);
    assert_eq!(seen + records.lost(), u64::from(ALL));
}

#[test]
fn ring_is_read_in_parts_and_its_rest_counted() {
    let (mut recorder, mut records) = Recorder::new(1 << 16);
    // More than once around.
    for round in 0..5 {
        for number in 1..=100 {
            recorder.whole(&record(number), &Texts { line: b"GET /", ..Texts::default() });
            assert_ne!(recorder.begin([0; 2], &Texts::default()), LOST);
            recorder.end(&record(number));
        }
        let mut seen = 0;
        let look = records.read_some(1000, |message| seen += u64::from(!matches!(message, Message::Begun(..))));
        assert!(seen > 0 && !look.is_all && look.share > 0, "round {round}: {seen} records, {look:?}");
        assert_eq!(seen + records.discard(), 200, "round {round}");
        assert_eq!(records.read_some(1000, |_| panic!("nothing is left")), Look { share: 0, is_all: true });
    }
    assert_eq!(records.lost(), 0);
}
