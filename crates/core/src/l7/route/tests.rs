use super::super::config::{Action, Edits, Forwarded, HttpLimits};
use super::super::head::{self, Bounds, ParseStatus};
use super::normal::PATH_BYTES_MAX;
use super::path::Regex;
use super::*;
use core::net::IpAddr;
use proptest::prelude::*;
use std::string::String;
use std::vec::Vec;
use std::{format, vec};

mod readings;

const BOUNDS: Bounds = Bounds { bytes_max: 16_384, fields_max: 128, target_bytes_max: 12_000 };

fn normal(path: &str) -> Result<String, Odd> {
    let mut scratch = PathScratch::new();
    normalise(path.as_bytes(), PathReading::WRITTEN, &mut scratch).map(|path| String::from_utf8(path.to_vec()).unwrap())
}

#[test]
fn paths_are_normalised_as_rfc_3986_says() {
    for (written, expected) in [
        ("/", "/"),
        ("*", "*"),
        ("", ""),
        ("/a/b.html", "/a/b.html"),
        ("/a/", "/a/"),
        ("/a/./b", "/a/b"),
        ("/a/b/.", "/a/b/"),
        ("/a/../b", "/b"),
        ("/a/b/..", "/a/"),
        ("/a/b/../..", "/"),
        ("/a/b/c/./../../g", "/a/g"),
        ("/..a/...", "/..a/..."),
        ("/.a/b./", "/.a/b./"),
        ("/%61dmin", "/admin"),
        ("/%41%5a%7e%2d%5F", "/AZ~-_"),
        ("/a/%2e%2E/b", "/b"),
        ("/a/.%2e/b", "/b"),
        ("/a/%2e/b", "/a/b"),
        ("/a%2fb%3f", "/a%2Fb%3F"),
        ("/a%5cb", "/a%5Cb"),
        ("/a..%2Fb", "/a..%2Fb"),
        ("/%252e%252e/a", "/%252e%252e/a"),
        ("/%e4/\u{7e}", "/%E4/~"),
        ("//a", "/a"),
        ("//", "/"),
        ("/a//", "/a/"),
        ("/a///b", "/a/b"),
        ("/a;b=../c", "/a;b=../c"),
        ("/a/;x", "/a/;x"),
    ] {
        assert_eq!(normal(written).as_deref(), Ok(expected), "{written}");
    }
}

#[test]
fn paths_that_can_be_read_in_two_ways_are_refused() {
    for written in [
        "/..",
        "/../a",
        "/a/../..",
        "/%2e%2e/a",
        "/a//../b",
        "/a/..//b",
        "//..",
        "/%",
        "/%4",
        "/%zz",
        "/a%0",
        "/a%00b",
        "/%00",
        "/a\\b",
        "/a/..%2fb",
        "/a/..%5Cb",
        "/a%2f..%2fb",
        "/a%2F..",
        "/a%2F%2e/b",
        "/a/..;/b",
        "/a/.;x/b",
        "/a%2F..;/b",
    ] {
        assert_eq!(normal(written), Err(Odd::Ambiguous), "{written}");
    }
    assert_eq!(Odd::Ambiguous.status(), 400);
}

#[test]
fn encoded_slashes_are_also_read_as_slashes() {
    let decoded = |path: &str| {
        let mut scratch = PathScratch::new();
        let reading = PathReading { decodes_slashes: true, ..PathReading::WRITTEN };
        normalise(path.as_bytes(), reading, &mut scratch).map(|path| String::from_utf8(path.to_vec()).unwrap())
    };
    assert_eq!(decoded("/a%2fb%5Cc%2F/d"), Ok("/a/b/c/d".into()));
    assert_eq!(decoded("/a%2F..%2Fb"), Ok("/b".into()));
    let readings = |path: &[u8]| PathReading::others(path).count();
    assert_eq!([&b"/a%2f"[..], b"%5C", b"/a%2", b"/;a", b"/%3b", b"/;%2f"].map(readings), [1, 1, 0, 1, 1, 3]);
}

