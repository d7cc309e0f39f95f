//! Records of exchanges: one for each, whatever its end.

use super::one_worker::{OneWorker, Script, http, snapshot};
use super::requests::reload_as;
use super::{REQUEST, RESPONSE, asked, only as only_frame};
use crate::l7::config::{Action, Http, Kind};
use crate::l7::splice::Refused;
use crate::l7::trace::{Parents, RequestId, SAMPLE_ALL, TraceContext, Tracing};
use crate::record::{ADOPTED, Ending, Message, NEVER_US, NONE, Record, Recorder, Records, flags};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// A fixture whose exchanges are recorded.
fn recorded() -> (OneWorker, Records) {
    let mut config = snapshot(1, Kind::Http(http().into()));
    config.services.iter_mut().for_each(|service| service.is_recorded = true);
    let mut fixture = OneWorker::with(config);
    let records = record(&mut fixture);
    (fixture, records)
}

fn record(fixture: &mut OneWorker) -> Records {
    // A process begins with a ring of its own.
    fixture.restarts = false;
    let (recorder, records) = Recorder::new(1 << 16);
    fixture.worker.record_to(recorder);
    records
}

/// The records that there are, each with the target of its request, if that is known.
fn all(records: &mut Records) -> Vec<(Record, String)> {
    let mut targets = Vec::new();
    let mut found = Vec::new();
    records.read(|message| {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        match message {
            Message::Begun(number, before, texts) => targets.push((number, before, text(texts.target()))),
            Message::Ended(mut ended) => {
                let begun = targets.iter().find(|(number, ..)| *number == ended.number);
                ended.widen(begun.map_or([0; 2], |(_, before, _)| *before));
                found.push((ended, begun.map_or_else(String::new, |(.., target)| target.clone())));
            }
            Message::Whole(record, texts) => found.push((record, text(texts.target()))),
        }
    });
    found
}

fn only(records: &mut Records) -> (Record, String) {
    let mut found = all(records);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn an_exchange_has_its_bytes_times_and_backend() {
    let (mut fixture, mut records) = recorded();
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    fixture.wait(Duration::from_millis(20));
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    fixture.wait(Duration::from_millis(50));
    assert_eq!(all(&mut records).len(), 0, "the client does not have the response");
    client.acknowledges(&mut fixture);
    // A second one over the same connections.
    let sent = client.sends(&mut fixture, &REQUEST.replace("/a", "/second"));
    backend.receives(&sent);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let found = all(&mut records);
    assert_eq!(found.iter().map(|(_, target)| target.as_str()).collect::<Vec<_>>(), ["", "/second"]);
    for ((record, _), request) in found.iter().zip([REQUEST.len(), REQUEST.len() + 5]) {
        assert_eq!(record.bytes, [request as u64, RESPONSE.len() as u64], "{record:?}");
        assert_eq!((record.status, record.service, record.group, record.backend, record.route), (200, 0, 0, 0, 0));
        assert_eq!((Ending::of(record.ending), record.why(), record.tries), (Ending::Done, None, 1));
        assert_eq!((record.flags, record.client.port, record.vip.port), (flags::EXCHANGE, 1000, 80));
        assert!(record.to_backend_us <= record.to_response_us && record.to_response_us != NEVER_US);
    }
    let took = found[0].0.took / 1_000_000;
    assert!((70..80).contains(&took) && (20_000..30_000).contains(&found[0].0.to_response_us), "{found:?}");
    fixture.over();
    assert_eq!(all(&mut records).len(), 0);
}

#[test]
fn the_last_of_a_connection_has_one() {
    let (mut fixture, mut records) = recorded();
    let request = REQUEST.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1);
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, &request);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    client.says(&mut fixture, ACK | FIN, b"");
    let (record, _) = only(&mut records);
    let response = RESPONSE.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1);
    assert_eq!(record.bytes, [request.len() as u64, response.len() as u64], "{record:?}");
    assert_eq!((record.status, record.backend, Ending::of(record.ending)), (200, 0, Ending::Done));
    fixture.over();
    assert_eq!(all(&mut records).len(), 0);
}

