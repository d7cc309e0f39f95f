//! How connections end: in order, in the middle, by both at once, and not at all.

use super::one_worker::{OneWorker, Script, Sent};
use super::{REQUEST, RESPONSE, asked, only};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST};
use alloc::format;
use alloc::vec::Vec;

const UPLOAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n";

fn to(sent: &[Sent], script: &Script) -> Vec<Sent> {
    sent.iter().filter(|sent| sent.to == script.own).cloned().collect()
}

#[test]
fn a_client_that_half_closes_gets_its_response_and_our_fin() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.says(&mut fixture, ACK | FIN | PSH, REQUEST.as_bytes()));
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    let head = only(sent);
    assert!(!head.segment.has(FIN), "the backend hears nothing of it");
    backend.gets(&head);
    let response = only(to(&backend.sends(&mut fixture, RESPONSE), &client));
    assert_eq!((response.segment.flags, response.segment.acknowledgement), (ACK | PSH | FIN, client.next));
    client.gets(&response);
    assert!(client.acknowledges(&mut fixture).is_empty());
    fixture.over();
}

#[test]
fn short_last_response_has_fin_and_frees_backend() {
    let request = REQUEST.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, &request);
    let sent = backend.sends(&mut fixture, RESPONSE);
    let told = only(to(&sent, &backend));
    assert_eq!((told.segment.flags, told.segment.acknowledgement), (ACK, backend.next), "it is ours now");
    let last = only(to(&sent, &client));
    assert!(last.segment.has(FIN) && last.text().ends_with("\r\n\r\nhello"), "{last:?}");
    // Another client gets the backend's connection before this one has said anything.
    let mut other = Script::client(&mut fixture, 1001);
    backend.gets(&only(other.sends(&mut fixture, REQUEST)));
    // It was lost: it comes again, with FIN.
    let again = only(to(&fixture.wait(Duration::from_millis(310)), &client));
    assert_eq!((again.segment.sequence, again.bytes.clone()), (last.segment.sequence, last.bytes));
    assert!(again.segment.has(FIN));
    client.gets(&again);
    let told = only(to(&client.says(&mut fixture, ACK | FIN, b""), &client));
    assert_eq!((told.segment.flags, told.segment.acknowledgement), (ACK, client.next));
    assert_eq!(other.receives(&backend.sends(&mut fixture, RESPONSE)), RESPONSE);
    other.acknowledges(&mut fixture);
    assert_eq!(fixture.worker.statistics().http.replies, 0, "the response is the backend's");
    fixture.over();
}

/// A client that wants its connection closed has asked, and got all of a response too long to be taken in.
fn long_last_response(fixture: &mut OneWorker) -> (Script, Script, Vec<Sent>) {
    let request = REQUEST.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let (client, mut backend, _) = asked(fixture, 1000, &request);
    let first = format!("HTTP/1.1 200 OK\r\nContent-Length: 2100\r\n\r\n{}", "x".repeat(1000));
    let mut sent = backend.sends(fixture, &first);
    sent.extend(backend.sends(fixture, &"y".repeat(1100)));
    assert!(to(&sent, &backend).iter().all(|sent| sent.segment.acknowledgement != backend.next), "{sent:?}");
    let sent = to(&sent, &client);
    (client, backend, sent)
}

#[test]
fn the_last_segment_of_a_last_response_comes_with_our_fin() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, sent) = long_last_response(&mut fixture);
    let flags: Vec<u8> = sent.iter().map(|sent| sent.segment.flags).collect();
    assert_eq!(flags, [ACK | PSH, ACK | PSH | FIN]);
    assert!(client.receives(&sent).ends_with("yyy"));
    let told = client.says(&mut fixture, ACK | FIN, b"");
    let ours = only(to(&told, &client));
    assert_eq!((ours.segment.flags, ours.segment.acknowledgement), (ACK, client.next));
    let theirs = only(to(&told, &backend));
    assert_eq!((theirs.segment.flags, theirs.segment.acknowledgement), (ACK, backend.next), "FIN is not its");
    // The backend's connection is others'.
    let mut other = Script::client(&mut fixture, 1001);
    backend.gets(&only(other.sends(&mut fixture, REQUEST)));
    assert_eq!(other.receives(&backend.sends(&mut fixture, RESPONSE)), RESPONSE);
    other.acknowledges(&mut fixture);
    fixture.over();
}