#[test]
fn path_too_long_is_refused() {
    let long = format!("/{}", "a".repeat(PATH_BYTES_MAX - 1));
    assert_eq!(normal(&long), Ok(long.clone()));
    assert_eq!(normal(&long.replacen('a', "%61", 1)), Ok(long.clone()));
    assert_eq!(normal(&format!("{long}a")), Err(Odd::TooLong));
    assert_eq!(normal(&format!("/%62{long}")), Err(Odd::TooLong));
    assert_eq!(Odd::TooLong.status(), 414);
}

proptest! {
    #[test]
    fn a_normalised_path_stays_as_it_is(path in "/(\\.{0,2}/?|[a-c;]{1,2}|%2[EFf]|%6[1-3]|%5c|/){0,8}") {
        if let Ok(once) = normal(&path) {
            prop_assert_eq!(normal(&once), Ok(once.clone()));
            prop_assert!(once.starts_with('/') && !once.contains("//"));
            prop_assert!(!once.split('/').any(|segment| segment == "." || segment == ".."));
        }
    }

    /// However a path is disguised by encodings and detours, it is found.
    #[test]
    fn disguises_are_seen_through(
        segments in prop::collection::vec("[a-zA-Z0-9_~-]{1,5}", 1..5),
        detours in prop::collection::vec(0..5u8, 5),
        encoded in prop::collection::vec(any::<(bool, bool)>(), 64),
    ) {
        let plain: String = segments.iter().map(|segment| format!("/{segment}")).collect();
        let mut disguised = String::new();
        let mut encoded = encoded.into_iter().cycle();
        for (segment, detour) in segments.iter().zip(detours) {
            disguised += ["", "/.", "/x/..", "/%2e", "/y/%2E."][usize::from(detour)];
            disguised += "/";
            for byte in segment.bytes() {
                match encoded.next().unwrap() {
                    (true, true) => disguised += &format!("%{byte:02X}"),
                    (true, false) => disguised += &format!("%{byte:02x}"),
                    _ => disguised.push(char::from(byte)),
                }
            }
        }
        prop_assert_eq!(normal(&disguised), Ok(plain));
    }

    #[test]
    fn nothing_panics(path in prop::collection::vec(any::<u8>(), 0..64), (slash, parameters, empty) in any::<(bool, bool, bool)>()) {
        let reading = PathReading { decodes_slashes: slash, drops_parameters: parameters, keeps_empty: empty };
        let _ = normalise(&path, reading, &mut PathScratch::new());
    }
}

