use super::*;
use core::net::{IpAddr, Ipv6Addr};

fn get(fields: &str) -> String {
    std::format!("GET /a?b HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n")
}

#[test]
fn an_ordinary_request_stays_what_it_is() {
    let head = get("Accept: */*\r\nUser-Agent:curl\r\nX-Empty:\r\n");
    let expected = get("Accept: */*\r\nUser-Agent: curl\r\nX-Empty: \r\n");
    assert_eq!(sent(&head, &plain(), &route(), &facts()), expected);
}

#[test]
fn targets_become_origin_form_with_one_host() {
    for (line, expected) in [
        ("GET http://b.example:81/x?y HTTP/1.1\r\nHost: a.example\r\n", "GET /x?y HTTP/1.1\r\nHost: b.example:81\r\n"),
        ("GET http://b.example HTTP/1.1\r\nHost: a.example\r\n", "GET / HTTP/1.1\r\nHost: b.example\r\n"),
        ("GET http://b.example?q HTTP/1.1\r\nHost: a.example\r\n", "GET /?q HTTP/1.1\r\nHost: b.example\r\n"),
        ("GET http://b.example/ HTTP/1.0\r\n", "GET / HTTP/1.0\r\nHost: b.example\r\n"),
        ("OPTIONS * HTTP/1.1\r\nHost: a.example\r\n", "OPTIONS * HTTP/1.1\r\nHost: a.example\r\n"),
        ("OPTIONS http://b.example HTTP/1.1\r\nHost: a\r\n", "OPTIONS * HTTP/1.1\r\nHost: b.example\r\n"),
        ("CONNECT c.example:443 HTTP/1.1\r\nHost: a\r\n", "CONNECT c.example:443 HTTP/1.1\r\nHost: c.example:443\r\n"),
        ("\r\nGET /../%61// HTTP/1.1\r\nHost: a\r\n", "GET /../%61// HTTP/1.1\r\nHost: a\r\n"),
        ("GET / HTTP/1.0\r\n", "GET / HTTP/1.0\r\n"),
        ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n"),
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n", "GET / HTTP/1.1\r\nHost: a\r\n"),
    ] {
        let head = std::format!("{line}\r\n");
        assert_eq!(sent(&head, &plain(), &route(), &facts()), std::format!("{expected}\r\n"), "{line}");
    }
}

#[test]
fn fields_for_one_hop_do_not_go_on() {
    let head = get(
        "Connection: close, X-Hop , x-other, Keep-Alive\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n\
         X-Hop: 1\r\nX-OTHER: 2\r\nTE: trailers\r\nX-Stays: 3\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\
         Expect: 100-continue\r\n",
    );
    let expected = get("X-Stays: 3\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\nExpect: 100-continue\r\n");
    assert_eq!(sent(&head, &plain(), &route(), &facts()), expected);
    let head = get("Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n");
    assert_eq!(sent(&head, &plain(), &route(), &facts()), get("Transfer-Encoding: chunked\r\n"));
}

#[test]
fn max_forwards_counts_down_on_trace_and_options() {
    let sent = |method: &str, value: &str| {
        let head = std::format!("{method} / HTTP/1.1\r\nHost: a\r\nMax-forwards: {value}\r\nX: y\r\n\r\n");
        sent(&head, &plain(), &route(), &facts())
    };
    for method in ["TRACE", "OPTIONS"] {
        let counted = |value| std::format!("{method} / HTTP/1.1\r\nHost: a\r\nX: y\r\nMax-Forwards: {value}\r\n\r\n");
        assert_eq!(sent(method, "5"), counted("4"));
        assert_eq!(sent(method, "007"), counted("6"));
        assert_eq!(sent(method, &"9".repeat(30)), counted("18446744073709551614"));
    }
    assert!(sent("GET", "0").contains("\r\nMax-forwards: 0\r\n"));
}

#[test]
fn upgrades_are_asked_for_where_allowed() {
    let head = get("Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n");
    let expected = get("Upgrade: websocket\r\nSec-WebSocket-Key: x\r\nConnection: upgrade\r\n");
    assert_eq!(sent(&head, &plain(), &route(), &facts()), expected);
    let no = Http { upgrade: false, ..plain() };
    assert_eq!(sent(&head, &no, &route(), &facts()), get("Sec-WebSocket-Key: x\r\n"));
    let h2c = get("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n");
    assert_eq!(sent(&h2c, &plain(), &route(), &facts()), get(""), "not a tunnel for HTTP/2");
    assert_eq!(sent(&get("Upgrade: websocket\r\n"), &plain(), &route(), &facts()), get(""), "not without Connection");
}

