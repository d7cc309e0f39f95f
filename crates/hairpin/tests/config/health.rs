//! `[service.health]`.

use super::{GOOD, good, refuses, said, warned, with};
use hairpin::config::{CheckKind, HealthSettings};
use hairpin::health::{Check, HttpCheck, Passive, StatusRanges};
use std::time::Duration;

/// `GOOD` with fields of its service's health, the first of them on line 6.
fn checked(fields: &str) -> String {
    format!("{GOOD}[service.health]\n{fields}\n")
}

fn health(fields: &str) -> HealthSettings {
    let config = good(&checked(fields));
    assert_eq!(config.warnings, []);
    config.services[0].health.clone()
}

#[test]
fn defaults_are_those_of_the_page() {
    let settings = health("");
    assert_eq!((settings.kind(), settings.rise, settings.fall), (CheckKind::None, 2, 3));
    assert_eq!((settings.interval, settings.timeout), (Duration::from_secs(2), Duration::from_secs(1)));
    assert_eq!((settings.port, settings.passive, settings.slow_start), (None, None, Duration::ZERO));
    let http = HttpCheck {
        method: "GET".to_string(),
        path: "/".to_string(),
        host: None,
        status: StatusRanges::default(),
        body: None,
    };
    assert_eq!(health("check = \"http\"").check, Check::Http(http));
}

#[test]
fn every_field_arrives() {
    let text = "check = \"http\"\ninterval = \"500ms\"\ntimeout = \"500ms\"\nrise = 1\nfall = 10\nport = 81\n\
                method = \"POST\"\npath = \"/x?y=1\"\nhost = \"a.example\"\nstatus = \"200, 300-304\"\nbody = \"ok\"\n\
                passive = 7\nslow_start = \"1m\"";
    let settings = health(text);
    let http = HttpCheck {
        method: "POST".to_string(),
        path: "/x?y=1".to_string(),
        host: Some("a.example".to_string()),
        status: "200,300-304".parse().unwrap(),
        body: Some("ok".to_string()),
    };
    let expected = HealthSettings {
        check: Check::Http(http),
        interval: Duration::from_millis(500),
        timeout: Duration::from_millis(500),
        rise: 1,
        fall: 10,
        port: Some(81),
        passive: Some(Passive { failures: 7, retry: Duration::from_secs(10) }),
        passive_status: None,
        slow_start: Duration::from_secs(60),
    };
    assert_eq!(settings, expected);
    let alone = health("passive = 1\npassive_retry = \"30s\"\nslow_start = \"1s\"");
    assert_eq!(alone.passive, Some(Passive { failures: 1, retry: Duration::from_secs(30) }));
}

#[test]
fn a_target_has_the_backend_s_address_and_the_check_s_port() {
    let config = good(&checked("check = \"tcp\"\nport = 8081"));
    let service = &config.snapshot.services[0];
    let target = config.services[0].health.target(service, &service.backends[0]);
    assert_eq!((target.address.to_string(), target.backend), ("10.0.0.1:8081".to_string(), 0));
    assert_eq!((&*target.service, &*target.name), ("192.0.2.1:80/tcp", "10.0.0.1:80"));
    target.validate().unwrap();
    let own = HealthSettings { port: None, ..config.services[0].health.clone() };
    assert_eq!(own.target(service, &service.backends[0]).address.to_string(), "10.0.0.1:80");
}

