//! What records say of requests that Hairpin answers by itself.

use crate::fixture::{Site, block_on, http, server};
use crate::http1::ask;
use crate::http2_streams::ask_for_websocket;
use bytes::Bytes;
use hairpin_core::l7::config::{Action, Http};
use hairpin_core::l7::splice::Refused;
use hairpin_core::record::{NONE, Record};

/// What a record says: the status, why, and the route.
fn said(record: &Record) -> (u16, Option<Refused>, u16) {
    (record.status, record.why(), record.route)
}

/// Of a service whose second route does this.
fn with(action: Action) -> Http {
    let mut http = http();
    let mut other = http.routes[0].clone();
    other.conditions.methods = vec![b"BREW".as_slice().into()].into();
    let mut route = http.routes[0].clone();
    route.action = action;
    http.routes = vec![other, route].into();
    http
}

#[test]
fn redirect_that_cannot_be_made_is_recorded_with_its_route() {
    block_on(async {
        let redirect = Action::Redirect { status: 308, location: b"https://{host}/".as_slice().into() };
        let site = Site::new(with(redirect), server().await);
        // Without a host there is nowhere to send the client to.
        let (head, _) = ask(&mut site.connect(&[]).await, "GET / HTTP/1.0\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        assert_eq!(said(&site.record().await), (400, Some(Refused::Malformed), 1));
    });
}

#[test]
fn head_that_cannot_be_read_is_recorded_once() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let (head, _) = ask(&mut site.connect(&[]).await, "GET  / HTTP/1.1\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        assert_eq!(said(&site.record().await), (400, Some(Refused::Malformed), NONE));
        let (head, _) = ask(&mut site.connect(&[]).await, "GET /head HTTP/1.1\r\nHost: web.test\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(said(&site.record().await), (200, None, 0), "one of each request");
    });
}

#[test]
fn websocket_answered_by_a_route_is_recorded_as_refused() {
    block_on(async {
        let answer = Action::Reply { status: 200, body: b"hello".as_slice().into() };
        let site = Site::new(with(answer), server().await);
        let (response, up) = ask_for_websocket(&site, "https://web.test/chat").await;
        drop::<h2::SendStream<Bytes>>(up);
        assert_eq!(response.await.unwrap().status(), 501);
        assert_eq!(said(&site.record().await), (501, Some(Refused::Tunnel), 1));
    });
}