#[test]
fn our_fin_waits_until_the_window_has_room_for_it() {
    let mut fixture = OneWorker::new(|_| {});
    let request = REQUEST.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, &request);
    let first = format!("HTTP/1.1 200 OK\r\nContent-Length: 2100\r\n\r\n{}", "x".repeat(1000));
    client.receives(&backend.sends(&mut fixture, &first));
    // Room for 1024 bytes.
    client.window = 8;
    client.acknowledges(&mut fixture);
    let start = backend.next;
    let last = only(to(&backend.sends(&mut fixture, &"y".repeat(1100)), &client));
    assert_eq!(
        (last.segment.payload, last.segment.flags),
        (1100, ACK | PSH),
        "76 bytes too long, and no FIN behind them"
    );
    // The client takes what it has room for, and makes room.
    client.expected = client.expected.wrapping_add(1024);
    client.window = 1000;
    assert!(to(&client.acknowledges(&mut fixture), &client).is_empty());
    let rest = only(to(&backend.repeats(&mut fixture, start + 1024, &[], &[b'y'; 76]), &client));
    assert_eq!((rest.segment.payload, rest.segment.flags & FIN), (76, FIN));
    client.gets(&rest);
    let told = only(to(&client.says(&mut fixture, ACK | FIN, b""), &client));
    assert_eq!((told.segment.flags, told.segment.acknowledgement), (ACK, client.next));
    fixture.over();
}

#[test]
fn fin_with_last_segment_is_resent_by_its_owner() {
    for lost in [false, true] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, backend, sent) = long_last_response(&mut fixture);
        client.gets(&sent[0]);
        let (start, expected) = (backend.next.wrapping_sub(1100), client.expected.wrapping_add(1100));
        if lost {
            // The backend's segment again: so is FIN.
            assert!(to(&client.acknowledges(&mut fixture), &client).is_empty());
            let again = only(to(&backend.repeats(&mut fixture, start, &[], &[b'y'; 1100]), &client));
            assert!(again.segment.has(FIN));
            client.gets(&again);
        } else {
            // FIN alone was lost: it is ours, and has its time.
            client.expected = expected;
            assert!(to(&client.acknowledges(&mut fixture), &client).is_empty(), "it may be on its way");
            let again = only(to(&fixture.wait(Duration::from_millis(210)), &client));
            assert_eq!((again.segment.flags, again.segment.payload), (ACK | FIN, 0));
            client.gets(&again);
        }
        assert_eq!(client.expected, expected.wrapping_add(1));
        let told = only(to(&client.says(&mut fixture, ACK | FIN, b""), &client));
        assert_eq!((told.segment.flags, told.segment.acknowledgement), (ACK, client.next));
        assert!(to(&fixture.wait(Duration::from_secs(1)), &client).is_empty(), "nothing is sent again");
        fixture.over();
    }
}

#[test]
fn a_client_whose_fin_crosses_ours_is_told_that_it_was_heard() {
    for whole in [true, false] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, _, sent) = long_last_response(&mut fixture);
        client.gets(&sent[0]);
        client.says(&mut fixture, ACK | FIN, b"");
        // With all that we have sent, or all but our FIN.
        client.expected = client.expected.wrapping_add(1100 + u32::from(whole));
        let told = only(to(&client.acknowledges(&mut fixture), &client));
        assert_eq!((told.segment.acknowledgement, told.segment.payload), (client.next, 0), "{told:?}");
        if !whole {
            let again = only(to(&fixture.wait(Duration::from_millis(210)), &client));
            assert_eq!((again.segment.flags, again.segment.sequence), (ACK | FIN, client.expected));
            client.gets(&again);
            client.acknowledges(&mut fixture);
        }
        assert!(
            to(&fixture.wait(Duration::from_secs(30)), &client).is_empty(),
            "nothing is left to be said, no reset either"
        );
        fixture.over();
    }
}

