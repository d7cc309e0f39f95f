//! Our own reader reads what the edits have written.

mod hostile;
mod requests;
mod responses;
mod speed;

use super::super::config::{
    Action, Edits, Field, Forwarded, HeadEdits, Http, HttpLimits, Network, Route, RouteTerms, Sticky,
};
use super::super::head::{self, Bounds, Method, ParseStatus, Request, Response, Version};
use super::super::route::Conditions;
use super::super::route::path::PathPattern;
use super::*;
use std::boxed::Box;
use std::string::String;
use std::vec::Vec;

const BOUNDS: Bounds = Bounds { bytes_max: 16_384, fields_max: 128, target_bytes_max: 8192 };

/// A service that changes nothing.
fn plain() -> Http {
    Http {
        answers: Default::default(),
        access: Box::default(),
        routes: Box::default(),
        edits: Edits::default(),
        forwarded: Forwarded::default(),
        sticky: None,
        request_id: None,
        tracing: None,
        server_timing: false,
        upgrade: true,
        connect: true,
        proxy_protocol: None,
        reuse: true,
        limits: HttpLimits::default(),
        offload_bytes_min: None,
        timestamps: true,
    }
}

/// A route that changes nothing.
fn route() -> Route {
    let action = Action::Forward { groups: [(0, 1)].into(), replace_prefix: None };
    Route { conditions: Conditions::default(), action, edits: Edits::default(), terms: RouteTerms::default() }
}

fn facts() -> Facts<'static> {
    Facts {
        client: Endpoint::new(core::net::IpAddr::from([192, 0, 2, 7]), 40_000),
        vip: Endpoint::new(core::net::IpAddr::from([198, 51, 100, 1]), 80),
        backend: "one",
        service: "web",
        https: false,
        client_certificate: None,
        trace: None,
        sticky: None,
        close_client: false,
        chosen_in_us: 1234,
    }
}

fn parsed(head: &[u8]) -> Request<'_> {
    match head::request(head, &BOUNDS) {
        Ok(ParseStatus::Complete(request)) => request,
        other => panic!("{other:?}: {}", String::from_utf8_lossy(head)),
    }
}

fn answered(head: &[u8]) -> Response<'_> {
    match head::response(head, &BOUNDS, Method::Get) {
        Ok(ParseStatus::Complete(response)) => response,
        other => panic!("{other:?}: {}", String::from_utf8_lossy(head)),
    }
}

/// The head that goes on for the request `head`; also that it says so if there is a byte too little of room.
fn sent(head: &str, http: &Http, route: &Route, facts: &Facts<'_>) -> String {
    let request = parsed(head.as_bytes());
    let mut out = [0; 20_000];
    let length = request_head(&mut out, &request, http, route, facts).unwrap();
    for room in [0, 1, length / 2, length - 1] {
        assert_eq!(request_head(&mut out[..room], &request, http, route, facts), Err(NoRoom));
    }
    let mut exact = std::vec![0; length];
    assert_eq!(request_head(&mut exact, &request, http, route, facts), Ok(length));
    parsed(&exact);
    String::from_utf8(exact).unwrap()
}

/// The head that goes back for the response `head`, `None` for itself; also that it says so if there is a byte too
/// little of room.
fn returned(head: &str, asked: Version, http: &Http, route: &Route, facts: &Facts<'_>) -> Option<String> {
    let response = answered(head.as_bytes());
    let mut out = [0; 20_000];
    let length = response_head(&mut out, &response, asked, http, route, facts).unwrap()?;
    for room in [0, 1, length / 2, length - 1] {
        assert_eq!(response_head(&mut out[..room], &response, asked, http, route, facts), Err(NoRoom));
    }
    let mut exact = std::vec![0; length];
    assert_eq!(response_head(&mut exact, &response, asked, http, route, facts), Ok(Some(length)));
    answered(&exact);
    Some(String::from_utf8(exact).unwrap())
}

fn edits(remove: &[&str], set: &[(&str, &str)], add: &[(&str, &str)]) -> HeadEdits {
    let fields = |fields: &[(&str, &str)]| -> Box<[Field]> {
        fields.iter().map(|(name, value)| Field::parse(name, value).unwrap()).collect()
    };
    HeadEdits {
        remove: remove.iter().map(|name| Field::parse_removed(name).unwrap()).collect(),
        set: fields(set),
        add: fields(add),
    }
}