#[test]
fn datagrams_are_text_or_hexadecimal() {
    let udp = |fields: &str| {
        let text = checked(&format!("check = \"udp\"\n{fields}")).replace("/tcp", "/udp");
        let config = good(&text);
        assert_eq!(config.warnings, []);
        let Check::Udp { send, expect } = config.services[0].health.check.clone() else { panic!("{text}") };
        (send, expect)
    };
    assert_eq!(udp("send = \"ping\"\nexpect = \"pong\""), (b"ping".to_vec(), Some(b"pong".to_vec())));
    assert_eq!(udp("send_hex = \"00fF 1a\"\nexpect_hex = \"80\""), (vec![0, 0xff, 0x1a], Some(vec![0x80])));
    assert_eq!(udp("send = \"\""), (vec![], None));
    let refuses = |fields: &str, expected: &str| {
        refuses(&checked(&format!("check = \"udp\"\n{fields}")).replace("/tcp", "/udp"), expected);
    };
    refuses(
        "",
        "6:9: error: the check has nothing to send; add send = \"...\" or send_hex = \"...\" with something that the \
         server answers",
    );
    refuses("send = \"a\"\nsend_hex = \"00\"", "8:12: error: both `send` and `send_hex` are given; leave one out");
    for digits in ["0", "0g", "000", "00 1", "+1"] {
        let remedy = "write two hexadecimal digits for each byte, such as \"00 01 0a ff\"";
        refuses(&format!("send_hex = \"{digits}\""), &format!("7:12: error: `send_hex` is \"{digits}\"; {remedy}"));
    }
    refuses(
        &format!("send_hex = \"{}\"", "00".repeat(1453)),
        "7:12: error: `send_hex`: the datagram has 1453 bytes; allowed are 1452",
    );
    refuses(
        "send = \"\"\nexpect = \"\"",
        "8:10: error: `expect`: the expected answer has 0 bytes; allowed are 1 to 4096; leave it out to take any \
         answer",
    );
}

#[test]
fn times_and_numbers_have_bounds() {
    let tcp = |fields: &str| checked(&format!("check = \"tcp\"\n{fields}"));
    refuses(
        &tcp("timeout = \"3s\""),
        "7:11: error: `timeout` (3s) is longer than `interval` (2s); a check ends before the next begins: shorten the \
         one or the other",
    );
    refuses(
        &tcp("interval = \"500ms\""),
        "7:12: error: `timeout` (1s) is longer than `interval` (500ms); a check ends before the next begins: shorten \
         the one or the other",
    );
    refuses(
        &tcp("interval = \"1ms\"").replace("1ms", "2days"),
        "7:12: error: `interval` is \"2days\", out of range; use \"10ms\" to \"1day\"",
    );
    refuses(&tcp("rise = 0"), "7:8: error: `rise` is 0, out of range; use 1 to 1000");
    refuses(&tcp("port = 0"), "7:8: error: `port` is 0, out of range; use 1 to 65535");
    refuses(&tcp("passive = 1001"), "7:11: error: `passive` is 1001, out of range; use 0 to 1000");
}

#[test]
fn http_fields_have_forms() {
    let http = |fields: &str| checked(&format!("check = \"http\"\n{fields}"));
    refuses(
        &http("status = \"200-1000\""),
        "7:10: error: `status`: \"1000\" is no HTTP status; write a number from 100 to 599",
    );
    refuses(&http("status = \"300-200\""), "7:10: error: `status`: the range 300-200 is empty; write 200-300");
    let [path] = &said(&http("path = \"healthz\""))[..] else { panic!() };
    assert!(
        path.starts_with("t.toml:7:8: error: `path`: \"healthz\" is no path of an HTTP request; write one"),
        "{path}"
    );
    let [host] = &said(&http("host = \"a\\nb\""))[..] else { panic!() };
    assert!(host.starts_with("t.toml:7:8: error: `host`: "), "{host}");
    refuses(
        &http("method = \"CONNECT\""),
        "7:10: error: `method`: CONNECT cannot be used for checks; write GET or HEAD",
    );
    refuses(
        &http("method = \"HEAD\"\nbody = \"x\""),
        "6:9: error: `check`: an answer to HEAD has no body to look into; write GET",
    );
}

#[test]
fn the_word_of_the_check_is_one_of_them() {
    // One message: what the other fields mean depends on the word.
    refuses(
        &checked("check = \"htpp\"\npath = \"/x\""),
        "6:9: error: `check` is \"htpp\"; did you mean \"http\"? (one of \"none\", \"tcp\", \"http\", \"https\", \"grpc\", \"udp\")",
    );
    refuses(
        &checked("chekc = \"http\""),
        "6:1: error: unknown field `chekc` in [service.health]; did you mean `check`?",
    );
    refuses(
        &with("[health]\ncheck = \"tcp\""),
        "2:2: error: unknown field `health` in the top level; `health` belongs in [[service]]",
    );
}

