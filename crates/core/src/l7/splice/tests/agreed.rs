//! Backends that agree to less than they were offered: skipped for another, if there is one to be had.

use super::one_worker::{OneWorker, Script, USUAL};
use super::{REQUEST, RESPONSE, only};
use crate::l7::config::{Http, Sticky};
use crate::l7::splice::tcp::segment::Abilities;
use crate::wire::tcp::{ACK, RST};
use alloc::format;
use alloc::vec::Vec;

fn sticky(http: &mut Http) {
    http.sticky = Some(Sticky { cookie: (*b"stuck").into(), attributes: (*b"").into() });
}

/// Of three tries the first two are skipped, if that which they agree to is less; the third serves.
#[test]
fn a_backend_that_agrees_to_less_is_reset_and_another_tried() {
    let less = [Abilities { scale: None, ..USUAL }, Abilities { sack: false, ..USUAL }];
    for (passed, last) in [(1, USUAL), (2, USUAL), (2, less[0])] {
        let mut fixture = OneWorker::with_backends(3, |_| {});
        let mut client = Script::client(&mut fixture, 1000);
        let mut sent = client.sends(&mut fixture, REQUEST);
        let mut tried = Vec::new();
        for abilities in &less[..passed] {
            let syn = only(sent);
            tried.push(syn.to);
            let (backend, answers) = Script::backend_with(&mut fixture, &syn, 7000, *abilities);
            let (reset, others) = answers.split_first().expect("it is reset");
            assert_eq!((reset.to, reset.segment.flags, reset.segment.sequence), (backend.own, RST, backend.expected));
            sent = others.to_vec();
        }
        let syn = only(sent);
        assert!(tried.last().is_none_or(|before| *before != syn.to), "{tried:?} again");
        let (mut backend, sent) = Script::backend_with(&mut fixture, &syn, 7000, last);
        backend.gets(&only(sent));
        assert_eq!(client.receives(&backend.sends(&mut fixture, RESPONSE)), RESPONSE);
        client.acknowledges(&mut fixture);
        let http = &fixture.worker.statistics().http;
        assert_eq!((http.skipped, http.retries, http.replies), (passed as u64, 0, 0));
        fixture.over();
    }
}

/// No other backend can serve, or no other backend may.
#[test]
fn a_backend_that_agrees_to_less_serves_where_no_other_is_to() {
    let less = Abilities { scale: None, sack: false, ..USUAL };
    for backends in [1, 2] {
        let mut fixture = OneWorker::with_backends(backends, sticky);
        let mut client = Script::client(&mut fixture, 1000);
        let syn = only(client.sends(&mut fixture, REQUEST));
        let (mut first, sent) = Script::backend(&mut fixture, &syn);
        first.gets(&only(sent));
        let response = client.receives(&first.sends(&mut fixture, RESPONSE));
        let cookie = response.split("stuck=").nth(1).and_then(|rest| rest.split([';', '\r']).next()).expect("a cookie");
        client.acknowledges(&mut fixture);
        // The connection there was goes, so that a new one is needed.
        first.says(&mut fixture, RST | ACK, b"");
        let mut client = Script::client(&mut fixture, 1001);
        let request = format!("GET /a HTTP/1.1\r\nHost: a\r\nCookie: stuck={cookie}\r\n\r\n");
        let syn = only(client.sends(&mut fixture, &request));
        assert_eq!(syn.to, first.own);
        let (mut again, sent) = Script::backend_with(&mut fixture, &syn, 7000, less);
        again.gets(&only(sent));
        assert_eq!(client.receives(&again.sends(&mut fixture, RESPONSE)), RESPONSE);
        client.acknowledges(&mut fixture);
        assert_eq!(fixture.worker.statistics().http.skipped, 0);
        fixture.over();
    }
}