#[test]
fn a_backend_hears_of_no_fin_that_it_has_not_sent() {
    let mut fixture = OneWorker::new(|_| {});
    let request = REQUEST.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, &request);
    let first = format!("HTTP/1.1 200 OK\r\nContent-Length: 3200\r\n\r\n{}", "x".repeat(1000));
    client.receives(&backend.sends(&mut fixture, &first));
    client.acknowledges(&mut fixture);
    backend.sends(&mut fixture, &"y".repeat(1100));
    let last = only(backend.sends(&mut fixture, &"z".repeat(1100)));
    assert!(last.segment.has(FIN));
    let start = last.segment.sequence;
    // The second segment is lost; what the client has behind it begins with the third, or is nothing but FIN.
    for (left, is_heard) in [(start, true), (start.wrapping_add(1100), false)] {
        let right = start.wrapping_add(1101);
        let options = [&[1, 1, 5, 10][..], &left.to_be_bytes(), &right.to_be_bytes()].concat();
        let told = only(to(&client.repeats(&mut fixture, client.next, &options, b""), &backend));
        let edges = [backend.next.wrapping_sub(1100).to_be_bytes(), backend.next.to_be_bytes()].concat();
        let expected = if is_heard { [&[1, 1, 5, 10][..], &edges].concat() } else { [1; 12].to_vec() };
        assert_eq!(told.options, expected);
    }
    fixture.over();
}

#[test]
fn a_client_that_never_acknowledges_a_fin_is_given_up() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, _, sent) = long_last_response(&mut fixture);
    client.gets(&sent[0]);
    client.expected = client.expected.wrapping_add(1100);
    client.acknowledges(&mut fixture);
    let again = fixture.wait(Duration::from_secs(60));
    assert!((3..9).contains(&to(&again, &client).iter().filter(|sent| sent.segment.has(FIN)).count()), "{again:?}");
    assert!(to(&again, &client).iter().any(|sent| sent.segment.has(RST)));
    fixture.over();
}

#[test]
fn split_last_response_is_not_acked_for_the_client() {
    let request = REQUEST.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let pieces = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell";
    for (window, response) in [(1000, pieces), (0, RESPONSE)] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, &request);
        client.window = window;
        client.acknowledges(&mut fixture);
        let sent = backend.sends(&mut fixture, response);
        let ends = to(&sent, &client).iter().any(|sent| sent.segment.has(FIN));
        assert!(!ends, "there is more to come, or no room for it: {sent:?}");
        assert!(to(&sent, &backend).iter().all(|sent| sent.segment.acknowledgement != backend.next), "{sent:?}");
    }
}

#[test]
fn a_fin_in_the_middle_of_a_head_ends_the_connection() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let sent = client.says(&mut fixture, ACK | FIN, &REQUEST.as_bytes()[..20]);
    assert!(sent.iter().any(|sent| sent.segment.has(FIN)) && sent.iter().all(|sent| sent.to == client.own));
    assert_eq!(client.receives(&sent[..1]), "");
    client.acknowledges(&mut fixture);
    fixture.over();
}

#[test]
fn early_fin_waits_truncating_fin_aborts() {
    for cut in [false, true] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, UPLOAD);
        let start = client.next;
        client.next = start + if cut { 4 } else { 10 };
        let sent = client.says(&mut fixture, ACK | FIN, b"");
        if cut {
            assert!([&client, &backend].iter().all(|end| to(&sent, end).iter().any(|sent| sent.segment.has(RST))));
            fixture.over();
            continue;
        }
        assert!(sent.iter().all(|sent| !sent.segment.has(RST) && !sent.segment.has(FIN)), "{sent:?}");
        let body = only(client.repeats(&mut fixture, start, &[], b"0123456789"));
        backend.gets(&body);
        let told = only(backend.acknowledges(&mut fixture));
        assert_eq!((told.to, told.segment.acknowledgement), (client.own, start + 10));
        client.next = start + 10;
        client.says(&mut fixture, ACK | FIN, b"");
        let response = only(to(&backend.sends(&mut fixture, RESPONSE), &client));
        assert_eq!((response.segment.flags, response.segment.acknowledgement), (ACK | PSH | FIN, client.next));
        client.gets(&response);
        client.acknowledges(&mut fixture);
        fixture.over();
    }
}