#[test]
fn answers_of_our_own_have_one() {
    let mut config = http();
    config.routes[0].action = Action::Reply { status: 403, body: b"no".as_slice().into() };
    let mut config = snapshot(1, Kind::Http(config.into()));
    config.services[0].is_recorded = true;
    let mut fixture = OneWorker::with(config);
    let mut records = record(&mut fixture);
    let mut client = Script::client(&mut fixture, 1000);
    for _ in 0..2 {
        let sent = client.sends(&mut fixture, REQUEST);
        let answer = client.receives(&sent);
        client.acknowledges(&mut fixture);
        let (record, target) = only(&mut records);
        assert_eq!(record.bytes, [REQUEST.len() as u64, answer.len() as u64], "{record:?}");
        assert_eq!((record.status, record.backend, record.route, target.as_str()), (403, NONE, 0, "/a"));
        assert_eq!((Ending::of(record.ending), record.why()), (Ending::Answered, None));
    }
    fixture.over();
}

#[test]
fn a_head_that_cannot_be_read_has_one() {
    let (mut fixture, mut records) = recorded();
    let mut client = Script::client(&mut fixture, 1000);
    let sent = client.sends(&mut fixture, "GET  / HTTP/1.1\r\n\r\n");
    let answer = client.receives(&sent);
    let (record, target) = only(&mut records);
    assert_eq!((record.status, record.why(), target.as_str()), (400, Some(Refused::Malformed), ""));
    assert_eq!((record.bytes, record.route, record.backend), ([0, answer.len() as u64], NONE, NONE));
}

#[test]
fn exchanges_that_are_broken_off_say_by_which_side() {
    type Act = fn(&mut OneWorker, &mut Script, &mut Script);
    let cases: [(Act, Ending); 4] = [
        (|fixture, client, _| drop(client.says(fixture, ACK | RST, b"")), Ending::Client),
        (|fixture, _, backend| drop(backend.says(fixture, ACK | RST, b"")), Ending::Backend),
        (|fixture, _, _| drop(fixture.wait(Duration::from_secs(600))), Ending::Timeout),
        (|fixture, _, _| while fixture.abandons().1 {}, Ending::Aborted),
    ];
    for (act, ending) in cases {
        let (mut fixture, mut records) = recorded();
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        // Half of a body.
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
        client.receives(&backend.sends(&mut fixture, head));
        act(&mut fixture, &mut client, &mut backend);
        let (record, _) = only(&mut records);
        assert_eq!(Ending::of(record.ending), ending, "{record:?}");
        assert_eq!((record.status, record.bytes[1]), (200, head.len() as u64), "{ending:?}");
        fixture.wait(Duration::from_secs(60));
        assert_eq!(all(&mut records).len(), 0);
    }
}

#[test]
fn a_response_that_does_not_come_is_answered_and_recorded() {
    let (mut fixture, mut records) = recorded();
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let sent = backend.says(&mut fixture, ACK | RST, b"");
    let answer = client.receives(&sent);
    let (record, target) = only(&mut records);
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert_eq!((record.status, record.why(), target.as_str()), (502, Some(Refused::BackendClosed), "/a"));
    assert_eq!((record.backend, record.tries, record.to_response_us), (0, 1, NEVER_US));
    assert_eq!(record.bytes, [REQUEST.len() as u64, answer.len() as u64]);
}

#[test]
fn an_exchange_of_the_process_before_has_one_without_its_texts() {
    let (mut fixture, _before) = recorded();
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    fixture.restart();
    let mut records = record(&mut fixture);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let (ended, target) = only(&mut records);
    assert_eq!((ended.number, target.as_str(), ended.status), (ADOPTED, "", 200));
    assert_eq!(ended.bytes, [REQUEST.len() as u64, RESPONSE.len() as u64]);
}

#[test]
fn services_that_keep_none_have_none() {
    let mut fixture = OneWorker::new(|_| {});
    let mut records = record(&mut fixture);
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let mut messages = 0;
    records.read(|_| messages += 1);
    assert_eq!(messages, 0);
    let _ = format!("{records:?}");
    fixture.over();
}

