//! A process that is killed at every place at which it begins to change an entry, and the next one, which takes over what
//! it leaves.

use super::one_worker::{OneWorker, Script, Sent, USUAL};
use super::stamped;
use super::{REQUEST, only};
use crate::config::ServiceState;
use crate::table::numbered::interrupt;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

const UPLOAD: &str = "PUT /b HTTP/1.1\r\nHost: example.org\r\nTransfer-Encoding: chunked\r\n\r\n";
const CHUNKS: [&str; 2] = ["5\r\nhello\r\n", "6\r\n, you!\r\n0\r\n\r\n"];
const LENGTH: [&str; 2] = ["HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234", "56789"];
const CHUNKED: [&str; 2] = ["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "0\r\n\r\n"];

/// One end, and all that it is to get, in order, from a first number on.
pub(super) struct End {
    pub(super) script: Script,
    first: u32,
    stream: String,
}

impl End {
    fn new(script: Script) -> End {
        End { first: script.expected, script, stream: String::new() }
    }

    /// Whether what it gets is a part of its stream.
    pub(super) fn checks(&self, sent: &Sent) {
        assert!(sent.to == self.script.own);
        if sent.segment.has(RST) {
            return;
        }
        let at = sent.segment.sequence.wrapping_sub(self.first) as usize;
        let known = self.stream.as_bytes().get(at..at + sent.bytes.len());
        assert!(sent.bytes.is_empty() || known == Some(&sent.bytes[..]), "at {at}: {sent:?}");
    }

    /// Whether it is answered with a RST that it believes.
    pub(super) fn is_reset(&mut self, fixture: &mut OneWorker) -> bool {
        let answers = self.script.acknowledges(fixture);
        let own = self.script.own;
        let reset = answers.iter().find(|sent| sent.to == own && sent.segment.has(RST));
        reset.inspect(|sent| assert_eq!(sent.segment.sequence, self.script.expected)).is_some()
    }
}

/// The steps of a conversation, each one segment.
pub(super) const STEPS: usize = 14;

/// A client's conversation with a backend, up to some step.
pub(super) struct Conversation {
    pub(super) client: End,
    pub(super) backend: Option<End>,
    syn: Option<Sent>,
}

impl Conversation {
    pub(super) fn new(fixture: &mut OneWorker, port: u16) -> Conversation {
        Conversation { client: End::new(Script::client(fixture, port)), backend: None, syn: None }
    }

    /// A client sends something, which its backend gets; what the killed process was about to send is lost.
    fn client_sends(&mut self, fixture: &mut OneWorker, text: &str) -> Vec<Sent> {
        if let Some(backend) = &mut self.backend {
            backend.stream += text;
        }
        let sent = self.client.script.sends(fixture, text);
        if let Some(backend) = &mut self.backend {
            backend.script.receives(&sent);
        }
        sent
    }

    pub(super) fn backend_sends(&mut self, fixture: &mut OneWorker, text: &str) -> Vec<Sent> {
        let Some(backend) = &mut self.backend else { return Vec::new() };
        self.client.stream += text;
        let sent = backend.script.sends(fixture, text);
        self.client.script.receives(&sent);
        sent
    }

    /// Goes a step; says what was sent.
    pub(super) fn step(&mut self, fixture: &mut OneWorker, step: usize) -> Vec<Sent> {
        match step {
            0 => {
                let sent = self.client_sends(fixture, REQUEST);
                self.syn = sent.first().cloned();
                sent
            }
            1 => {
                let Some(syn) = self.syn.take() else { return Vec::new() };
                let (script, sent) = Script::backend(fixture, &syn);
                let mut backend = End::new(script);
                backend.stream += REQUEST;
                backend.script.receives(&sent);
                self.backend = Some(backend);
                sent
            }
            2 => self.backend_sends(fixture, LENGTH[0]),
            3 => self.backend_sends(fixture, LENGTH[1]),
            4 => self.client.script.acknowledges(fixture),
            5 => self.client_sends(fixture, UPLOAD),
            6 => self.client_sends(fixture, CHUNKS[0]),
            7 => self.client_sends(fixture, CHUNKS[1]),
            8 => self.backend.as_mut().map_or(Vec::new(), |backend| backend.script.acknowledges(fixture)),
            9 => self.backend_sends(fixture, CHUNKED[0]),
            10 => self.backend_sends(fixture, CHUNKED[1]),
            11 => self.client.script.acknowledges(fixture),
            12 => self.client.script.says(fixture, ACK | FIN, b""),
            _ => self.client.script.acknowledges(fixture),
        }
    }
}

/// Checks that all that is sent belongs where it goes.
pub(super) fn check(conversations: &[&Conversation], sent: &[Sent]) {
    for sent in sent {
        let ends = conversations.iter().flat_map(|talk| [Some(&talk.client), talk.backend.as_ref()]);
        if let Some(end) = ends.flatten().find(|end| end.script.own == sent.to && end.script.peer == sent.from) {
            end.checks(sent);
        }
    }
}

/// A conversation in the midst of a response, and one before step `step`.
pub(super) fn two(step: usize) -> (OneWorker, Conversation, Conversation) {
    let mut fixture = OneWorker::small();
    fixture.restarts = false;
    let mut other = Conversation::new(&mut fixture, 2000);
    (0..3).for_each(|step| drop(other.step(&mut fixture, step)));
    let mut talk = Conversation::new(&mut fixture, 1000);
    (0..step).for_each(|step| drop(talk.step(&mut fixture, step)));
    (fixture, other, talk)
}

/// A conversation in the midst of a response goes on.
pub(super) fn goes_on(fixture: &mut OneWorker, other: &mut Conversation) {
    let sent = other.backend_sends(fixture, LENGTH[1]);
    assert_eq!(only(sent).text(), LENGTH[1]);
    other.client.script.acknowledges(fixture);
    let sent = other.client_sends(fixture, REQUEST);
    assert_eq!(only(sent).text(), REQUEST);
}

/// Kills the process when it begins its change number `at` in the course of step `killed`. `false`: the step has no such
/// change.
fn killed(killed: usize, at: usize) -> bool {
    let (mut fixture, mut other, mut talk) = two(killed);
    let before = (talk.client.script.clone(), talk.backend.as_ref().map(|backend| backend.script.clone()));
    interrupt::arm(fixture.worker.spliced_image(), at);
    talk.step(&mut fixture, killed);
    let Some(image) = interrupt::disarm() else { return false };
    // What it was about to send is lost.
    talk.client.script.expected = before.0.expected;
    if let (Some(backend), Some(before)) = (&mut talk.backend, before.1) {
        backend.script.expected = before.expected;
    }
    let adopted = fixture.restart_from(Some(&image));
    assert_eq!((adopted.forgotten(), adopted.without_service, adopted.misplaced), (0, 0, 0), "{adopted:?}");
    // A client's connection and its backend's, and one that it has left or taken.
    assert!(adopted.interrupted <= 3, "{adopted:?}");
    check(&[&talk, &other], &fixture.wait(Duration::from_millis(50)));

    goes_on(&mut fixture, &mut other);

    // Of this one both ends are reset, but for a backend that others may have now.
    // Before its first change there was no connection: the client sends its request again.
    let is_new = (killed, at) == (0, 0);
    assert_eq!(talk.client.is_reset(&mut fixture), !is_new, "step {killed}, change {at}");
    if let Some(backend) = &mut talk.backend {
        let is_kept = adopted.backend_conns == 2;
        assert_eq!(backend.is_reset(&mut fixture), !is_kept, "step {killed}, change {at}");
    }
    let sent = fixture.wait(Duration::from_secs(20));
    check(&[&talk, &other], &sent);
    fixture.over();
    true
}

#[test]
fn killed_at_every_change_of_a_conversation() {
    stamped::unchecked();
    let mut places = 0;
    for step in 0..STEPS {
        places += (0..).take_while(|&at| killed(step, at)).count();
    }
    assert!(places > 80, "{places} places");
}

#[test]
fn killed_while_it_takes_over() {
    let mut places = 0;
    for steps in [3, 6, 8, 10, 12] {
        for at in 0.. {
            let mut fixture = OneWorker::new(|_| {});
            fixture.restarts = false;
            let mut talks = [Conversation::new(&mut fixture, 2000), Conversation::new(&mut fixture, 1000)];
            (0..3).for_each(|step| drop(talks[0].step(&mut fixture, step)));
            (0..steps).for_each(|step| drop(talks[1].step(&mut fixture, step)));
            interrupt::arm(fixture.worker.spliced_image(), at);
            fixture.restart();
            let Some(image) = interrupt::disarm() else { break };
            let adopted = fixture.restart_from(Some(&image));
            assert_eq!((adopted.forgotten(), adopted.without_service, adopted.misplaced), (0, 0, 0), "{adopted:?}");
            // What it was about to take in, and its partner.
            assert!(adopted.interrupted <= 2, "{steps} steps, change {at}: {adopted:?}");
            places += 1;
            fixture.over();
        }
    }
    assert!(places > 20, "{places} places");
}

#[test]
fn a_client_begins_anew_while_its_old_connection_is_reset() {
    let mut fixture = OneWorker::new(|_| {});
    fixture.restarts = false;
    let mut talk = Conversation::new(&mut fixture, 1000);
    (0..4).for_each(|step| drop(talk.step(&mut fixture, step)));
    interrupt::arm(fixture.worker.spliced_image(), 0);
    talk.step(&mut fixture, 4);
    let image = interrupt::disarm().unwrap();
    assert_eq!(fixture.restart_from(Some(&image)).interrupted, 2);
    let mut anew = Script::client_with(&mut fixture, 1000, 700_000, USUAL);
    let syn = only(anew.sends(&mut fixture, REQUEST).into_iter().filter(|sent| sent.to != anew.own).collect());
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    assert_eq!(backend.receives(&sent), REQUEST);
}

#[test]
fn backends_that_have_gone_meanwhile_lose_their_connections() {
    // Its connection is idle, or a response is on its way.
    for steps in [3, 5] {
        let mut fixture = OneWorker::new(|_| {});
        fixture.restarts = false;
        let mut talk = Conversation::new(&mut fixture, 1000);
        (0..steps).for_each(|step| drop(talk.step(&mut fixture, step)));
        let mut snapshot = (*fixture.snapshot).clone();
        snapshot.id += 1;
        snapshot.services[0].backends[0].endpoint.port += 1;
        fixture.snapshot = Arc::new(snapshot);
        assert_eq!(fixture.restart().forgotten(), 0);
        let sent = fixture.wait(Duration::from_secs(1));
        let backend = talk.backend.as_mut().unwrap();
        assert!(sent.iter().any(|sent| sent.to == backend.script.own), "{sent:?}");
        assert!(backend.is_reset(&mut fixture) || sent.iter().any(|sent| sent.segment.has(RST)), "{sent:?}");
        if steps == 5 {
            // The client's next request goes to the backend that is there now.
            let syn = only(talk.client.script.sends(&mut fixture, REQUEST));
            assert_eq!(syn.to.port, backend.script.own.port + 1);
        }
        fixture.over();
    }
}

#[test]
fn service_that_has_gone_closes_its_idle_clients() {
    // The client is idle, or in the middle of a response.
    for is_idle in [true, false] {
        let mut fixture = OneWorker::new(|_| {});
        fixture.restarts = false;
        let mut talk = Conversation::new(&mut fixture, 1000);
        (0..3).for_each(|step| drop(talk.step(&mut fixture, step)));
        if is_idle {
            talk.backend_sends(&mut fixture, LENGTH[1]);
            talk.client.script.acknowledges(&mut fixture);
        }
        let mut snapshot = (*fixture.snapshot).clone();
        snapshot.id += 1;
        snapshot.services[0].state = ServiceState::Vacant;
        fixture.snapshot = Arc::new(snapshot);
        let adopted = fixture.restart();
        assert_eq!((adopted.without_service, adopted.client_conns, adopted.invalid), (1, 0, 0), "{adopted:?}");
        let sent = fixture.wait(Duration::from_millis(10));
        if is_idle {
            let fin = sent.iter().find(|sent| sent.to == talk.client.script.own).unwrap();
            assert_eq!((fin.segment.flags, fin.segment.sequence), (ACK | FIN, talk.client.script.expected));
        } else {
            assert!(talk.client.is_reset(&mut fixture), "{sent:?}");
        }
        fixture.over();
    }
}
