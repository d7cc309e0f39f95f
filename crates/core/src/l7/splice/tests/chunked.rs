//! Chunked bodies: what is wrong in them, and many small ones.

use super::super::Refused;
use super::one_worker::{OneWorker, Script, Sent};
use super::{REQUEST, RESPONSE, asked, only};
use crate::l7::splice::tcp::numbers::before;
use crate::wire::tcp::{ACK, RST};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

const UPLOAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
const DOWNLOAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

fn to(sent: &[Sent], script: &Script) -> Vec<Sent> {
    sent.iter().filter(|sent| sent.to == script.own).cloned().collect()
}

/// Trailers of so many bytes with what follows them.
fn trailers(bytes: usize) -> String {
    let field = format!("A: {}\r\n", "b".repeat(95));
    format!("0\r\n{}A: {}\r\n\r\n", field.repeat(bytes / 100 - 1), "b".repeat(95))
}

#[test]
fn broken_request_is_answered_before_the_response() {
    let long = trailers(9000);
    for (bad, status, why) in [
        ("5\nhello", 400, Refused::Malformed),
        ("zz\r\n", 400, Refused::Malformed),
        ("5 \r\nhello\r\n0\r\n\r\n", 400, Refused::Malformed),
        ("5\r\nhello\r\n0\r\nHost: b\r\n\r\n", 400, Refused::Malformed),
        (&long, 431, Refused::TooLarge),
    ] {
        // All with its head, behind it, or behind the beginning of the response.
        for (apart, begun) in [(false, false), (true, false), (true, true)] {
            let mut fixture = OneWorker::new(|_| {});
            if !apart {
                let mut client = Script::client(&mut fixture, 1000);
                let syn = only(client.sends(&mut fixture, &format!("{UPLOAD}{bad}")));
                let (_, sent) = Script::backend(&mut fixture, &syn);
                let answer = client.receives(&to(&sent, &client));
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
                continue;
            }
            let (mut client, mut backend, _) = asked(&mut fixture, 1000, UPLOAD);
            backend.acknowledges(&mut fixture);
            if begun {
                client.receives(&backend.sends(&mut fixture, DOWNLOAD));
                client.acknowledges(&mut fixture);
            }
            let mut sent = Vec::new();
            for piece in bad.as_bytes().chunks(1460) {
                sent.extend(client.says(&mut fixture, ACK, piece));
            }
            assert!(to(&sent, &backend).iter().any(|sent| sent.segment.has(RST)), "{sent:?}");
            let mine = to(&sent, &client);
            if begun {
                assert!(mine.iter().any(|sent| sent.segment.has(RST)) && mine.iter().all(|sent| sent.bytes.is_empty()));
            } else {
                let answer = client.receives(&mine);
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
                assert!(!mine.iter().any(|sent| sent.segment.has(RST)));
            }
            assert_eq!(fixture.worker.statistics().http.refused[why as usize], 1);
            fixture.over();
        }
    }
}

#[test]
fn trailers_are_as_long_as_is_said() {
    for (bytes, is_taken) in
        [(6000, true), (8100, true), (8300, false), (9000, false), (12_000, false), (18_000, false)]
    {
        for size in [1000, 1460, 30_000] {
            let mut fixture = OneWorker::new(|_| {});
            let (mut client, mut backend, _) = asked(&mut fixture, 1000, UPLOAD);
            backend.acknowledges(&mut fixture);
            let (all, mut got, mut answer) = (trailers(bytes), String::new(), String::new());
            for piece in all.as_bytes().chunks(size) {
                let sent = client.says(&mut fixture, ACK, piece);
                assert!(!to(&sent, &client).iter().any(|sent| sent.segment.has(RST)), "{bytes} by {size}");
                answer += &client.receives(&to(&sent, &client));
                if answer.is_empty() {
                    got += &backend.receives(&to(&sent, &backend));
                    backend.acknowledges(&mut fixture);
                }
            }
            assert_eq!(got == all, is_taken, "{bytes} by {size}");
            assert_eq!(answer.starts_with("HTTP/1.1 431 "), !is_taken, "{bytes} by {size}: {answer}");
        }
    }
}

#[test]
fn a_response_that_proves_broken_is_broken_off() {
    for bad in ["5\r\nhelloX", "+5\r\n", &trailers(9000)] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        client.receives(&backend.sends(&mut fixture, DOWNLOAD));
        let sent = backend.sends(&mut fixture, bad);
        assert!(sent.iter().all(|sent| sent.segment.has(RST) && sent.bytes.is_empty()), "{sent:?}");
        assert!(!to(&sent, &client).is_empty() && !to(&sent, &backend).is_empty());
        fixture.over();
    }
}

#[test]
fn response_broken_in_its_first_segment_becomes_502() {
    for (edited, first) in [(false, 0), (true, 0), (false, 20), (true, 20)] {
        for bad in ["zz\r\n", "5\r\nhelloX", "5\nhello\r\n", &format!("5\r\nhello\r\n{}", trailers(9000))] {
            let mut fixture = OneWorker::new(|http| http.server_timing = edited);
            let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
            let all = format!("{DOWNLOAD}{bad}");
            // The head as a whole, or the end of it.
            let mut sent = Vec::new();
            for piece in [&all[..first], &all[first..]].into_iter().filter(|piece| !piece.is_empty()) {
                sent = backend.sends(&mut fixture, piece);
            }
            let mine = to(&sent, &client);
            assert!(client.receives(&mine).starts_with("HTTP/1.1 502 "), "{bad:?}: {sent:?}");
            assert!(to(&sent, &backend).iter().any(|sent| sent.segment.has(RST)));
            assert_eq!(fixture.worker.statistics().http.refused[Refused::BadResponse as usize], 1);
            fixture.over();
        }
    }
}