#[test]
fn a_body_that_ends_with_the_connection() {
    for together in [false, true] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let response = "HTTP/1.1 200 OK\r\n\r\nuntil the end";
        let last = if together {
            only(backend.says(&mut fixture, ACK | PSH | FIN, response.as_bytes()))
        } else {
            let first = only(backend.sends(&mut fixture, response));
            client.receives(&[first]);
            only(backend.says(&mut fixture, ACK | FIN, b""))
        };
        assert!(last.segment.has(FIN));
        client.gets(&last);
        assert_eq!(client.expected.wrapping_sub(last.segment.sequence), last.segment.payload + 1);
        let told = only(client.acknowledges(&mut fixture));
        assert_eq!((told.to, told.segment.acknowledgement), (backend.own, backend.next));
        // What the client sends now is no part of the request: it does not get to the backend.
        let sent = client.sends(&mut fixture, REQUEST);
        assert!(to(&sent, &backend).is_empty(), "{sent:?}");
        let sent = client.says(&mut fixture, ACK | FIN, b"");
        assert_eq!(to(&sent, &client).last().unwrap().segment.acknowledgement, client.next);
        let fin = only(to(&sent, &backend));
        assert_eq!(fin.segment.flags, ACK | FIN, "ours");
        backend.gets(&fin);
        backend.acknowledges(&mut fixture);
        fixture.over();
    }
}

#[test]
fn backend_close_after_response_keeps_the_client() {
    for separate in [false, true] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let response = if separate {
            let response = only(backend.sends(&mut fixture, RESPONSE));
            let sent = backend.says(&mut fixture, ACK | FIN, b"");
            assert!(to(&sent, &client).is_empty(), "{sent:?}");
            response
        } else {
            only(backend.says(&mut fixture, ACK | PSH | FIN, RESPONSE.as_bytes()))
        };
        assert!(!response.segment.has(FIN));
        client.gets(&response);
        let sent = client.acknowledges(&mut fixture);
        let fin = only(to(&sent, &backend));
        assert_eq!((fin.segment.flags, fin.segment.acknowledgement), (ACK | FIN, backend.next));
        assert!(to(&sent, &client).is_empty());
        backend.gets(&fin);
        backend.acknowledges(&mut fixture);
        assert_eq!(fixture.worker.splices().1, 0, "TIME_WAIT is the backend's");
        let syn = only(client.sends(&mut fixture, REQUEST));
        let (_, sent) = Script::backend(&mut fixture, &syn);
        assert_eq!(only(sent).text(), REQUEST, "the client goes on");
        fixture.over();
    }
}

#[test]
fn a_response_that_is_cut_short_is_cut_short_for_the_client() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let last = only(backend.says(&mut fixture, ACK | FIN, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello"));
    client.gets(&last);
    assert!(last.segment.has(FIN) && last.text().ends_with("hello"));
    client.acknowledges(&mut fixture);
    client.says(&mut fixture, ACK | FIN, b"");
    fixture.over();
}

#[test]
fn early_response_fin_closes_only_the_backend() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let (first, second) = RESPONSE.split_at(RESPONSE.len() - 5);
    let head = only(backend.sends(&mut fixture, first));
    client.gets(&head);
    let start = backend.next;
    backend.next += 5;
    let sent = backend.says(&mut fixture, ACK | FIN, b"");
    assert!(to(&sent, &client).is_empty(), "{sent:?}");
    let body = only(backend.repeats(&mut fixture, start, &[], second.as_bytes()));
    assert!(!body.segment.has(FIN));
    client.gets(&body);
    let sent = client.acknowledges(&mut fixture);
    assert_eq!(only(to(&sent, &backend)).segment.flags, ACK | FIN);
    assert!(to(&sent, &client).is_empty());
    fixture.over();
}

#[test]
fn both_close_at_once() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, "GET / HTTP/1.0\r\n\r\n");
    let response = only(backend.says(&mut fixture, ACK | FIN, b"HTTP/1.0 200 OK\r\n\r\nbye"));
    // The client's FIN has not heard of the backend's.
    let sent = client.says(&mut fixture, ACK | FIN, b"");
    assert!(to(&sent, &backend).iter().all(|sent| !sent.segment.has(FIN)), "{sent:?}");
    client.gets(&response);
    let sent = client.acknowledges(&mut fixture);
    assert_eq!(to(&sent, &client).last().map(|sent| sent.segment.acknowledgement), Some(client.next));
    let fin = to(&sent, &backend).into_iter().find(|sent| sent.segment.has(FIN)).unwrap();
    backend.expected = fin.segment.sequence + 1;
    backend.acknowledges(&mut fixture);
    fixture.over();
}

