//! What the simulator has found, told in a few segments.

use super::stage::{Script, Stage};
use super::{REQUEST, RESPONSE, only};
use crate::wire::tcp::{ACK, FIN, PSH};

#[test]
fn the_first_segment_that_comes_twice_begins_no_second_connection_though_the_client_has_closed() {
    let mut stage = Stage::new(|_| {});
    let mut client = Script::client(&mut stage, 1000);
    let first = client.own(ACK | FIN | PSH, None);
    let syn = only(client.says(&mut stage, ACK | FIN | PSH, REQUEST.as_bytes()));
    let again = stage.arrives(&first, REQUEST.as_bytes());
    assert!(again.iter().all(|sent| sent.to == client.own), "{again:?}");
    let (mut backend, sent) = Script::backend(&mut stage, &syn);
    backend.gets(&only(sent));
    let again = stage.arrives(&first, REQUEST.as_bytes());
    assert!(again.iter().all(|sent| sent.to == client.own), "{again:?}");
    let response = only(backend.sends(&mut stage, RESPONSE));
    client.gets(&response);
    let fin = client.acknowledges(&mut stage);
    assert!(fin.iter().any(|sent| sent.to == client.own && sent.segment.has(FIN)), "{fin:?}");
    stage.over();
}