#[test]
fn fields_of_another_check_are_pointed_at() {
    refuses(&checked("path = \"/x\""), "6:8: error: `path` is given, but no check; add check = \"http\"");
    refuses(&checked("send = \"x\""), "6:8: error: `send` is given, but no check; add check = \"udp\"");
    assert_eq!(
        warned(&checked("check = \"tcp\"\npath = \"/x\"\nexpect_hex = \"00\"")),
        [
            "t.toml:7:8: warning: `path` means nothing beside check = \"tcp\"; leave it out, or set check = \"http\"",
            "t.toml:8:14: warning: `expect_hex` means nothing beside check = \"tcp\"; leave it out, or set check = \
             \"udp\"",
        ]
    );
    assert_eq!(
        warned(&checked("interval = \"5s\"")),
        ["t.toml:6:12: warning: `interval` means nothing without a check; add one, such as check = \"tcp\""]
    );
    assert_eq!(
        warned(&checked("passive_retry = \"5s\"")),
        ["t.toml:6:17: warning: `passive_retry` means nothing while `passive` is 0; set `passive`, or leave it out"]
    );
    assert_eq!(
        warned(&checked("check = \"tcp\"\npassive = 1\npassive_retry = \"5s\"")),
        ["t.toml:8:17: warning: `passive_retry` means nothing where a check brings backends back; leave it out"]
    );
    assert_eq!(
        warned(&checked("slow_start = \"5s\"")),
        ["t.toml:6:14: warning: `slow_start` means nothing where no backend is ever taken down; add a check, such as \
          check = \"tcp\""]
    );
}

#[test]
fn a_check_over_the_other_protocol_wants_a_port() {
    let udp = checked("check = \"tcp\"").replace("80/tcp", "80/udp");
    assert_eq!(
        warned(&udp),
        ["t.toml:6:9: warning: the check goes over TCP to the port of a UDP service; name the port that answers it \
          with `port`"]
    );
    assert_eq!(good(&(udp + "port = 8080\n")).warnings, []);
}

/// An HTTP service with these fields of its health (the first of them in line 9) and a group.
fn judged(fields: &str, group: &str) -> String {
    format!(
        "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.1\"]\n[[service]]\nname = \"web\"\n\
         listen = \"192.0.2.1:80/http\"\nbackends = [\"10.0.0.1:80\"]\n\n[service.health]\n{fields}\n\
         [[service.group]]\nname = \"a\"\nbackends = [\"10.0.0.2:80\"]\n{group}\n\
         [[service.route]]\ngroup = \"a\"\npath = \"/a\"\n"
    )
}

#[test]
fn failure_statuses_are_set_per_service_and_group() {
    let faulty = |text: &str| {
        let config = good(text);
        assert_eq!(config.warnings, []);
        let of = |service: &hairpin_core::config::Service| {
            (0..=u16::MAX).filter(|status| service.faulty.contains(*status)).collect::<Vec<u16>>()
        };
        config.snapshot.services.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(faulty(&judged("passive = 5", "")), [[0; 0], [0; 0]], "none unless some are named");
    let named = "passive = 5\npassive_status = \"500, 502-504,599\"";
    assert_eq!(faulty(&judged(named, "")), [[500, 502, 503, 504, 599]; 2]);
    let other = "[service.group.health]\npassive = 1\npassive_status = \"500\"";
    assert_eq!(faulty(&judged(named, other)), [vec![500, 502, 503, 504, 599], vec![500]]);
    assert_eq!(
        faulty(&judged(named, "[service.group.health]\ncheck = \"tcp\"")),
        [vec![500, 502, 503, 504, 599], vec![]]
    );
}

#[test]
fn unsuitable_failure_statuses_are_warned_about() {
    refuses(
        &judged("passive = 5\npassive_status = \"404,500\"", ""),
        "10:18: error: `passive_status` is \"404,500\"; statuses below 500 say something of the request: write numbers from \
         500 to 599",
    );
    refuses(
        &judged("passive = 5\npassive_status = \"5xx\"", ""),
        "10:18: error: `passive_status`: \"5xx\" is no HTTP status; write a number from 100 to 599",
    );
    assert_eq!(
        warned(&judged("passive_status = \"500\"", "")),
        ["t.toml:9:18: warning: `passive_status` means nothing while `passive` is 0; set `passive`, or leave it out"]
    );
    assert_eq!(
        warned(&checked("passive = 1\npassive_status = \"500\"")),
        ["t.toml:7:18: warning: `passive_status` means nothing to a service that is not HTTP; leave it out"]
    );
}