#[test]
fn a_client_resets_in_every_state() {
    for state in 0..5 {
        let mut fixture = OneWorker::new(|_| {});
        let mut client = Script::client(&mut fixture, 1000);
        let mut backend = None;
        match state {
            0 => drop(client.sends(&mut fixture, &REQUEST[..10])),
            1 => drop(client.sends(&mut fixture, REQUEST)),
            _ => {
                let syn = only(client.sends(&mut fixture, REQUEST));
                let (mut script, sent) = Script::backend(&mut fixture, &syn);
                script.gets(&only(sent));
                if state > 2 {
                    let response = only(script.sends(&mut fixture, RESPONSE));
                    client.gets(&response);
                }
                if state > 3 {
                    client.acknowledges(&mut fixture);
                }
                backend = Some(script);
            }
        }
        // One that was guessed, in the window, is asked about; it is not believed.
        let guessed = Script { next: client.next + 7, ..client.clone() }.says(&mut fixture, RST, b"");
        assert_eq!(only(guessed).segment.flags, ACK, "state {state}");
        let sent = client.says(&mut fixture, RST, b"");
        assert_eq!(fixture.worker.splices().0, 0, "state {state}");
        if let Some(backend) = backend {
            let was_busy = state < 4;
            let reset = to(&sent, &backend).iter().any(|sent| sent.segment.has(RST));
            assert_eq!(reset, was_busy, "state {state}: {sent:?}");
        }
        fixture.over();
    }
}

#[test]
fn a_vanished_peer_is_forgotten() {
    // After each step of an exchange, neither end says anything any more.
    for steps in 0..6 {
        let mut fixture = OneWorker::new(|_| {});
        let mut client = Script::client(&mut fixture, 1000);
        let mut sent = client.sends(&mut fixture, if steps == 0 { "GET" } else { UPLOAD });
        if steps > 1 {
            let (mut backend, more) = Script::backend(&mut fixture, &only(sent));
            sent = more;
            if steps > 2 {
                backend.gets(&only(sent));
                backend.acknowledges(&mut fixture);
                client.sends(&mut fixture, "0123456789");
            }
            if steps > 3 {
                backend.expected += 10;
                backend.acknowledges(&mut fixture);
            }
            if steps > 4 {
                backend.sends(&mut fixture, RESPONSE);
            }
        }
        fixture.over();
        assert!(fixture.worker.poll_timeout(fixture.now).is_none(), "{steps}: nothing is left to be done");
    }
}

#[test]
fn a_connection_that_is_idle_is_closed_in_order() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    // A keep-alive probe of either is answered, and keeps nothing alive.
    let probe = client.repeats(&mut fixture, client.next - 1, &[], b"");
    assert_eq!(only(probe).what(), (client.expected, client.next, ACK, ""));
    let probe = backend.repeats(&mut fixture, backend.next - 1, &[], b"");
    assert_eq!(only(probe).what(), (backend.expected, backend.next, ACK, ""));
    let sent = fixture.wait(Duration::from_secs(61));
    assert_eq!(only(to(&sent, &backend)[..1].to_vec()).segment.flags, ACK | FIN, "after 60 s");
    let sent = fixture.wait(Duration::from_secs(15));
    let fin = to(&sent, &client).remove(0);
    assert_eq!(fin.what(), (client.expected, client.next, ACK | FIN, ""), "after 75 s");
    fixture.over();
}

#[test]
fn the_backends_fin_is_passed_on_again_if_it_was_lost() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let all = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(100));
    let start = backend.next;
    only(backend.says(&mut fixture, ACK | FIN, all.as_bytes()));
    backend.next = start;
    let again = only(backend.says(&mut fixture, ACK | FIN, all.as_bytes()));
    client.gets(&again);
    assert!(again.segment.has(FIN));
    client.acknowledges(&mut fixture);
    client.says(&mut fixture, ACK | FIN, b"");
    fixture.over();
}

#[test]
fn a_body_cut_short_while_its_request_waited_reaches_no_backend() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.says(&mut fixture, ACK | FIN, format!("{UPLOAD}0123").as_bytes()));
    let (backend, sent) = Script::backend(&mut fixture, &syn);
    assert!(to(&sent, &backend).iter().all(|sent| sent.bytes.is_empty()), "{sent:?}");
    assert!(client.receives(&sent).starts_with("HTTP/1.1 400 "));
    client.acknowledges(&mut fixture);
    fixture.over();
}