fn telling() -> Http {
    let forwarded = Forwarded {
        x_for: true,
        x_proto: true,
        x_host: true,
        x_real_ip: true,
        standard: true,
        trusted: Box::default(),
    };
    Http { forwarded, ..plain() }
}

const LIES: &str = "X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\n\
                    X-Real-IP: 10.0.0.2\r\nForwarded: for=10.0.0.3\r\n";

#[test]
fn what_a_client_says_of_itself_is_replaced() {
    let truth = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a.example\r\n\
                 X-Real-IP: 192.0.2.7\r\nForwarded: for=192.0.2.7;host=a.example;proto=http\r\n";
    let disguised =
        "X_Forwarded_For: 1\r\nx-forwarded_for: 2\r\nX_Real-IP: 3\r\nx-FORWARDED-port: 4\r\nForwarded: 5\r\n";
    let dotted =
        "X.Forwarded.For: 1\r\nx~forwarded+for: 2\r\nX|Real^IP: 3\r\nx'FORWARDED`port: 4\r\nX-Forwarded.For: 5\r\n";
    for lies in ["", LIES, disguised, dotted] {
        assert_eq!(sent(&get(lies), &telling(), &route(), &facts()), get(truth), "{lies}");
        assert_eq!(sent(&get(lies), &plain(), &route(), &facts()), get(""), "{lies}");
    }
    let others = "X-Forward: 1\r\nForwarded-By: 2\r\nX-Real: 3\r\n";
    assert_eq!(sent(&get(others), &plain(), &route(), &facts()), get(others));
}

#[test]
fn what_a_trusted_proxy_says_is_added_to() {
    let mut http = telling();
    let network = Network { address: IpAddr::from([192, 0, 2, 0]).into(), prefix: 96 + 24 };
    http.forwarded.trusted = [network].into();
    let truth = "X-Forwarded-For: 10.0.0.1, 10.0.0.9, 192.0.2.7\r\nX-Forwarded-Proto: https\r\n\
                 X-Forwarded-Host: evil\r\nX-Real-IP: 10.0.0.2\r\n\
                 Forwarded: for=10.0.0.3, for=192.0.2.7;host=a.example;proto=http\r\n";
    let said = std::format!("{LIES}X-Forwarded-For:\r\nX-Forwarded-For: 10.0.0.9\r\nX_Forwarded_For: 10.0.0.8\r\n");
    assert_eq!(sent(&get(&said), &http, &route(), &facts()), get(truth));
    let kept = std::format!("X-Forwarded-Port: 443\r\n{LIES}");
    http.forwarded = Forwarded { trusted: http.forwarded.trusted, ..Forwarded::default() };
    assert_eq!(sent(&get(&kept), &http, &route(), &facts()), get(&kept));
}

#[test]
fn forwarded_quotes_ipv6_and_unusual_hosts() {
    let client = Endpoint::new(IpAddr::from("2001:db8::7".parse::<Ipv6Addr>().unwrap()), 1);
    let facts = Facts { client, https: true, ..facts() };
    let head = "GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n";
    let expected = "GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\nX-Forwarded-For: 2001:db8::7\r\n\
                    X-Forwarded-Proto: https\r\nX-Forwarded-Host: [2001:db8::1]:80\r\nX-Real-IP: 2001:db8::7\r\n\
                    Forwarded: for=\"[2001:db8::7]\";host=\"[2001:db8::1]:80\";proto=https\r\n\r\n";
    assert_eq!(sent(head, &telling(), &route(), &facts), expected);
    let head = "GET / HTTP/1.0\r\n\r\n";
    let expected = "GET / HTTP/1.0\r\nX-Forwarded-For: 2001:db8::7\r\nX-Forwarded-Proto: https\r\n\
                    X-Real-IP: 2001:db8::7\r\nForwarded: for=\"[2001:db8::7]\";proto=https\r\n\r\n";
    assert_eq!(sent(head, &telling(), &route(), &facts), expected);
}