#[test]
fn values_are_text_and_variables() {
    let pieces = |text: &str| FieldValue::parse(text).map(|value| value.pieces().to_vec());
    let plain = |text: &str| ValuePiece::Text(text.as_bytes().into());
    assert_eq!(pieces(""), Ok(Vec::new()));
    assert_eq!(pieces("a b"), Ok([plain("a b")].into()));
    assert_eq!(
        pieces("{client_ip}:{client_port}"),
        Ok([ValuePiece::Variable(Variable::ClientIp), plain(":"), ValuePiece::Variable(Variable::ClientPort)].into())
    );
    assert_eq!(pieces("a{{b}}{{{host}"), Ok([plain("a{b}{"), ValuePiece::Variable(Variable::Host)].into()));
    for bad in ["{", "}", "a{b", "{unknown}", "{}", "{host", "a}b", "a\r\nb", "a\nb", "\0", "ä", "\u{7f}"] {
        assert!(pieces(bad).is_err(), "{bad:?}");
    }
    assert!(pieces(&"a".repeat(5000)).is_err());
    for (name, variable) in Variable::ALL {
        assert_eq!(Variable::named(name.as_bytes()), Some(variable));
    }
}

#[test]
fn fields_that_frame_a_message_cannot_be_edited() {
    for name in
        ["Content-Length", "transfer-encoding", "Connection", "TE", "Upgrade", "Expect", "", "a b", "a:", "a\r\n"]
    {
        assert!(Field::parse(name, "x").is_err() && Field::parse_removed(name).is_err(), "{name:?}");
    }
    assert!(Field::parse("Host", "a").is_ok() && Field::parse_removed("host").is_err());
    assert!(Field::parse("X", "{path}").is_ok() && Field::parse_response("X", "{path}").is_err());
    assert!(Field::parse_response("X", "{client_ip} {backend}").is_ok());
    assert_eq!(&*Field::parse_removed("X-Powered-By").unwrap(), b"x-powered-by");
    assert_eq!(Field::parse("X", "  a ").unwrap(), Field::parse("X", "a").unwrap());
}

#[test]
fn locations_are_checked() {
    assert!(location("https://{host}{path}{query}").is_ok() && location("/new").is_ok());
    for bad in ["", "a b", "https://{client_ip}/", "{", "/a\r\nX: y", "https://{method}"] {
        assert!(location(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn the_sticky_cookie_is_found_among_others() {
    let sticky = Sticky::parse("lb", "Path=/; HttpOnly").unwrap();
    let value = |cookies: &str| {
        let head = std::format!("GET / HTTP/1.1\r\nHost: a\r\n{cookies}\r\n");
        sticky_value(&parsed(head.as_bytes()), &sticky)
    };
    assert_eq!(value("Cookie: lb=0123456789abcdef\r\n"), Some(0x0123_4567_89ab_cdef));
    assert_eq!(value("Cookie: a=b;lb=FFFFFFFFFFFFFFFF ; c\r\n"), Some(u64::MAX));
    assert_eq!(value("Cookie: a=b\r\ncookie: c; lb=0000000000000001\r\n"), Some(1));
    assert_eq!(value("Cookie: lb=junk; lb=0000000000000002\r\n"), Some(2));
    for none in [
        "",
        "Cookie: \r\n",
        "Cookie: lb\r\n",
        "Cookie: lb=\r\n",
        "Cookie: lb=012345678\r\n",
        "Cookie: lb=00000000000000011\r\n",
        "Cookie: lb=000000000000000g\r\n",
        "Cookie: lb=+000000000000001\r\n",
        "Cookie: LB=0000000000000001\r\n",
        "Cookie: xlb=0000000000000001\r\n",
        "Cookie: lb=0000000000000001x\r\n",
        "X: lb=0000000000000001\r\n",
    ] {
        assert_eq!(value(none), None, "{none}");
    }
    assert_eq!(&*sticky.attributes, b"; Path=/; HttpOnly");
    assert_eq!(&*Sticky::parse("lb", "").unwrap().attributes, b"");
    assert!(
        Sticky::parse("l b", "").is_err() && Sticky::parse("", "").is_err() && Sticky::parse("a", "b\r\nc").is_err()
    );
}