#[test]
fn hosts_are_names_wildcards_and_addresses() {
    let exact = |name: &str| Ok(HostPattern::Exact(name.as_bytes().into()));
    assert_eq!(HostPattern::parse("Example.ORG."), exact("example.org"));
    assert_eq!(HostPattern::parse("[2001:DB8::1]"), exact("[2001:db8::1]"));
    assert_eq!(HostPattern::parse("*.example.org"), Ok(HostPattern::Suffix(b".example.org"[..].into())));
    for bad in
        ["", "*", "*example.org", "a.*.org", "example.org:80", "2001:db8::1", "[::1", "*.[::1]", "a..b", "ä.de", "."]
    {
        assert!(HostPattern::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn hosts_match_in_any_case_without_port_and_dot() {
    let matches = |pattern: &str, host: &str| HostPattern::parse(pattern).unwrap().matches(host::name(host.as_bytes()));
    for host in ["example.org", "EXAMPLE.org", "example.org:8080", "example.org.", "example.org.:80"] {
        assert!(matches("example.org", host), "{host}");
        assert!(!matches("*.example.org", host), "{host}");
    }
    assert!(matches("*.example.org", "a.example.org") && matches("*.example.org", "b.A.Example.Org:1"));
    assert!(!matches("*.example.org", ".example.org") && !matches("*.example.org", "aexample.org"));
    assert!(matches("[2001:db8::1]", "[2001:DB8::1]:443") && !matches("example.org", "example.org.evil.net"));
}

#[test]
fn path_patterns_are_exact_prefixes_and_expressions() {
    let matches = |pattern: Result<PathPattern, &str>, path: &str| pattern.unwrap().matches(path.as_bytes());
    assert!(matches(PathPattern::exact("/a"), "/a") && !matches(PathPattern::exact("/a"), "/a/"));
    assert!(matches(PathPattern::prefix("/api"), "/apist") && !matches(PathPattern::prefix("/api/"), "/api"));
    assert!(matches(PathPattern::regex(r"\.(png|jpg)$"), "/x/a.jpg"));
    assert!(!matches(PathPattern::regex(r"\.(png|jpg)$"), "/x/a.jpg/b"));
    assert!(matches(PathPattern::regex(r"(?i)^/USER/\d+"), "/user/17/x"));
    assert!(!matches(PathPattern::regex(r"^/user/\d+$"), "/a/user/17"));
    assert!(
        matches(PathPattern::regex(r"\badmin\b"), "/x/admin/y")
            && !matches(PathPattern::regex(r"\badmin\b"), "/administer")
    );
    assert_eq!(PathPattern::exact("/%7euser"), Ok(PathPattern::Exact(b"/~user"[..].into())));
    for bad in ["", "a", "/a?b", "/a b", "/a//b", "/a/../b", "/a/./b", "/a/..", "/%4", "/%00", "/a\\b", "/ä"] {
        assert!(PathPattern::prefix(bad).is_err() && PathPattern::exact(bad).is_err(), "{bad}");
    }
    assert!(PathPattern::prefix("/a/").is_ok() && PathPattern::prefix("/.well-known/").is_ok());
}

#[test]
fn expressions_are_bounded() {
    for bad in ["", "(", "[z-a]", r"(a)\1", &"a".repeat(2000)] {
        assert!(PathPattern::regex(bad).is_err(), "{bad}");
    }
    let huge = PathPattern::regex("(?:[ab]*a[ab]{100}c){40}").unwrap_err();
    assert!(huge.contains("automaton"), "{huge}");
    let regex = Regex::new("^/a$").unwrap();
    assert_eq!((regex.as_str(), format!("{regex:?}")), ("^/a$", "\"^/a$\"".into()));
    assert_eq!(regex, Regex::new("^/a$").unwrap());
    assert_ne!(regex, Regex::new("^/b$").unwrap());
}

/// A service without edits that has these access rules and, in order, a route for each of these conditions.
fn service(access: Vec<Access>, routes: Vec<Conditions>) -> Http {
    let route = |(at, conditions)| Route {
        conditions,
        action: Action::Reply { status: 200, body: [at as u8].into() },
        edits: Edits::default(),
        terms: crate::l7::config::RouteTerms::default(),
    };
    Http {
        answers: Default::default(),
        access: access.into(),
        routes: routes.into_iter().enumerate().map(route).collect(),
        edits: Edits::default(),
        forwarded: Forwarded::default(),
        sticky: None,
        request_id: None,
        tracing: None,
        server_timing: false,
        upgrade: true,
        connect: false,
        proxy_protocol: None,
        reuse: true,
        limits: HttpLimits::default(),
        offload_bytes_min: None,
        timestamps: true,
    }
}

/// The decision for the request `head` from `client`: the number of its route, or a status.
fn outcome(http: &Http, head: &str, client: &str) -> Result<u8, u16> {
    let Ok(ParseStatus::Complete(request)) = head::request(head.as_bytes(), &BOUNDS) else {
        panic!("not a head: {head}")
    };
    match decide(http, &request, &client.parse::<IpAddr>().unwrap().into()) {
        Decision::Take(Route { action: Action::Reply { body, .. }, .. }) => Ok(body[0]),
        Decision::Take(route) => panic!("{route:?}"),
        Decision::Deny { status } => Err(status),
        Decision::NotFound => Err(404),
    }
}

fn get(http: &Http, path: &str) -> Result<u8, u16> {
    outcome(http, &format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n\r\n"), "192.0.2.1")
}

fn prefix(text: &str) -> Conditions {
    Conditions { paths: [PathPattern::prefix(text).unwrap()].into(), ..Conditions::default() }
}

fn host(text: &str) -> Conditions {
    Conditions { hosts: [HostPattern::parse(text).unwrap()].into(), ..Conditions::default() }
}

fn header(name: &str, test: Test) -> Conditions {
    Conditions { headers: [Named { name: name.as_bytes().into(), test }].into(), ..Conditions::default() }
}

fn query(name: &str, test: Test) -> Conditions {
    Conditions { queries: [Named { name: name.as_bytes().into(), test }].into(), ..Conditions::default() }
}

fn network(address: &str, prefix: u8) -> Conditions {
    let address = address.parse::<IpAddr>().unwrap();
    let prefix = if address.is_ipv4() { prefix + 96 } else { prefix };
    Conditions { clients: [Network { address: address.into(), prefix }].into(), ..Conditions::default() }
}

fn text(text: &str) -> Box<[u8]> {
    text.as_bytes().into()
}

#[test]
fn the_first_route_that_fits_is_taken() {
    let http = service(vec![], vec![prefix("/api/v2/"), prefix("/api/"), host("a.example")]);
    assert_eq!(get(&http, "/api/v2/x"), Ok(0));
    assert_eq!(get(&http, "/api/x?y"), Ok(1));
    assert_eq!(get(&http, "/"), Ok(2));
    assert_eq!(outcome(&http, "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n", "::1"), Err(404));
    assert_eq!(outcome(&http, "GET / HTTP/1.0\r\n\r\n", "::1"), Err(404));
    assert_eq!(outcome(&http, "GET http://A.example.:80/ HTTP/1.1\r\nHost: b.example\r\n\r\n", "::1"), Ok(2));
    assert_eq!(get(&http, "/a/%2e./api/x"), Ok(1));
    assert_eq!(get(&http, "/api/%2e%2e%2fx"), Err(400));
    assert_eq!(get(&http, &format!("/{}", "a".repeat(PATH_BYTES_MAX))), Err(414));
}

#[test]
fn route_needs_one_match_of_each_condition_kind() {
    let mut both = Conditions { hosts: host("a.example").hosts, ..prefix("/x") };
    both.paths = ["/x", "/y"].map(|path| PathPattern::prefix(path).unwrap()).into();
    let http = service(vec![], vec![both]);
    assert_eq!(get(&http, "/y"), Ok(0));
    assert_eq!(get(&http, "/z"), Err(404));
    assert_eq!(outcome(&http, "GET /x HTTP/1.1\r\nHost: b.example\r\n\r\n", "::1"), Err(404));
}

#[test]
fn methods_are_compared_as_written_and_get_means_head_too() {
    let methods = |methods: &[&str]| Conditions {
        methods: methods.iter().map(|method| text(method)).collect(),
        ..Conditions::default()
    };
    let http = service(vec![], vec![methods(&["GET"]), methods(&["POST", "PURGE"])]);
    let ask = |method: &str| outcome(&http, &format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"), "::1");
    assert_eq!(["GET", "HEAD", "POST", "PURGE"].map(ask), [Ok(0), Ok(0), Ok(1), Ok(1)]);
    assert_eq!(["get", "PUT", "purge"].map(ask), [Err(404); 3]);
}

#[test]
fn fields_are_present_absent_equal_or_begin_so() {
    let routes = vec![
        header("X-A", Test::Exact(text("1"))),
        header("x-b", Test::Prefix(text("tok"))),
        header("X-C", Test::Present),
        header("X-d", Test::Absent),
    ];
    let http = service(vec![], routes);
    let ask = |fields: &str| outcome(&http, &format!("GET / HTTP/1.1\r\nHost: a\r\nX-D: 1\r\n{fields}\r\n"), "::1");
    assert_eq!(ask("x-a: 1\r\n"), Ok(0));
    assert_eq!(ask("X-A: 2\r\nX-A: 1\r\n"), Ok(0));
    assert_eq!(ask("X-A: 11\r\n"), Err(404));
    assert_eq!(ask("X-B: token\r\n"), Ok(1));
    assert_eq!(ask("X-B: to\r\n"), Err(404));
    assert_eq!(ask("x-c:\r\n"), Ok(2));
    assert_eq!(outcome(&http, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "::1"), Ok(3));
}

#[test]
fn query_parameters_are_compared_as_written() {
    let routes = vec![
        query("a", Test::Exact(text("1"))),
        query("b", Test::Present),
        query("c", Test::Prefix(text("x="))),
        query("d", Test::Absent),
    ];
    let http = service(vec![], routes);
    for (query, expected) in [
        ("?a=1&d", Ok(0)),
        ("?d=2&a=2&a=1", Ok(0)),
        ("?a=12&d", Err(404)),
        ("?%61=1&d", Err(404)),
        ("?aa=1&d", Err(404)),
        ("?d&b", Ok(1)),
        ("?d&b=", Ok(1)),
        ("?d&&c=x=y", Ok(2)),
        ("?d", Err(404)),
        ("?", Ok(3)),
        ("", Ok(3)),
    ] {
        assert_eq!(get(&http, &format!("/{query}")), expected, "{query}");
    }
}

fn allow(conditions: Conditions) -> Access {
    Access { conditions, verdict: AccessVerdict::Allow, strict: false }
}

fn deny(conditions: Conditions) -> Access {
    Access { conditions, verdict: AccessVerdict::Deny { status: 403 }, strict: false }
}

#[test]
fn the_first_access_rule_that_fits_decides() {
    let inside = Conditions { clients: network("10.0.0.0", 8).clients, ..prefix("/admin") };
    let http = service(vec![allow(inside), deny(prefix("/admin")), deny(network("2001:db8::", 32))], vec![prefix("/")]);
    let ask = |path: &str, client: &str| outcome(&http, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"), client);
    assert_eq!(ask("/admin", "10.1.2.3"), Ok(0));
    assert_eq!(ask("/admin", "192.0.2.1"), Err(403));
    assert_eq!(ask("/", "192.0.2.1"), Ok(0));
    assert_eq!(ask("/", "2001:db8::1"), Err(403));
    assert_eq!(ask("/", "2001:db9::1"), Ok(0));
}

#[test]
fn a_guarded_path_cannot_be_reached_by_another_name() {
    let http = service(vec![deny(prefix("/admin"))], vec![prefix("/")]);
    for path in [
        "/admin",
        "/admin/x",
        "/%61dmin",
        "/%61%64%6d%69%6E",
        "/./admin",
        "/x/../admin",
        "/x/%2e%2e/admin",
        "//admin",
        "/x/./..//admin",
        "/%2fadmin",
        "/%2Fadmin",
        "/%5cadmin",
        "/admin%2Fx",
        "http://a/admin",
        "http://a//admin",
    ] {
        assert!(matches!(get(&http, path), Err(400 | 403)), "{path}");
    }
    assert_eq!(get(&http, "/administrators"), Err(403), "prefixes are bytes");
    assert_eq!(get(&http, "/x%2Fadmin"), Ok(0));
    let deep = service(vec![deny(prefix("/x/admin"))], vec![prefix("/")]);
    assert_eq!(get(&deep, "/x%2Fadmin"), Err(403));
    assert_eq!(get(&deep, "/y%2Fadmin"), Ok(0));
}

#[test]
fn connect_and_upgrade_need_to_be_enabled() {
    let mut http = service(vec![], vec![Conditions::default()]);
    let connect = "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n";
    let websocket = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let h2c = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n";
    let ask = |http: &Http| [connect, websocket, h2c].map(|head| outcome(http, head, "::1"));
    assert_eq!(ask(&http), [Err(501), Ok(0), Ok(0)]);
    (http.connect, http.upgrade) = (true, false);
    assert_eq!(ask(&http), [Ok(0), Err(501), Ok(0)]);
}

#[test]
fn the_replaced_prefix_is_the_one_found() {
    let mut conditions = prefix("/api/");
    conditions.paths =
        [PathPattern::regex("^/r").unwrap(), PathPattern::exact("/x").unwrap(), PathPattern::prefix("/api/").unwrap()]
            .into();
    assert_eq!(conditions.prefix_bytes(b"/api/y"), Some(5));
    assert_eq!(conditions.prefix_bytes(b"/x"), Some(2));
    assert_eq!(conditions.prefix_bytes(b"/r"), None);
    assert_eq!(conditions.prefix_bytes(b"/z"), None);
}
