//! One end of a scripted connection.

use super::one_worker::{OneWorker, Sent, USUAL, end};
use super::stamped;
use crate::flow::Endpoint;
use crate::l7::cookie;
use crate::l7::splice::tcp::numbers::before;
use crate::l7::splice::tcp::segment::{Abilities, Own};
use crate::wire::tcp::{ACK, PSH, SYN};
use alloc::string::String;
use alloc::vec::Vec;

/// One end of a connection, played by hand: it knows its own numbers.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) own: Endpoint,
    pub(super) peer: Endpoint,
    /// The next number it sends.
    pub(super) next: u32,
    /// The next number it expects.
    pub(super) expected: u32,
    pub(super) window: u16,
}

impl Script {
    pub(super) fn own(&self, flags: u8, abilities: Option<Abilities>) -> Own {
        Own {
            source: self.own,
            destination: self.peer,
            sequence: self.next,
            acknowledgement: self.expected,
            flags,
            window: self.window,
            port: 0,
            mss: u16::MAX,
            abilities,
            timestamps: stamped::of(self.own, self.peer, flags),
        }
    }

    /// A client that has a connection.
    pub(super) fn client(fixture: &mut OneWorker, port: u16) -> Script {
        Script::client_with(fixture, port, 5000, USUAL)
    }

    /// A client that has a connection, with this first number and these abilities.
    pub(super) fn client_with(fixture: &mut OneWorker, port: u16, first: u32, abilities: Abilities) -> Script {
        let mut client = Script::offered(fixture, port, first, abilities);
        assert!(client.says(fixture, ACK, b"").is_empty(), "no state for a bare acknowledgement");
        client
    }

    /// A client that has had the answer to its SYN.
    pub(super) fn offered(fixture: &mut OneWorker, port: u16, first: u32, abilities: Abilities) -> Script {
        let own = end(!fixture.vip.address.is_ipv4(), 10, port);
        let mut client = Script { own, peer: fixture.vip, next: first, expected: 0, window: 1000 };
        let answers = fixture.arrives(&client.own(SYN, Some(abilities)), b"");
        assert_eq!(answers.len(), 1, "{answers:?}");
        let answer = &answers[0];
        assert_eq!((answer.segment.flags, answer.segment.acknowledgement), (SYN | ACK, first.wrapping_add(1)));
        let scale = abilities.scale.map(|_| cookie::SCALE);
        assert_eq!((answer.abilities.scale, answer.abilities.sack), (scale, abilities.sack), "no more than it can");
        client.next = first.wrapping_add(1);
        client.expected = answer.segment.sequence.wrapping_add(1);
        client
    }

    /// A backend that takes up the connection whose SYN this is.
    pub(super) fn backend(fixture: &mut OneWorker, syn: &Sent) -> (Script, Vec<Sent>) {
        Script::backend_with(fixture, syn, 900_000, Abilities { scale: Some(9), ..USUAL })
    }

    /// A backend with this first number and these abilities, which takes up the connection whose SYN this is.
    pub(super) fn backend_with(
        fixture: &mut OneWorker,
        syn: &Sent,
        first: u32,
        abilities: Abilities,
    ) -> (Script, Vec<Sent>) {
        assert_eq!(syn.segment.flags, SYN, "{syn:?}");
        let expected = syn.segment.sequence.wrapping_add(1);
        let mut backend = Script { own: syn.to, peer: syn.from, next: first, expected, window: 60_000 };
        let sent = fixture.arrives(&backend.own(SYN | ACK, Some(abilities)), b"");
        backend.next = first.wrapping_add(1);
        backend.window = 1000;
        (backend, sent)
    }

    /// It sends a segment.
    pub(super) fn says(&mut self, fixture: &mut OneWorker, flags: u8, bytes: &[u8]) -> Vec<Sent> {
        let own = self.own(flags, None);
        let phantom = u32::from(flags & crate::wire::tcp::FIN != 0);
        self.next = self.next.wrapping_add(bytes.len() as u32 + phantom);
        fixture.arrives(&own, bytes)
    }

    /// It sends a segment with options, which takes no numbers.
    pub(super) fn repeats(&self, fixture: &mut OneWorker, sequence: u32, options: &[u8], bytes: &[u8]) -> Vec<Sent> {
        fixture.arrives_with(&Own { sequence, ..self.own(ACK, None) }, options, bytes)
    }

    /// It sends data.
    pub(super) fn sends(&mut self, fixture: &mut OneWorker, text: &str) -> Vec<Sent> {
        self.says(fixture, ACK | PSH, text.as_bytes())
    }

    /// It acknowledges all it has.
    pub(super) fn acknowledges(&mut self, fixture: &mut OneWorker) -> Vec<Sent> {
        self.says(fixture, ACK, b"")
    }

    /// It gets this segment, which must be the next in order.
    pub(super) fn gets(&mut self, sent: &Sent) {
        assert_eq!((sent.from, sent.to), (self.peer, self.own));
        assert_eq!(sent.segment.sequence, self.expected, "in order: {sent:?}");
        assert!(!before(self.next, sent.segment.acknowledgement), "acknowledges what was sent: {sent:?}");
        let phantom = u32::from(sent.segment.has(crate::wire::tcp::FIN));
        self.expected = self.expected.wrapping_add(sent.segment.payload + phantom);
    }

    /// What it gets of these segments, which must come in order.
    pub(super) fn receives(&mut self, sent: &[Sent]) -> String {
        let own = self.own;
        let mine = sent.iter().filter(|sent| sent.to == own);
        mine.fold(String::new(), |text, sent| {
            self.gets(sent);
            text + sent.text()
        })
    }
}
