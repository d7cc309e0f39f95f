//! Exchanges that outlast their configuration end as it says, in this process and in the next one.

use super::one_worker::{OneWorker, Script, http, snapshot};
use super::requests::reload_as;
use super::{REQUEST, RESPONSE, asked};
use crate::config::Snapshot;
use crate::l7::config::{Edits, Field, HeadEdits, Kind};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

/// A configuration whose only route has a field added to responses.
fn with_edit(value: usize) -> Snapshot {
    let mut http = http();
    let add = [Field::parse_response("X-Edit", &format!("{value}")).unwrap()].into();
    http.routes[0].edits = Edits { response: HeadEdits { add, ..HeadEdits::default() }, ..Edits::default() };
    snapshot(1, Kind::Http(http.into()))
}

/// The field that a response to the request at hand has.
fn edit(fixture: &mut OneWorker, client: &mut Script, backend: &mut Script) -> Option<String> {
    let response = client.receives(&backend.sends(fixture, RESPONSE));
    client.acknowledges(fixture);
    let field = response.lines().find(|line| line.starts_with("X-Edit: "))?;
    Some(field["X-Edit: ".len()..].into())
}

fn asks_again(fixture: &mut OneWorker, client: &mut Script, backend: &mut Script) {
    backend.receives(&client.sends(fixture, REQUEST));
    backend.acknowledges(fixture);
}

#[test]
fn exchange_ends_with_the_edits_it_began_with() {
    let mut fixture = OneWorker::with(with_edit(0));
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    // As many configurations are remembered; this exchange's is the oldest.
    for value in 1..=super::super::limits::FORMERS_MAX {
        reload_as(&mut fixture, with_edit(value));
    }
    assert_eq!(edit(&mut fixture, &mut client, &mut backend).as_deref(), Some("0"));
    asks_again(&mut fixture, &mut client, &mut backend);
    assert_eq!(edit(&mut fixture, &mut client, &mut backend).as_deref(), Some("8"));
    // One more is too many: no route's edits at all, rather than another's.
    asks_again(&mut fixture, &mut client, &mut backend);
    for value in 0..=super::super::limits::FORMERS_MAX {
        reload_as(&mut fixture, with_edit(value));
    }
    assert_eq!(edit(&mut fixture, &mut client, &mut backend), None);
    fixture.over();
}

#[test]
fn exchange_ends_with_its_edits_in_the_next_process() {
    for is_known in [true, false] {
        let mut fixture = OneWorker::with(with_edit(0));
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let former = Arc::clone(&fixture.snapshot);
        // The next process runs with another configuration, and so does the one after it.
        for value in 1..=2 {
            let mut snapshot = with_edit(value);
            snapshot.id = 100 + value as u64;
            fixture.snapshot = Arc::new(snapshot);
            fixture.formers = is_known.then(|| former.clone()).into_iter().collect();
            let adopted = fixture.restart();
            assert_eq!((adopted.client_conns, adopted.interrupted), (1, 0));
        }
        assert_eq!(edit(&mut fixture, &mut client, &mut backend).as_deref(), is_known.then_some("0"));
        asks_again(&mut fixture, &mut client, &mut backend);
        assert_eq!(edit(&mut fixture, &mut client, &mut backend).as_deref(), Some("2"));
        fixture.over();
    }
}

/// What changes without the file (weights, health) is the same configuration to an exchange.
#[test]
fn the_same_configuration_again_changes_nothing() {
    let mut fixture = OneWorker::with(with_edit(0));
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    for _ in 0..=super::super::limits::FORMERS_MAX {
        let id = fixture.snapshot.id;
        super::requests::reload_with(&mut fixture, with_edit(0), id);
    }
    assert_eq!(edit(&mut fixture, &mut client, &mut backend).as_deref(), Some("0"));
    fixture.over();
}
