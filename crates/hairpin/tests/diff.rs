//! The changes of a configuration, in sentences.

use hairpin::config::{self, Config};
use hairpin::control::Changes;
use hairpin::diff;

const BASE: &str = "\
interfaces = [\"eth0\"]
#TOP
#TABLES
[[service]]
name = \"web\"
listen = \"192.0.2.1:80/tcp\"
#WEB
[[service.backend]]
address = \"10.0.0.1:80\"
name = \"one\"
#ONE
[[service.backend]]
address = \"10.0.0.2:80\"
#TWO
[[service]]
listen = \"192.0.2.1:53/udp\"
backends = [\"10.0.0.3:53\"]
#DNS
";

fn parsed(text: &str) -> Config {
    config::parse("t.toml", text).unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

/// `BASE` with text in place of some marks.
fn with(edits: &[(&str, &str)]) -> String {
    let mut text = BASE.to_string();
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

fn between(before: &str, after: &str) -> Changes {
    diff::changes(&parsed(before), &parsed(after))
}

/// Asserts what edits of `BASE` change at run time.
#[track_caller]
fn changes(edits: &[(&str, &str)], expected: &[&str]) {
    let found = between(BASE, &with(edits));
    assert_eq!((found.changes, found.later), (expected.iter().map(ToString::to_string).collect(), vec![]));
}

/// Asserts what edits of `BASE` change later.
#[track_caller]
fn later(edits: &[(&str, &str)], expected: &[&str]) {
    let found = between(BASE, &with(edits));
    assert_eq!((found.changes, found.later), (vec![], expected.iter().map(ToString::to_string).collect()));
}

#[test]
fn the_same_is_no_change() {
    let full = include_str!("../../../examples/full.toml");
    assert_eq!(between(full, full), Changes::default());
    // Other words for the same, and another order.
    let before = "interfaces = [\"a\"]\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.1:1\", \
                  \"10.0.0.2:1\"]\n";
    let after = "interfaces = [\"a\"]\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.2:1\"]\n\
                 timeouts.tcp_established = \"60m\"\n[service.health]\ncheck = \"none\"\n[[service.backend]]\n\
                 address = \"10.0.0.1:1\"\nweight = 1\n";
    assert_eq!(between(before, after), Changes::default());
}

#[test]
fn services_come_and_go() {
    let ftp = "[[service]]\nname = \"ftp\"\nlisten = \"192.0.2.1:21/tcp\"\nbackends = [\"10.0.0.4:21\"]\n";
    changes(&[("#DNS", ftp)], &["service ftp added: 192.0.2.1:21/tcp, nat, round-robin, 1 backend"]);
    let without = &BASE[..BASE.rfind("[[service]]").unwrap()];
    let found = between(BASE, without);
    assert_eq!(found.changes, ["service 192.0.2.1:53/udp removed; its connections go on for up to 1h"]);
    let endless = with(&[("#DNS", "drain_limit = \"0s\"")]);
    assert_eq!(
        between(&endless, without).changes,
        ["service 192.0.2.1:53/udp removed; its connections go on until they end"]
    );
    // Another address is another service; what is removed comes last.
    let moved =
        with(&[("name = \"web\"\nlisten = \"192.0.2.1:80/tcp\"", "name = \"web\"\nlisten = \"192.0.2.1:81/tcp\"")]);
    assert_eq!(
        between(BASE, &moved).changes,
        [
            "service web added: 192.0.2.1:81/tcp, nat, round-robin, 2 backends",
            "service web removed; its connections go on for up to 1h"
        ]
    );
    changes(
        &[("192.0.2.1:53/udp", "192.0.2.1:53/tcp")],
        &[
            "service 192.0.2.1:53/tcp added: 192.0.2.1:53/tcp, nat, round-robin, 1 backend",
            "service 192.0.2.1:53/udp removed; its connections go on for up to 1h",
        ],
    );
}

#[test]
fn every_field_of_a_service_is_compared() {
    changes(&[("name = \"web\"", "name = \"www\"")], &["service www: name: web -> www"]);
    changes(&[("#WEB", "balance = \"maglev\"")], &["service web: balance: round-robin -> maglev"]);
    let hashed = "balance = \"path-hash\"";
    let named = "balance = \"header-hash\"\nhash_name = \"X-A\"";
    let http = |text: &str| {
        let pool = ("#TABLES", "[pool]\naddresses = [\"10.0.9.1\"]");
        with(&[("192.0.2.1:80/tcp", "192.0.2.1:80/http"), ("#WEB", text), pool])
    };
    assert_eq!(
        between(&http(hashed), &http(named)).changes,
        ["service web: balance: path-hash -> header-hash", "service web: hash_name: none -> x-a"]
    );
    changes(&[("#WEB", "unknown = \"reset\"")], &["service web: unknown: drop -> reset"]);
    changes(&[("#WEB", "all_down = \"use-all\"")], &["service web: all_down: refuse -> use-all"]);
    changes(&[("#WEB", "drain_limit = \"0s\"")], &["service web: drain_limit: 1h -> until they end"]);
    for (name, default) in [
        ("tcp_handshake", "30s"),
        ("tcp_established", "1h"),
        ("tcp_half_closed", "2m"),
        ("tcp_closed", "5s"),
        ("tcp_reset", "5s"),
        ("udp_new", "30s"),
        ("udp_established", "3m"),
    ] {
        changes(
            &[("#WEB", &format!("timeouts.{name} = \"7s\""))],
            &[&format!("service web: timeouts.{name}: {default} -> 7s")],
        );
        // Said once, not for every service that follows it.
        changes(
            &[("#TABLES", &format!("[timeouts]\n{name} = \"7s\""))],
            &[&format!("[timeouts] {name}: {default} -> 7s")],
        );
    }
    changes(
        &[("#TABLES", "[timeouts]\ntcp_closed = \"7s\""), ("#WEB", "timeouts.tcp_closed = \"8s\"")],
        &["[timeouts] tcp_closed: 5s -> 7s", "service web: timeouts.tcp_closed: 5s -> 8s"],
    );
    let pool = "[pool]\naddresses = [\"10.0.9.1\"]";
    let found = between(&with(&[("#TABLES", pool)]), &with(&[("#TABLES", pool), ("#WEB", "mode = \"full-nat\"")]));
    assert_eq!(found.changes, ["service web: mode: nat -> full-nat; connections that exist keep theirs"]);
}

#[test]
fn every_field_of_a_health_check_is_compared() {
    let health = |fields: &str| with(&[("#WEB", &format!("[service.health]\n{fields}"))]);
    let one = |before: &str, after: &str, expected: &str| {
        let found = between(&health(before), &health(after));
        assert_eq!(found.changes, [format!("service web: health.{expected}")]);
    };
    one("", "check = \"tcp\"", "check: none -> tcp");
    one("check = \"http\"", "check = \"udp\"\nsend = \"x\"", "check: http -> udp");
    for (field, value, expected) in [
        ("interval", "\"5s\"", "interval: 2s -> 5s"),
        ("timeout", "\"2s\"", "timeout: 1s -> 2s"),
        ("rise", "5", "rise: 2 -> 5"),
        ("fall", "5", "fall: 3 -> 5"),
        ("port", "81", "port: each backend's own -> 81"),
        ("method", "\"HEAD\"", "method: GET -> HEAD"),
        ("path", "\"/x\"", "path: / -> /x"),
        ("host", "\"a.b\"", "host: the backend's address and port -> \"a.b\""),
        ("status", "\"200,204\"", "status: 200-399 -> 200,204"),
        ("body", "\"ok\"", "body: anything -> \"ok\""),
        ("passive", "5", "passive: 0 -> 5"),
        ("slow_start", "\"30s\"", "slow_start: 0s -> 30s"),
    ] {
        one("check = \"http\"", &format!("check = \"http\"\n{field} = {value}"), expected);
    }
    one("check = \"udp\"\nsend = \"a\"", "check = \"udp\"\nsend_hex = \"00ff\"", "send: \"a\" -> 00ff");
    one(
        "check = \"udp\"\nsend = \"a\"",
        "check = \"udp\"\nsend = \"a\"\nexpect = \"b\"",
        "expect: any answer -> \"b\"",
    );
    one("passive = 1", "passive = 1\npassive_retry = \"1m\"", "passive_retry: 10s -> 1m");
    one("passive = 1", "passive = 1\npassive_status = \"500,502\"", "passive_status: none -> 500,502");
}

#[test]
fn backends_come_and_go_and_change() {
    changes(
        &[("#DNS", "[[service.backend]]\naddress = \"10.0.0.4:53\"")],
        &["service 192.0.2.1:53/udp: backend 10.0.0.4:53 added"],
    );
    changes(
        &[("#TWO", "[[service.backend]]\naddress = \"10.0.0.9:80\"\nname = \"nine\"\nweight = 0\nstate = \"drain\"")],
        &["service web: backend nine (10.0.0.9:80) added, weight 0, drain"],
    );
    changes(
        &[("[[service.backend]]\naddress = \"10.0.0.1:80\"\nname = \"one\"\n", "")],
        &["service web: backend one removed; its connections go on for up to 1h"],
    );
    changes(&[("\"one\"", "\"uno\"")], &["service web: backend uno: name: one -> uno"]);
    changes(&[("#TWO", "weight = 3")], &["service web: backend 10.0.0.2:80: weight: 1 -> 3"]);
    changes(
        &[("#ONE", "state = \"drain\"")],
        &["service web: backend one: state: enabled -> drain; its connections go on for up to 1h"],
    );
    changes(
        &[("#ONE", "state = \"disabled\"")],
        &["service web: backend one: state: enabled -> disabled; its connections are ended"],
    );
    let drained = with(&[("#ONE", "state = \"drain\"")]);
    assert_eq!(between(&drained, BASE).changes, ["service web: backend one: state: drain -> enabled"]);
    // Another port is another backend.
    changes(
        &[("10.0.0.1:80", "10.0.0.1:81")],
        &[
            "service web: backend one (10.0.0.1:81) added",
            "service web: backend one removed; its connections go on for up to 1h",
        ],
    );
}

#[test]
fn settings_that_a_running_process_can_change() {
    for (text, expected) in [
        ("[limits]\nwhen_full = \"reset\"", "[limits] when_full: drop -> reset"),
        ("[limits]\ndrain_limit = \"5m\"", "[limits] drain_limit: 1h -> 5m"),
        ("[pool]\naddresses = [\"10.0.9.1\", \"fd00::1\"]", "[pool] addresses: none -> 10.0.9.1, fd00::1"),
        ("[pool]\nports = \"2000-3000\"", "[pool] ports: 16384-28671 -> 2000-3000"),
        ("[pool]\ntime_wait = \"30s\"", "[pool] time_wait: 1m -> 30s"),
        ("[linux]\nwhen_absent = \"pass\"", "[linux] when_absent: drop -> pass"),
        ("[linux]\nserve_for = \"1m\"", "[linux] serve_for: 10s -> 1m"),
        ("[linux]\nheartbeat_timeout = \"9s\"", "[linux] heartbeat_timeout: 3s -> 9s"),
        ("[linux]\npolicer_floor = 7", "[linux] policer_floor: 2000 -> 7"),
        ("[linux]\npolicer_ceiling = 7000", "[linux] policer_ceiling: 200000 -> 7000"),
        ("[linux]\npolicer_backend = 7", "[linux] policer_backend: 20000 -> 7"),
        ("[linux]\nhandover_bound = \"9ms\"", "[linux] handover_bound: 50ms -> 9ms"),
    ] {
        changes(&[("#TABLES", text)], &[expected]);
    }
}

#[test]
fn settings_that_take_a_restart() {
    let anew = "; stop this instance with `hairpin stop --flush` and start it anew";
    later(&[("#TOP", "instance = \"edge\"")], &[&format!("instance: default -> edge{anew}")]);
    later(&[("[\"eth0\"]", "[\"eth0\", \"eth1\"]")], &["interfaces: eth0 -> eth0, eth1"]);
    later(&[("#TOP", "workers = 2")], &["workers: auto -> 2"]);
    let default = hairpin_core::table::LookupMethod::DEFAULT;
    let expected = format!("connection_table: {default} -> concurrent");
    later(&[("#TOP", "connection_table = \"concurrent\"")], &[&expected]);
    for (text, expected) in [
        ("[limits]\nconnections_max = 64", "[limits] connections_max: 1000000 -> 64"),
        ("[limits]\nrules_max = 64", &format!("[limits] rules_max: 262144 -> 64{anew}")),
        ("[limits]\nmemory_directory = \"/m\"", &format!("[limits] memory_directory: /dev/shm -> /m{anew}")),
        ("[offload]\npolicy = \"never\"", "[offload] policy: always -> never"),
        ("[linux]\nforwarding = \"enable\"", "[linux] forwarding: check -> enable"),
        ("[linux]\ntap_queue = 64", "[linux] tap_queue: 4096 -> 64"),
        ("[linux]\ncoalesce = \"0s\"", "[linux] coalesce: 50us -> 0s"),
        ("[linux]\nattach = \"clsact\"", "[linux] attach: tc -> clsact"),
        ("[linux]\npin_directory = \"/p\"", &format!("[linux] pin_directory: /sys/fs/bpf/hairpin -> /p{anew}")),
        ("[control]\ndirectory = \"/c\"", &format!("[control] directory: /run/hairpin -> /c{anew}")),
        ("[metrics]\nlisten = \"off\"", "[metrics] listen: 127.0.0.1:9560 -> off"),
    ] {
        later(&[("#TABLES", text)], &[expected]);
    }
}

#[test]
fn diff_follows_file_order_with_new_warnings() {
    let after = with(&[
        ("#TABLES", "[limits]\ndrain_limit = \"5m\"\nrules_max = 64\n[timeouts]\nudp_new = \"1s\""),
        ("#WEB", "balance = \"maglev\""),
        ("#ONE", "weight = 2"),
        ("#DNS", "unknown = \"reset\""),
    ]);
    let found = between(BASE, &after);
    assert_eq!(
        found.changes,
        [
            "[limits] drain_limit: 1h -> 5m",
            "[timeouts] udp_new: 30s -> 1s",
            "service web: balance: round-robin -> maglev",
            "service web: backend one: weight: 1 -> 2",
            "service 192.0.2.1:53/udp: unknown: drop -> reset",
        ]
    );
    let anew = "; stop this instance with `hairpin stop --flush` and start it anew";
    assert_eq!(found.later, [format!("[limits] rules_max: 262144 -> 64{anew}")]);
    let [warning] = &found.warnings[..] else { panic!("{:?}", found.warnings) };
    assert!(warning.contains("`unknown` means nothing to service"), "{warning}");
    // A warning alone is no change.
    let again = between(&after, &after);
    assert_eq!((again.changes, again.later, again.warnings.len()), (vec![], vec![], 1));
}

const WEB: &str = "\
interfaces = [\"eth0\"]
pool.addresses = [\"10.0.9.1\"]
[[service]]
name = \"web\"
listen = \"192.0.2.1:80/http\"
backends = [\"10.0.0.1:80\"]
#WEB
[[service.group]]
name = \"a\"
backends = [\"10.0.0.2:80\"]
#GROUP
[[service.route]]
host = \"one\"
group = \"a\"
#ROUTE
[[service.route]]
host = \"two\"
reply.status = 404
";

/// Asserts what edits of `WEB` change.
#[track_caller]
fn http_changes(edits: &[(&str, &str)], expected: &[&str]) {
    let mut text = WEB.to_string();
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    assert_eq!(between(WEB, &text).changes, expected);
    assert_eq!(between(&text, &text).changes, [""; 0]);
}

#[test]
fn http_services_and_groups_come_and_go() {
    let none = "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.1\"]\n[[service]]\nlisten = \
                \"192.0.2.9:1/udp\"\nbackends = [\"10.0.0.9:1\"]\n";
    let found = between(none, WEB).changes;
    assert_eq!(
        found[..2],
        [
            "service web added: 192.0.2.1:80/http, round-robin, 1 backend, 2 routes",
            "group web/a added: round-robin, 1 backend"
        ]
    );
    let found = between(WEB, none).changes;
    assert_eq!(
        found[1..],
        ["service web removed; its connections are ended", "group web/a removed; its connections go on for up to 1h"]
    );
    http_changes(
        &[
            ("#GROUP", "[[service.group]]\nname = \"b\"\nbackends = [\"10.0.0.3:80\"]"),
            ("group = \"a\"", "groups = { b = 1, a = 2 }"),
        ],
        &[
            "service web: route 1: host = \"one\", group = \"a\" -> host = \"one\", groups = { a = 2, b = 1 }",
            "group web/b added: round-robin, 1 backend",
        ],
    );
    let tcp =
        none.to_string() + "[[service]]\nname = \"web\"\nlisten = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.1:80\"]\n";
    assert_eq!(between(&tcp, WEB).changes[0], "service web: protocol: tcp -> http; connections that exist are ended");
    let proxied = |version| format!("{tcp}proxy_protocol = \"{version}\"\n");
    let changes = |before: &str, after: &str| between(before, after).changes;
    let ended = "service web: proxy_protocol: off -> v1; connections that exist are ended";
    assert_eq!(changes(&proxied("off"), &proxied("v1")), [ended]);
    assert_eq!(changes(&proxied("v1"), &proxied("v2")), ["service web: proxy_protocol: v1 -> v2"]);
}

#[test]
fn what_is_http_s_is_compared_field_by_field() {
    for (text, expected) in [
        ("http.upgrade = false", "http.upgrade: true -> false"),
        ("http.offload_bytes_min = 4096", "http.offload_bytes_min: auto -> 4096"),
        ("http.proxy_protocol = \"v2\"", "http.proxy_protocol: off -> v2"),
        ("http.forwarded.x_real_ip = true", "http.forwarded.x_real_ip: false -> true"),
        ("http.forwarded.trusted = [\"10.0.0.0/8\"]", "http.forwarded.trusted: [] -> [\"10.0.0.0/8\"]"),
        ("http.limits.idle_timeout = \"1m\"", "http.limits.idle_timeout: 1m 15s -> 1m"),
        ("http.limits.fields_max = 7", "http.limits.fields_max: 100 -> 7"),
        ("http.sticky.cookie = \"c\"", "http.sticky: none -> { cookie = \"c\" }"),
        ("http.response_headers.set = { X-A = \"1\" }", "http.response_headers: none -> { set = { X-A = \"1\" } }"),
    ] {
        http_changes(&[("#WEB", text)], &[&format!("service web: {expected}")]);
    }
    // Other words for the same.
    http_changes(&[("#WEB", "http.limits = { idle_timeout = \"75s\", fields_max = 0x64 }\nhttp.upgrade = true")], &[]);
    http_changes(&[("#GROUP", "balance = \"maglev\"")], &["group web/a: balance: round-robin -> maglev"]);
    http_changes(&[("#GROUP", "health.check = \"tcp\"")], &["group web/a: health.check: none -> tcp"]);
    // A group has its times and what becomes of unknown packets from its service.
    http_changes(&[("#WEB", "unknown = \"drop\"")], &["service web: unknown: reset -> drop"]);
    http_changes(&[("#WEB", "drain_limit = \"1m\"")], &["service web: drain_limit: 1h -> 1m"]);
}

#[test]
fn routes_and_rules_are_compared_as_lists() {
    let three = "[[service.route]]\nhost = \"three\"\nredirect.location = \"/\"";
    http_changes(
        &[("#ROUTE", three)],
        &["service web: route 2 added: host = \"three\", redirect = { location = \"/\" }"],
    );
    http_changes(
        &[("#ROUTE\n[[service.route]]\nhost = \"two\"\nreply.status = 404\n", "")],
        &["service web: route 2 removed: host = \"two\", reply = { status = 404 }"],
    );
    http_changes(
        &[("\"two\"", "[\"two\", \"2\"]")],
        &[
            "service web: route 2: host = \"two\", reply = { status = 404 } -> host = [\"two\", \"2\"], reply = { status = 404 }",
        ],
    );
    http_changes(
        &[("#ROUTE", "[[service.access]]\naction = \"deny\"\nclient = \"10.0.0.0/8\"")],
        &["service web: access rule 1 added: action = \"deny\", client = \"10.0.0.0/8\""],
    );
}

#[test]
fn https_services_are_compared_like_http_services() {
    let https = |fields: &str| {
        let section = format!("https.certificates = \"/tls/a.pem\"\n{fields}");
        WEB.replace("192.0.2.1:80/http", "192.0.2.1:80/https").replace("#WEB", &section)
    };
    let one = |fields: &str, expected: &str| {
        let found = between(&https(""), &https(fields)).changes;
        assert_eq!(found, [format!("service web: {expected}")]);
    };
    for (fields, expected) in [
        ("https.http2 = false", "https.http2: true -> false"),
        ("https.versions_min = \"1.3\"", "https.versions_min: 1.2 -> 1.3"),
        ("https.handshake_timeout = \"3000ms\"", "https.handshake_timeout: 10s -> 3s"),
        ("https.streams_max = 7", "https.streams_max: 100 -> 7"),
        ("http.limits.fields_max = 7", "http.limits.fields_max: 100 -> 7"),
        ("[[service.access]]\naction = \"deny\"", "access rule 1 added: action = \"deny\""),
    ] {
        one(fields, expected);
    }
    let tls = "backend_tls = { name = \"a.internal\", roots = \"/ca.pem\" }";
    one(tls, "backend_tls: off -> roots = \"/ca.pem\", name = \"a.internal\"");
    one("backend_tls = {}\nhealth = { check = \"none\" }", "backend_tls: off -> on");
    let both = https("https.client_certificates = \"optional\"\nhttps.client_roots = \"/ca\"");
    let asks = ["https.client_certificates: off -> optional", "https.client_roots: none -> /ca"];
    assert_eq!(between(&https(""), &both).changes, asks.map(|change| format!("service web: {change}")));
    let two = https("").replace("\"/tls/a.pem\"", "[\"/tls/a.pem\", \"/tls/b\"]");
    let more = "service web: https.certificates: /tls/a.pem -> [\"/tls/a.pem\", \"/tls/b\"]";
    assert_eq!(between(&https(""), &two).changes, [more]);
    // What means nothing is no change.
    assert_eq!(between(&https(""), &https("http.timestamps = false")).changes, [""; 0]);
    // What it means for `mode` and `unknown` goes without saying.
    for (before, after, protocol) in [(WEB, &*https(""), "http -> https"), (&*https(""), WEB, "https -> http")] {
        let expected = format!("service web: protocol: {protocol}; connections that exist are ended");
        assert_eq!(between(before, after).changes, [expected]);
    }
    let none = "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.1\"]\n[[service]]\nlisten = \
                \"192.0.2.9:1/udp\"\nbackends = [\"10.0.0.9:1\"]\n";
    let added = "service web added: 192.0.2.1:80/https, round-robin, 1 backend, 2 routes";
    assert_eq!(between(none, &https("")).changes[0], added);
    assert_eq!(between(&https(""), none).changes[1], "service web removed; its connections go on for up to 1h");
}

#[test]
fn access_rules_of_services_without_requests_are_compared() {
    const RULE: &str = "[[service.access]]\naction = \"deny\"\nclient = \"10.0.0.0/8\"";
    let expected = "service 192.0.2.1:53/udp: access rule 1 added: action = \"deny\", client = \"10.0.0.0/8\"";
    changes(&[("#DNS", RULE)], &[expected]);
}