#[test]
fn a_response_that_its_backend_cuts_short_is_not_done() {
    let (mut fixture, mut records) = recorded();
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
    client.receives(&backend.says(&mut fixture, ACK | FIN, head.as_bytes()));
    client.acknowledges(&mut fixture);
    client.says(&mut fixture, ACK | FIN, b"");
    fixture.wait(Duration::from_secs(60));
    let (record, _) = only(&mut records);
    assert_eq!((Ending::of(record.ending), record.status), (Ending::Backend, 200), "{record:?}");
    assert_eq!(record.bytes, [REQUEST.len() as u64, head.len() as u64]);
}

#[test]
fn fin_while_a_request_waits_is_none_of_its_bytes() {
    let (mut fixture, mut records) = recorded();
    let mut client = Script::client(&mut fixture, 1000);
    let syn = super::only(client.sends(&mut fixture, REQUEST));
    client.says(&mut fixture, ACK | FIN, b"");
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    backend.receives(&sent);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    fixture.wait(Duration::from_secs(60));
    let (record, _) = only(&mut records);
    assert_eq!(record.bytes[0], REQUEST.len() as u64, "{record:?}");
}

#[test]
fn answers_have_the_version_of_their_own_request() {
    let mut config = snapshot(1, Kind::Http(Http { routes: [].into(), ..http() }.into()));
    config.services[0].is_recorded = true;
    let mut fixture = OneWorker::with(config);
    let mut records = record(&mut fixture);
    for (number, version) in (1000..).zip(["1.0", "1.1"]) {
        let mut client = Script::client(&mut fixture, number);
        let request = REQUEST.replace("HTTP/1.1", &format!("HTTP/{version}"));
        let sent = client.sends(&mut fixture, &request);
        client.receives(&sent);
        let (record, _) = only(&mut records);
        assert_eq!((record.status, record.has(flags::HTTP10)), (404, version == "1.0"));
    }
}

/// A fixture whose exchanges are traced, and not recorded otherwise.
fn traced(sample: u64) -> (OneWorker, Records) {
    let tracing = Some(Tracing { parents: Parents::All, sample });
    let mut fixture = OneWorker::with(snapshot(1, Kind::Http(Http { tracing, ..http() }.into())));
    let records = record(&mut fixture);
    (fixture, records)
}

/// The traces of exchanges that have begun or ended as a whole.
fn traces(records: &mut Records) -> Vec<TraceContext> {
    let mut found = Vec::new();
    records.read(|message| match message {
        Message::Begun(.., texts) | Message::Whole(_, texts) => found.extend(texts.trace()),
        Message::Ended(_) => {}
    });
    found
}

#[test]
fn a_sampled_exchange_has_a_record_with_its_backends_trace() {
    let (mut fixture, mut records) = traced(SAMPLE_ALL);
    let (mut client, mut backend, head) = asked(&mut fixture, 1000, REQUEST);
    let head = head.text();
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let hex = |octets: &[u8]| octets.iter().map(|octet| format!("{octet:02x}")).collect::<String>();
    let [one] = traces(&mut records)[..] else { panic!("one trace") };
    let parent = |trace: &TraceContext| format!("traceparent: 00-{}-{}-01\r\n", hex(&trace.trace), hex(&trace.span));
    assert!(head.contains(&parent(&one)), "{head}");
    assert!(one.is_sampled() && !one.has_parent());
    // The next one of the connection is of a trace of its own.
    let sent = client.sends(&mut fixture, REQUEST);
    let head = backend.receives(&sent);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let [two] = traces(&mut records)[..] else { panic!("one trace") };
    assert!(head.contains(&parent(&two)) && two.trace != one.trace, "{head}");
}

#[test]
fn an_exchange_that_is_not_sampled_has_no_record() {
    let (mut fixture, mut records) = traced(0);
    let (mut client, mut backend, head) = asked(&mut fixture, 1000, REQUEST);
    let head = head.text();
    assert!(head.contains("traceparent: 00-") && head.contains("-00\r\n"), "{head}");
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
    let with = |flags| REQUEST.replacen("\r\n\r\n", &format!("\r\ntraceparent: {parent}-{flags}\r\n\r\n"), 1);
    for (flags, is_recorded) in [("00", false), ("01", true)] {
        let sent = client.sends(&mut fixture, &with(flags));
        let head = backend.receives(&sent);
        assert!(head.contains("traceparent: 00-0af7651916cd43dd8448eb211c80319c-"), "{head}");
        assert!(head.contains(&format!("-{flags}\r\n")) && !head.contains("b7ad6b7169203331"), "{head}");
        client.receives(&backend.sends(&mut fixture, RESPONSE));
        client.acknowledges(&mut fixture);
        let found = all(&mut records);
        assert_eq!(found.len(), usize::from(is_recorded), "{found:?}");
    }
}

