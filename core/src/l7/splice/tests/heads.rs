//! Responses' heads: interim ones, those in pieces, those that are edited.

use super::stage::Stage;
use super::{REQUEST, asked, only};
use crate::time::Duration;
use crate::wire::tcp::ACK;

const INTERIM: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
const RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn interim_responses_are_delivered_by_us() {
    let mut stage = Stage::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut stage, 1000, REQUEST);
    let first = only(backend.sends(&mut stage, INTERIM));
    assert_eq!(first.text(), INTERIM);
    assert_eq!(first.segment.sequence, client.expected);
    // It is lost, and sent again: by us, whatever the backend does.
    let again = only(stage.wait(Duration::from_millis(260)));
    assert_eq!(again.what(), first.what());
    client.gets(&again);
    let told = only(client.acknowledges(&mut stage));
    assert_eq!(told.what(), (backend.expected, backend.next, ACK, ""));
    // Two more, and the response, in one segment.
    let all = alloc::format!("{INTERIM}{INTERIM}{RESPONSE}");
    let sent = backend.sends(&mut stage, &all);
    assert_eq!(client.receives(&sent), all);
    let told = only(client.acknowledges(&mut stage));
    assert_eq!(told.what(), (backend.expected, backend.next, ACK, ""));
    stage.over();
}
