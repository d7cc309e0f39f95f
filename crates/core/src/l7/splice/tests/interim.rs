//! Interim responses, any number of them (RFC 9110, 15.2).

use super::super::Refused;
use super::one_worker::{OneWorker, Script, Sent};
use super::{REQUEST, RESPONSE, asked, only};
use crate::wire::tcp::{ACK, RST};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

const INTERIM: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
/// Becomes the other on its way.
const HINTED: &str = "HTTP/1.1 103 Early Hints\r\nConnection: X-S\r\nX-S: 1\r\nLink: </a>\r\n\r\n";

fn to(sent: &[Sent], script: &Script) -> Vec<Sent> {
    sent.iter().filter(|sent| sent.to == script.own).cloned().collect()
}

/// The exchange is over, and the connection serves the next one.
fn another(fixture: &mut OneWorker, client: &mut Script, backend: &mut Script) {
    let told = only(client.acknowledges(fixture));
    assert_eq!(told.what(), (backend.expected, backend.next, ACK, ""));
    assert_eq!(backend.receives(&client.sends(fixture, REQUEST)), REQUEST);
    assert_eq!(client.receives(&backend.sends(fixture, RESPONSE)), RESPONSE);
    client.acknowledges(fixture);
    fixture.over();
}

#[test]
fn any_number_of_them_goes_on_however_they_come() {
    for (interim, pieces) in [(INTERIM, 1), (HINTED, 1), (INTERIM, 3), (HINTED, 20), (HINTED, 7)] {
        for count in [1, 4, 5, 6, 20, 200] {
            let mut fixture = OneWorker::new(|_| {});
            let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
            // One by one, several in a segment, or cut anywhere; the client acknowledges late.
            let all = format!("{}{RESPONSE}", interim.repeat(count));
            let size = if pieces == 1 { interim.len() } else { all.len().div_ceil(pieces).min(1460) };
            let mut got = String::new();
            for piece in all.as_bytes().chunks(size) {
                let sent = backend.says(&mut fixture, ACK, piece);
                got += &client.receives(&to(&sent, &client));
            }
            assert_eq!(got, format!("{}{RESPONSE}", INTERIM.repeat(count)), "{count} in {pieces}");
            another(&mut fixture, &mut client, &mut backend);
        }
    }
}

#[test]
fn a_client_of_the_old_version_gets_none_of_them() {
    let mut fixture = OneWorker::new(|_| {});
    let request = "GET / HTTP/1.0\r\nConnection: keep-alive\r\nHost: a\r\n\r\n";
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
    for _ in 0..20 {
        let sent = backend.sends(&mut fixture, INTERIM);
        assert!(to(&sent, &client).is_empty(), "{sent:?}");
    }
    let sent = backend.sends(&mut fixture, RESPONSE);
    assert!(client.receives(&sent).ends_with("\r\n\r\nhello"));
    fixture.over();
}

/// Interim responses without end are sent to a client that acknowledges nothing, by a backend that sends again what was
/// not acknowledged, up to `most` bytes. Returns what the client has got.
fn floods(fixture: &mut OneWorker, client: &mut Script, backend: &mut Script, segment: &str, most: usize) -> String {
    let mut got = String::new();
    while got.len() < most {
        let sent = backend.sends(fixture, segment);
        assert!(sent.iter().all(|sent| !sent.segment.has(RST)), "reset behind {}: {sent:?}", got.len());
        let mine = to(&sent, client);
        if mine.is_empty() {
            backend.next = backend.next.wrapping_sub(segment.len() as u32);
            break;
        }
        got += &client.receives(&mine);
    }
    got
}

#[test]
fn what_a_client_does_not_acknowledge_is_bounded_by_bytes() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.window = 60_000;
    client.acknowledges(&mut fixture);
    let segment = INTERIM.repeat(35);
    for round in 0..3 {
        let got = floods(&mut fixture, &mut client, &mut backend, &segment, 1 << 20);
        assert!((50_000..100_000).contains(&got.len()), "{} in round {round}", got.len());
        assert_eq!(got, INTERIM.repeat(got.len() / INTERIM.len()));
        let told = only(client.acknowledges(&mut fixture));
        assert_eq!((told.to, told.segment.acknowledgement), (backend.own, backend.next), "there is room again");
    }
    let refused = fixture.worker.statistics().http.refused;
    assert_eq!(refused[Refused::BadResponse as usize], 0);
    assert_eq!(client.receives(&backend.sends(&mut fixture, RESPONSE)), RESPONSE);
    another(&mut fixture, &mut client, &mut backend);
}