/// The `traceparent` that a head has.
fn parent(head: &str) -> &str {
    let at = head.find("traceparent: ").expect("a traceparent");
    head[at..].lines().next().unwrap()
}

#[test]
fn a_request_that_waited_in_another_process_shares_no_ids() {
    let (mut fixture, _) = traced(0);
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only_frame(client.sends(&mut fixture, REQUEST));
    fixture.restart();
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    let waited = only_frame(sent);
    backend.gets(&waited);
    for port in 1001..1004 {
        let (_, _, head) = asked(&mut fixture, port, REQUEST);
        assert_ne!(parent(waited.text()), parent(head.text()));
    }
}

#[test]
fn waiting_request_is_traced_as_the_new_configuration_says() {
    let tracing = Some(Tracing { parents: Parents::All, sample: SAMPLE_ALL });
    let config = |tracing| snapshot(1, Kind::Http(Http { tracing, ..http() }.into()));
    for (before, after) in [(None, tracing), (tracing, None)] {
        let mut fixture = OneWorker::with(config(before));
        let mut records = record(&mut fixture);
        let mut client = Script::client(&mut fixture, 1000);
        let syn = only_frame(client.sends(&mut fixture, REQUEST));
        reload_as(&mut fixture, config(after));
        let (mut backend, sent) = Script::backend(&mut fixture, &syn);
        let head = backend.receives(&sent);
        assert_eq!(head.contains("traceparent: "), after.is_some(), "{head}");
        client.receives(&backend.sends(&mut fixture, RESPONSE));
        client.acknowledges(&mut fixture);
        // A record that has begun is written, and one that begins only now is a whole one.
        let (record, target) = only(&mut records);
        assert_eq!((record.status, target.as_str(), record.bytes[0]), (200, "/a", REQUEST.len() as u64));
        // The next one of the connection is of the new configuration alone.
        let sent = client.sends(&mut fixture, REQUEST);
        let head = backend.receives(&sent);
        assert_eq!(head.contains("traceparent: "), after.is_some(), "{head}");
        client.receives(&backend.sends(&mut fixture, RESPONSE));
        client.acknowledges(&mut fixture);
        assert_eq!(all(&mut records).len(), usize::from(after.is_some()));
        fixture.over();
    }
}

/// The request id that a head has: digits of 16 bytes.
fn request_id(head: &str) -> String {
    let at = head.find("X-Request-Id: ").expect("a request id") + "X-Request-Id: ".len();
    let id = head[at..].lines().next().unwrap();
    assert!(id.len() == 32 && id.bytes().all(|digit| digit.is_ascii_hexdigit()), "{head}");
    id.into()
}

#[test]
fn request_ids_of_two_processes_differ() {
    let name = RequestId { name: (*b"X-Request-Id").into(), lower_name: (*b"x-request-id").into() };
    let mut fixture = OneWorker::with(snapshot(2, Kind::Http(Http { request_id: Some(name), ..http() }.into())));
    let _records = record(&mut fixture);
    // One is at its backend, another one waits for its own.
    let (mut client, mut backend, head) = asked(&mut fixture, 1000, REQUEST);
    let mut ids = Vec::from([request_id(head.text())]);
    let mut waiting = Script::client(&mut fixture, 1001);
    let syn = only_frame(waiting.sends(&mut fixture, REQUEST));
    fixture.restart();
    let _records = record(&mut fixture);
    let (_, sent) = Script::backend(&mut fixture, &syn);
    ids.push(request_id(only_frame(sent).text()));
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let sent = client.sends(&mut fixture, REQUEST);
    ids.push(request_id(&backend.receives(&sent)));
    for port in 1002..1004 {
        let (_, _, head) = asked(&mut fixture, port, REQUEST);
        ids.push(request_id(head.text()));
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "{ids:?}");
}
