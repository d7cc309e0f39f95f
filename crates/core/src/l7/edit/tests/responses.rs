use super::*;

const OK: &str = "HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Length: 5\r\n";

fn ok(fields: &str) -> String {
    std::format!("{OK}{fields}\r\n")
}

fn back(head: &str, facts: &Facts<'_>) -> Option<String> {
    returned(head, Version::Http11, &plain(), &route(), facts)
}

#[test]
fn most_responses_go_on_as_they_are() {
    for head in [
        ok(""),
        ok("Connection: keep-alive\r\n"),
        ok("connection: Keep-Alive\r\n"),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n".into(),
        "HTTP/1.1 100 Continue\r\n\r\n".into(),
        "HTTP/1.1 204\r\n\r\n".into(),
        "HTTP/1.1 200 OK\r\n\r\n".into(),
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".into(),
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".into(),
    ] {
        assert_eq!(back(&head, &facts()), None, "{head}");
    }
}

#[test]
fn what_holds_for_one_hop_is_said_anew() {
    let closing = Facts { close_client: true, ..facts() };
    assert_eq!(back(&ok(""), &closing), Some(ok("Connection: close\r\n")));
    assert_eq!(back(&ok("Connection: keep-alive\r\n"), &closing), Some(ok("Connection: close\r\n")));
    assert_eq!(back(&ok("Connection: close\r\n"), &closing), None);
    for dropped in [
        "Connection: close\r\n",
        "Keep-Alive: timeout=5\r\nConnection: Keep-Alive\r\n",
        "Connection: keep-alive\r\nConnection: keep-alive\r\n",
        "Connection: upgrade, x-hop\r\nUpgrade: h2,h2c\r\nX-Hop: 1\r\n",
        "Proxy-Connection: keep-alive\r\n",
        "TE: trailers\r\n",
    ] {
        assert_eq!(back(&ok(dropped), &facts()), Some(ok("")), "{dropped}");
    }
    let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n";
    assert_eq!(
        back(&std::format!("{switch}Connection: keep-alive, Upgrade\r\n\r\n"), &closing),
        Some(std::format!("{switch}Connection: upgrade\r\n\r\n"))
    );
}

#[test]
fn contradictory_framing_is_rewritten() {
    for (head, expected) in [
        ("200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n", "200 OK\r\nContent-Length: 5\r\n"),
        ("200 OK\r\nContent-Length: 5, 5\r\nA: b\r\n", "200 OK\r\nA: b\r\nContent-Length: 5\r\n"),
        ("204 No\r\nContent-Length: 5\r\n", "204 No\r\n"),
        ("204 No\r\nTransfer-Encoding: chunked\r\n", "204 No\r\n"),
        ("200 OK\r\nTransfer-Encoding: Identity\r\nContent-Length: 5\r\n", "200 OK\r\nContent-Length: 5\r\n"),
        ("200 OK\r\nTransfer-Encoding: identity\r\n", "200 OK\r\nConnection: close\r\n"),
    ] {
        let head = std::format!("HTTP/1.1 {head}\r\n");
        assert_eq!(back(&head, &facts()), Some(std::format!("HTTP/1.1 {expected}\r\n")), "{head}");
    }
}

#[test]
fn the_version_is_ours() {
    let head = "HTTP/1.0 200 Fine\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\n";
    assert_eq!(back(head, &facts()), Some("HTTP/1.1 200 Fine\r\nContent-Length: 1\r\n\r\n".into()));
    let head = "HTTP/1.0 200 OK\r\nServer: SimpleHTTP\r\n\r\n";
    assert_eq!(back(head, &facts()), Some("HTTP/1.1 200 OK\r\nServer: SimpleHTTP\r\nConnection: close\r\n\r\n".into()));
}

#[test]
fn http_1_0_keep_alive_is_confirmed() {
    let back = |head: &str, facts: &Facts<'_>| returned(head, Version::Http10, &plain(), &route(), facts);
    assert_eq!(back(&ok(""), &facts()), Some(ok("Connection: keep-alive\r\n")));
    assert_eq!(back(&ok("Connection: keep-alive\r\n"), &facts()), None);
    let closing = Facts { close_client: true, ..facts() };
    assert_eq!(back(&ok("Connection: keep-alive\r\n"), &closing), Some(ok("Connection: close\r\n")));
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert!(!can_go_to(&answered(chunked.as_bytes()), Version::Http10));
    assert!(can_go_to(&answered(chunked.as_bytes()), Version::Http11));
    assert!(can_go_to(&answered(OK.replace("Server", "\r\nX").split("X").next().unwrap().as_bytes()), Version::Http10));
}

#[test]
fn cookies_times_and_edits_are_written() {
    let mut http = plain();
    http.sticky = Some(Sticky::parse("lb", "Path=/; HttpOnly").unwrap());
    let facts = Facts { sticky: Some(0xab), ..facts() };
    let cookie = "Set-Cookie: lb=00000000000000ab; Path=/; HttpOnly\r\n";
    let back = |head: &str, http: &Http, route: &Route| returned(head, Version::Http11, http, route, &facts);
    assert_eq!(back(&ok("Set-Cookie: a=b\r\n"), &http, &route()), Some(ok(&["Set-Cookie: a=b\r\n", cookie].concat())));
    assert_eq!(returned(&ok(""), Version::Http11, &http, &route(), &super::facts()), None, "no value, no cookie");
    http.server_timing = true;
    http.edits.response = edits(&["server"], &[("X-Frame-Options", "DENY"), ("X-By", "{backend}")], &[]);
    let mut route = route();
    route.edits.response = edits(&[], &[], &[("X-By", "{client_ip}:{client_port}"), ("Set-Cookie", "c=d")]);
    let expected = std::format!(
        "HTTP/1.1 404 \r\nContent-Length: 5\r\n{cookie}Server-Timing: hairpin;desc=\"one\";dur=1.234\r\n\
         X-Frame-Options: DENY\r\nX-By: one\r\nX-By: 192.0.2.7:40000\r\nSet-Cookie: c=d\r\n\r\n"
    );
    let head =
        "HTTP/1.1 404\r\nServer: x\r\nx-frame-options: ALLOW\r\nX_Frame_Options: ALLOW\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(back(head, &http, &route), Some(expected));
    assert_eq!(back("HTTP/1.1 103 Early Hints\r\nServer: x\r\nLink: y\r\n\r\n", &http, &route), None, "interim");
    let dropped = back("HTTP/1.1 103 Early Hints\r\nKeep-Alive: x\r\nLink: y\r\n\r\n", &http, &route);
    assert_eq!(dropped.as_deref(), Some("HTTP/1.1 103 Early Hints\r\nLink: y\r\n\r\n"));
    let switched = back("HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", &http, &route).unwrap();
    assert!(switched.contains(cookie) && switched.contains("\r\nConnection: upgrade\r\n"));
}

#[test]
fn times_have_three_decimals() {
    let http = Http { server_timing: true, ..plain() };
    for (us, expected) in [(0, "0.000"), (7, "0.007"), (89, "0.089"), (999, "0.999"), (u32::MAX, "4294967.295")] {
        let facts = Facts { chosen_in_us: us, backend: "b\"\r\n", ..facts() };
        let head = returned(&ok(""), Version::Http11, &http, &route(), &facts);
        assert_eq!(head, Some(ok(&std::format!("Server-Timing: hairpin;desc=\"b___\";dur={expected}\r\n"))));
    }
}