#[test]
fn edits_act_in_their_order() {
    let mut http = telling();
    http.edits.request = edits(
        &["x-gone", "forwarded"],
        &[("X-Set", "{client_ip}"), ("X-Set", "last"), ("X-Later", "service"), ("X-Real-IP", "me")],
        &[("X-Add", "1"), ("X-Taken", "1"), ("X-Replaced", "1")],
    );
    let mut route = route();
    route.edits.request =
        edits(&["x-taken", "x-forwarded-host"], &[("X-Later", "route"), ("X-Replaced", "2")], &[("X-Add", "2")]);
    let head = get("X-Gone: 0\r\nX_SET: 0\r\nX-Set: 0\r\nX-Add: 0\r\nX-Taken: 0\r\nx_taken: 0\r\nX-Free: 0\r\n");
    let expected =
        get("X-Add: 0\r\nX-Free: 0\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\nX-Set: last\r\n\
         X-Real-IP: me\r\nX-Add: 1\r\nX-Later: route\r\nX-Replaced: 2\r\nX-Add: 2\r\n");
    assert_eq!(sent(&head, &http, &route, &facts()), expected);
}

#[test]
fn there_is_one_host_whatever_sets_it() {
    let mut route = route();
    let head = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    route.edits.request = edits(&[], &[("host", "{backend}.internal")], &[]);
    assert_eq!(sent(head, &plain(), &route, &facts()), "GET / HTTP/1.1\r\nHost: one.internal\r\n\r\n");
    route.edits.request = edits(&[], &[], &[("Host", "b")]);
    let mut http = plain();
    http.edits.request = edits(&[], &[("Host", "c")], &[]);
    assert_eq!(sent(head, &http, &route, &facts()), "GET / HTTP/1.1\r\nHost: b\r\n\r\n");
    let old = "GET / HTTP/1.0\r\n\r\n";
    assert_eq!(sent(old, &http, &super::route(), &facts()), "GET / HTTP/1.0\r\nHost: c\r\n\r\n");
}

#[test]
fn variables_say_what_they_name() {
    let mut route = route();
    let all = "{client_ip} {client_port} {vip} {vip_port} {scheme} {service} {backend} {host} {authority} \
               {method} {path} {query}";
    route.edits.request = edits(&[], &[], &[("X", all)]);
    let head = "PURGE /a%20b?c=d HTTP/1.1\r\nHost: A.example.:8080\r\n\r\n";
    let facts = Facts { service: "we\"b\r\nX: y", ..facts() };
    let expected = "PURGE /a%20b?c=d HTTP/1.1\r\nHost: A.example.:8080\r\n\
                    X: 192.0.2.7 40000 198.51.100.1 80 http we_b__X: y one A.example \
                    A.example.:8080 PURGE /a%20b ?c=d\r\n\r\n";
    assert_eq!(sent(head, &plain(), &route, &facts), expected);
}

#[test]
fn client_certificate_replaces_what_the_client_says() {
    let mut http = plain();
    let said = [("X-Dn", "{client_subject}"), ("X-Print", "{client_fingerprint}"), ("X-Verify", "{client_verify}")];
    http.edits.request = edits(&[], &said, &[]);
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX-Dn: CN=root\r\nx_print: 00\r\nX.Verify: SUCCESS\r\n\r\n";
    let certificate = ClientCertificate { subject: b"CN=a\r\nX: y,O=\xc3\xa9", fingerprint: b"12ab" };
    let shown = Facts { https: true, client_certificate: Some(certificate), ..facts() };
    assert_eq!(
        sent(head, &http, &route(), &shown),
        "GET / HTTP/1.1\r\nHost: a\r\nX-Dn: CN=a__X: y,O=__\r\nX-Print: 12ab\r\nX-Verify: SUCCESS\r\n\r\n"
    );
    assert_eq!(sent(head, &http, &route(), &facts()), "GET / HTTP/1.1\r\nHost: a\r\nX-Verify: NONE\r\n\r\n");
}

#[test]
fn field_whose_variables_are_all_empty_is_left_out() {
    let mut route = route();
    let blank = [("X-A", "{client_subject} {query}"), ("X-B", "<{client_subject}>"), ("X-C", ""), ("X-D", "{backend}")];
    route.edits.request = edits(&[], &blank, &[("X-E", "{client_fingerprint}")]);
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX-A: mine\r\n\r\n";
    let facts = Facts { backend: "", ..facts() };
    assert_eq!(sent(head, &plain(), &route, &facts), "GET / HTTP/1.1\r\nHost: a\r\nX-B: <>\r\nX-C: \r\n\r\n");
}

