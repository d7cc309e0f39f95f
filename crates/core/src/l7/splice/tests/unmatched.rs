//! What comes of no connection, or perhaps of none: what is answered, how often, and that nothing is kept of it.

use super::one_worker::{OneWorker, Script, USUAL, end, http, snapshot};
use super::{REQUEST, RESPONSE, asked, only};
use crate::config::UnknownPacket;
use crate::l7::config::Kind;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use crate::worker::Drop;

fn answers_limited(fixture: &OneWorker) -> u64 {
    fixture.worker.statistics().drops[Drop::AnswerLimit as usize]
}

#[test]
fn repeated_first_segment_makes_no_request() {
    // The client resets; it closes in order, and the connection is forgotten; we reset it, as it is too slow.
    for end in 0..3 {
        let mut fixture = OneWorker::new(|_| {});
        let mut client = Script::client(&mut fixture, 1000);
        let first = client.own(ACK, None);
        let text = if end == 2 { "GET" } else { REQUEST };
        let sent = client.sends(&mut fixture, text);
        if end == 0 {
            client.says(&mut fixture, RST, b"");
        } else if end == 1 {
            let (mut backend, sent) = Script::backend(&mut fixture, &only(sent));
            backend.receives(&sent);
            client.receives(&backend.sends(&mut fixture, RESPONSE));
            let own = client.own;
            let fin = client.says(&mut fixture, ACK | FIN, b"");
            fin.iter().filter(|sent| sent.to == own).for_each(|sent| client.gets(sent));
            client.acknowledges(&mut fixture);
        }
        fixture.wait(Duration::from_secs(100));
        assert_eq!(fixture.worker.splices().0, 0, "{end}");
        let requests = fixture.worker.statistics().http.requests;
        let again = only(fixture.arrives(&first, text.as_bytes()));
        assert_eq!((again.segment.flags, again.segment.sequence), (RST, first.acknowledgement), "{end}");
        let http = &fixture.worker.statistics().http;
        assert_eq!((http.requests, http.cookies_used, http.ended_overwritten), (requests, 1, 0), "{end}");
        assert_eq!(fixture.worker.splices().0, 0);
        // The cookie has ended, too.
        fixture.wait(Duration::from_secs(300));
        assert!(fixture.arrives(&first, text.as_bytes()).is_empty());
        assert_eq!(fixture.worker.statistics().http.cookies_used, 1);
        fixture.over();
    }
}

#[test]
fn repeated_first_segment_keeps_the_port_owner() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let first = client.own(ACK, None);
    client.sends(&mut fixture, REQUEST);
    client.says(&mut fixture, RST, b"");
    let mut next = Script::client_with(&mut fixture, 1000, client.next.wrapping_add(1 << 30), USUAL);
    let syn = only(next.sends(&mut fixture, REQUEST));
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    backend.receives(&sent);
    assert!(fixture.arrives(&first, REQUEST.as_bytes()).iter().all(|sent| !sent.segment.has(RST | SYN)));
    assert_eq!(next.receives(&backend.sends(&mut fixture, RESPONSE)), RESPONSE);
    fixture.over();
}

#[test]
fn client_close_without_data_is_answered() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let fin = client.own(ACK | FIN, None);
    // Twice: our answer was lost.
    for _ in 0..2 {
        let answer = only(fixture.arrives(&fin, b""));
        assert_eq!(answer.what(), (client.expected, client.next + 1, ACK | FIN, ""));
    }
    client.next += 1;
    client.expected += 1;
    assert!(client.acknowledges(&mut fixture).is_empty(), "the last acknowledgement");
    assert_eq!(fixture.worker.splices(), (0, 0, 0), "nothing was kept");
    // Without a cookie, or behind data that we have not got, it means nothing.
    let wrong = [client.own(ACK | FIN, None), crate::l7::splice::tcp::segment::Own { acknowledgement: 7, ..fin }];
    wrong.iter().for_each(|fin| assert!(fixture.arrives(fin, b"").is_empty()));
    // One who goes on after that is not believed to have closed: its cookie is good.
    let (_, _, head) = asked(&mut fixture, 1001, REQUEST);
    assert_eq!(head.text(), REQUEST);
    fixture.over();
}