#[test]
fn a_backend_may_pad_the_sizes_of_its_chunks() {
    let body = "5  \r\nhello\r\n3 \t;a=b\r\n,ab\r\n0 \r\n\r\n";
    for size in [1, 2, 3, 7, 100] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let all = format!("{DOWNLOAD}{body}");
        let mut got = String::new();
        for piece in all.as_bytes().chunks(size) {
            let sent = backend.says(&mut fixture, ACK, piece);
            got += &client.receives(&to(&sent, &client));
            client.acknowledges(&mut fixture);
        }
        assert_eq!(got, all);
        assert_eq!(backend.receives(&client.sends(&mut fixture, REQUEST)), REQUEST, "it has ended there");
        client.receives(&backend.sends(&mut fixture, RESPONSE));
        client.acknowledges(&mut fixture);
        fixture.over();
    }
}

/// A client's upload of many chunks, in super-packets of so many bytes, as much at a time as it was last told that it may
/// send. The backend acknowledges all of it at once.
fn uploads(fixture: &mut OneWorker, chunk: &str, count: usize, size: usize) -> (Script, Script) {
    let (mut client, mut backend, _) = asked(fixture, 1000, UPLOAD);
    backend.window = 4000;
    let all = format!("{}0\r\n\r\n", chunk.repeat(count));
    let (start, mut edge) = (client.next, client.next);
    let mut tell = |client: &Script, sent: &[Sent]| {
        for sent in to(sent, client) {
            let right = sent.segment.acknowledgement.wrapping_add(u32::from(sent.segment.window) << 7);
            edge = if before(edge, right) { right } else { edge };
        }
        edge.wrapping_sub(client.next) as usize
    };
    let told = backend.acknowledges(fixture);
    let mut room = tell(&client, &told);
    let mut got = String::new();
    loop {
        let from = client.next.wrapping_sub(start) as usize;
        let rest = &all.as_bytes()[from..];
        let piece = &rest[..rest.len().min(size).min(room)];
        if piece.is_empty() {
            // It has used its room, or all is said.
            let told = backend.acknowledges(fixture);
            room = tell(&client, &told);
            if rest.is_empty() || room == 0 {
                break;
            }
            continue;
        }
        let sent = client.says(fixture, ACK, piece);
        let mine = to(&sent, &backend);
        assert!(!mine.is_empty(), "dropped behind {from}");
        got += &backend.receives(&mine);
        room -= piece.len();
    }
    assert_eq!(got.len(), all.len());
    assert_eq!(got, all);
    (client, backend)
}

#[test]
fn many_small_chunks_are_remembered_without_dropping_any() {
    for (chunk, count) in [("1\r\nx\r\n", 100_000), ("5\r\nhello\r\n", 50_000), ("a;b=c\r\n0123456789\r\n", 30_000)] {
        for size in [1, 100, 1460, 60_000] {
            let mut fixture = OneWorker::new(|_| {});
            let count = if size == 1 { count / 50 } else { count };
            let (mut client, mut backend) = uploads(&mut fixture, chunk, count, size);
            let http = &fixture.worker.statistics().http;
            assert_eq!((http.unrecorded, http.out_of_order), (0, 0), "{chunk:?} by {size}");
            assert_eq!(client.receives(&backend.sends(&mut fixture, RESPONSE)), RESPONSE);
            client.acknowledges(&mut fixture);
            fixture.over();
        }
    }
}

#[test]
fn large_chunks_leave_a_client_all_the_window_there_is() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, UPLOAD);
    backend.window = 4000;
    backend.acknowledges(&mut fixture);
    let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
    backend.receives(&client.sends(&mut fixture, &chunk));
    let told = only(backend.acknowledges(&mut fixture));
    assert_eq!((told.to, u32::from(told.segment.window) << 7), (client.own, 4000 << 9));
    backend.receives(&client.sends(&mut fixture, "0\r\n\r\n"));
    backend.acknowledges(&mut fixture);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
}

#[test]
fn client_waits_when_chunks_cannot_be_stored() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, UPLOAD);
    let part = "1\r\nx\r\n".repeat(100);
    let mut parts = 0;
    // It sends more than it is told that it may.
    let answer = loop {
        let sent = client.sends(&mut fixture, &part);
        if to(&sent, &backend).is_empty() {
            break only(sent);
        }
        assert_eq!(backend.receives(&sent), part);
        parts += 1;
        assert!(parts < 1000, "it remembers without bound");
    };
    let start = client.next.wrapping_sub(part.len() as u32);
    assert_eq!((answer.to, answer.segment.acknowledgement), (client.own, 5001), "no more than the backend's");
    let http = &fixture.worker.statistics().http;
    assert_eq!((http.unrecorded, http.out_of_order), (1, 0));
    assert_eq!(only(backend.acknowledges(&mut fixture)).to, client.own);
    assert_eq!(backend.receives(&client.repeats(&mut fixture, start, &[], part.as_bytes())), part);
    assert_eq!(backend.receives(&client.sends(&mut fixture, "0\r\n\r\n")), "0\r\n\r\n");
    assert_eq!(client.receives(&backend.sends(&mut fixture, RESPONSE)), RESPONSE);
    client.acknowledges(&mut fixture);
    fixture.over();
}