#[test]
fn prefixes_are_replaced() {
    for (pattern, prefix, asked, expected) in [
        (PathPattern::prefix("/api/"), "/v2/", "/api/x?q", "/v2/x?q"),
        (PathPattern::prefix("/api/"), "/v2", "/api/x", "/v2/x"),
        (PathPattern::prefix("/api/"), "/", "/api/x", "/x"),
        (PathPattern::prefix("/api/"), "/v2", "/api/", "/v2/"),
        (PathPattern::prefix("/api"), "/", "/api", "/"),
        (PathPattern::prefix("/api"), "/", "/api/x", "/x"),
        (PathPattern::prefix("/api"), "/", "/apix", "/x"),
        (PathPattern::prefix("/api"), "/v2/", "/api/x", "/v2/x"),
        (PathPattern::prefix("/api"), "/v2", "/apix", "/v2x"),
        (PathPattern::prefix("/"), "/v2/", "/x", "/v2/x"),
        (PathPattern::exact("/api"), "/v2", "/api?q", "/v2?q"),
        (PathPattern::prefix("/api/"), "/v2/", "/x/../%61pi/%7eb%2fc", "/v2/~b%2Fc"),
        (PathPattern::prefix("/api/"), "/v2/", "http://h/api/x", "/v2/x"),
        (PathPattern::prefix("/api/"), "/v2/", "/api//admin", "/v2//admin"),
        (PathPattern::prefix("/api/"), "/v2", "/api//admin/", "/v2//admin/"),
        (PathPattern::prefix("/api"), "/v2", "//api//a///b", "/v2//a///b"),
        (PathPattern::prefix("/api"), "/", "/api//evil.example/", "/evil.example/"),
        (PathPattern::prefix("/"), "/v2/", "//x", "/v2//x"),
        (PathPattern::exact("/api"), "/v2", "//api", "/v2"),
        (PathPattern::regex("^/api"), "/v2/", "/api/%61", "/api/%61"),
    ] {
        let mut route = route();
        route.conditions.paths = [pattern.unwrap()].into();
        route.action = Action::Forward { groups: [(0, 1)].into(), replace_prefix: Some(prefix.as_bytes().into()) };
        let head = std::format!("GET {asked} HTTP/1.1\r\nHost: h\r\n\r\n");
        let expected = std::format!("GET {expected} HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(sent(&head, &plain(), &route, &facts()), expected, "{asked}");
    }
}

#[test]
fn marks_are_written_once_and_belong_to_the_trace() {
    use super::super::super::trace::{IdMaker, Parents, RequestId, SAMPLE_ALL, TraceContext, Tracing};
    let said = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate: a=b\r\n\
                X_Request_Id: disguised\r\nX-Request-ID: theirs\r\n";
    let id = RequestId { name: (*b"X-Request-Id").into(), lower_name: (*b"x-request-id").into() };
    let ids = IdMaker::new(crate::keys::Secret::new([1, 2]), 0).ids(1);
    let marked = |http: &Http, route: &Route| {
        let head = get(said);
        let trace = TraceContext::of(http, &parsed(head.as_bytes()), &facts().client.address, &ids);
        let hex = |octets: &[u8]| octets.iter().map(|octet| std::format!("{octet:02x}")).collect::<String>();
        let (ids, facts) = ((hex(&trace.trace), hex(&trace.span)), Facts { trace: Some(&trace), ..facts() });
        (sent(&head, http, route, &facts), ids)
    };
    let mut http = Http { request_id: Some(id), ..plain() };
    let (head, (trace, _)) = marked(&http, &route());
    let untouched = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate: a=b\r\n";
    assert_eq!(head, get(&std::format!("{untouched}X-Request-Id: {trace}\r\n")));
    http.tracing = Some(Tracing { parents: Parents::Trusted, sample: SAMPLE_ALL });
    let (head, (trace, span)) = marked(&http, &route());
    assert!(!trace.starts_with("0af7"));
    assert_eq!(head, get(&std::format!("traceparent: 00-{trace}-{span}-01\r\nX-Request-Id: {trace}\r\n")));
    http.tracing = Some(Tracing { parents: Parents::Trusted, sample: 0 });
    assert!(marked(&http, &route()).0.contains(&std::format!("-{span}-00\r\n")));
    http.forwarded.trusted = [Network { address: IpAddr::from([192, 0, 2, 0]).into(), prefix: 96 + 24 }].into();
    let (head, (trace, _)) = marked(&http, &route());
    assert_eq!(trace, "0af7651916cd43dd8448eb211c80319c");
    let expected = std::format!("tracestate: a=b\r\nX-Request-ID: theirs\r\ntraceparent: 00-{trace}-{span}-01\r\n");
    assert_eq!(head, get(&expected));
    // Edits have the last word.
    let mut of_route = route();
    of_route.edits.request = edits(&["x-request-id", "tracestate"], &[("Traceparent", "none")], &[]);
    assert_eq!(marked(&http, &of_route).0, get("Traceparent: none\r\n"));
}