#[test]
fn resets_that_are_guessed_are_asked_about_twice_a_second() {
    let mut fixture = OneWorker::new(|_| {});
    let (client, _, _) = asked(&mut fixture, 1000, REQUEST);
    let guess =
        |fixture: &mut OneWorker| Script { next: client.next + 7, ..client.clone() }.says(fixture, RST, b"").len();
    assert_eq!((0..1000).map(|_| guess(&mut fixture)).sum::<usize>(), 1);
    assert_eq!(answers_limited(&fixture), 999);
    fixture.wait(Duration::from_millis(510));
    assert_eq!((0..1000).map(|_| guess(&mut fixture)).sum::<usize>(), 1);
    // The right number is believed at any time.
    let mut client = client.clone();
    client.says(&mut fixture, RST, b"");
    assert_eq!(fixture.worker.splices().0, 0);
    fixture.over();
}

#[test]
fn answers_to_unmatched_packets_are_bounded_in_all() {
    let mut fixture = OneWorker::new(|_| {});
    // Every process has a limit of its own.
    fixture.restarts = false;
    let client = Script::client(&mut fixture, 1000);
    let fin = client.own(ACK | FIN, None);
    let answered = (0..3000).filter(|_| !fixture.arrives(&fin, b"").is_empty()).count();
    assert_eq!((answered, answers_limited(&fixture)), (1000, 2000));
    fixture.wait(Duration::from_secs(1));
    assert_eq!((0..3000).filter(|_| !fixture.arrives(&fin, b"").is_empty()).count(), 1000);
}

/// A service that answers packets of no known connection with RST.
fn resetting() -> OneWorker {
    let mut snapshot = snapshot(1, Kind::Http(http().into()));
    snapshot.services[0].unknown = UnknownPacket::Reset;
    OneWorker::with(snapshot)
}

#[test]
fn who_believes_in_a_connection_that_is_gone_is_reset() {
    let mut fixture = resetting();
    // Every process waits a second for the cookie.
    fixture.restarts = false;
    let client = Script { own: end(false, 10, 1000), peer: fixture.vip, next: 5000, expected: 77_000, window: 1000 };
    let resets = |fixture: &mut OneWorker, flags: u8, bytes: &[u8]| {
        let sent = client.clone().says(fixture, flags, bytes);
        sent.iter().for_each(|sent| assert_eq!(sent.what(), (client.expected, 0, RST, "")));
        sent.len()
    };
    assert_eq!(resets(&mut fixture, ACK, b""), 1, "an acknowledgement of what it has got");
    assert_eq!(resets(&mut fixture, RST | ACK, b""), 0);
    assert_eq!(resets(&mut fixture, SYN | ACK, b""), 0);
    // Data may be of a connection whose first segment was lost: until that would have come.
    assert_eq!(resets(&mut fixture, ACK, b"data"), 0);
    assert_eq!(resets(&mut fixture, ACK | FIN, b""), 0);
    fixture.wait(Duration::from_millis(900));
    assert_eq!(resets(&mut fixture, ACK, b"data"), 0);
    fixture.wait(Duration::from_millis(200));
    assert_eq!(resets(&mut fixture, ACK, b"data"), 1);
    let answered: usize = (0..3000).map(|_| resets(&mut fixture, ACK, b"")).sum();
    assert!(answered <= 1000, "{answered} answers");
    assert_eq!(fixture.worker.splices(), (0, 0, 0));
}

#[test]
fn a_connection_that_is_just_beginning_is_not_reset() {
    let mut fixture = resetting();
    // The acknowledgement that ends the handshake is in here.
    let mut client = Script::client(&mut fixture, 1000);
    let probe = Script { next: client.next.wrapping_sub(1), ..client.clone() }.says(&mut fixture, ACK, b"");
    assert!(probe.is_empty(), "a keep-alive probe: {probe:?}");
    let (first, second) = REQUEST.split_at(10);
    let second_own = Script { next: client.next.wrapping_add(10), ..client.clone() }.own(ACK, None);
    assert!(fixture.arrives(&second_own, second.as_bytes()).is_empty(), "it has overtaken the first");
    client.sends(&mut fixture, first);
    assert_eq!(fixture.worker.splices().0, 1);
    let sent = client.sends(&mut fixture, second);
    assert!(sent.iter().any(|sent| sent.segment.flags == SYN), "to a backend: {sent:?}");
    fixture.over();
}
