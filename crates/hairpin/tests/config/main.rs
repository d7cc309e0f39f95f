//! The configuration reader: what it takes, and what it says about what it does not take.

use hairpin::config::{self, Attach, CheckKind, Config, ForwardingChoice, PolicyChoice, Severity, WhenAbsent};
use hairpin_core::config::{
    Algorithm, AllDown, BackendState, Encapsulation, Forwarding, Service, Timeouts, UnknownPacket,
};
use hairpin_core::flow::Protocol;
mod access;
mod acme;
mod api;
mod backend_tls;
mod balance;
mod basic;
mod clashes;
mod cors;
mod direct;
mod dpdk;
mod fragments;
mod front;
mod health;
mod http;
mod https;
mod keys;
mod limit;
mod monitor;
mod names;
mod pages;
mod printed;
mod sharing;
mod tables;
mod tls;
mod tracing;

use std::path::Path;
use std::time::Duration;

const GOOD: &str =
    "interfaces = [\"eth0\"]\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.1:80\"]\n";

fn good(text: &str) -> Config {
    config::parse("t.toml", text).unwrap_or_else(|problems| panic!("{problems}"))
}

/// The messages about a bad file, one line for each problem.
fn said(text: &str) -> Vec<String> {
    match config::parse("t.toml", text) {
        Ok(config) => panic!("taken, with warnings {:?}", config.warnings),
        Err(problems) => problems.0.iter().map(ToString::to_string).collect(),
    }
}

fn warned(text: &str) -> Vec<String> {
    good(text).warnings.iter().map(ToString::to_string).collect()
}

/// `GOOD` with lines put in before the services.
fn with(head: &str) -> String {
    let (interfaces, service) = GOOD.split_at(GOOD.find("[[").unwrap());
    format!("{interfaces}{head}\n{service}")
}

/// Asserts that `text` has exactly this problem.
#[track_caller]
fn refuses(text: &str, expected: &str) {
    assert_eq!(said(text), [format!("t.toml:{expected}")]);
}

#[test]
fn the_least_file_gets_every_default() {
    let Config { settings, snapshot, services, warnings, .. } = good(GOOD);
    assert_eq!(warnings, []);
    assert_eq!(settings.instance, "default");
    assert_eq!(settings.interfaces, ["eth0"]);
    assert_eq!(settings.workers, None);
    assert_eq!((settings.connections_max, settings.rules_max), (1_000_000, 262_144));
    assert_eq!(settings.policy, PolicyChoice::Always);
    assert_eq!(settings.socket(), Path::new("/run/hairpin/default.sock"));
    assert_eq!(settings.linux.forwarding, ForwardingChoice::Check);
    assert_eq!(settings.linux.when_absent, WhenAbsent::Drop);
    assert_eq!(settings.linux.attach, Attach::Tc);
    assert_eq!(settings.linux.heartbeat_timeout, Duration::from_secs(3));
    assert_eq!(settings.linux.handover_bound, Duration::from_millis(50));
    assert_eq!(settings.linux.pin_directory, Path::new("/sys/fs/bpf/hairpin"));
    assert_eq!(settings.memory_directory, Path::new("/dev/shm"));
    assert_eq!(settings.drain_limit, Duration::from_secs(3600));
    assert_eq!(settings.metrics, Some("127.0.0.1:9560".parse().unwrap()));
    assert_eq!((snapshot.pool.port_first, snapshot.pool.port_last), (16384, 28671));
    assert_eq!(snapshot.pool.time_wait, Duration::from_secs(60));
    let [service] = &*snapshot.services else { panic!("{:?}", snapshot.services) };
    assert_eq!(&*service.name, "192.0.2.1:80/tcp");
    assert_eq!(service.endpoint.to_string(), "192.0.2.1:80");
    assert_eq!((service.protocol, service.forwarding), (Protocol::Tcp, Forwarding::Nat));
    assert_eq!((service.algorithm, service.unknown), (Algorithm::RoundRobin, UnknownPacket::Drop));
    assert_eq!((service.all_down, service.drain_limit), (AllDown::Refuse, Duration::from_secs(3600)));
    let [of_service] = &services[..] else { panic!("{services:?}") };
    assert_eq!(of_service.health.kind(), CheckKind::None);
    let [backend] = &*service.backends else { panic!("{:?}", service.backends) };
    assert_eq!((&*backend.name, backend.weight, backend.state), ("10.0.0.1:80", 1, BackendState::Enabled));
}

#[test]
fn default_timeouts_are_those_of_the_core() {
    let timeouts = good(GOOD).snapshot.services[0].timeouts;
    assert_eq!(format!("{timeouts:?}"), format!("{:?}", Timeouts::default()));
}

#[test]
fn everything_is_read() {
    let text = include_str!("../../../../examples/full.toml");
    let Config { settings, snapshot, services, .. } = good(text);
    assert_eq!(settings.instance, "edge");
    assert_eq!(settings.linux.forwarding, ForwardingChoice::Enable);
    let [web, web6, _, dns, _, far] = &*snapshot.services else { panic!("{:?}", snapshot.services) };
    let first = |service: &Service| service.backends[0].number;
    assert_eq!((first(web), first(web6), first(dns), first(far), snapshot.backends()), (0, 3, 6, 9, 11));
    assert_eq!(
        (far.forwarding, far.outer.encapsulation, far.outer.port),
        (Forwarding::Direct, Encapsulation::Gue, 6080)
    );
    assert_eq!((web.algorithm, web.unknown), (Algorithm::LeastConnections, UnknownPacket::Reset));
    assert_eq!((&*web.backends[0].name, web.backends[0].weight), ("web-1", 2));
    assert_eq!(web.backends[2].state, BackendState::Draining);
    assert_eq!((web6.forwarding, web6.algorithm), (Forwarding::FullNat, Algorithm::Maglev));
    assert_eq!(web6.timeouts.tcp_established, Duration::from_secs(600));
    assert_eq!(web6.timeouts.tcp_closed, Duration::from_secs(5));
    assert_eq!(web6.backends[1].endpoint.to_string(), "[fd00:2::12]:8080");
    assert_eq!((web.all_down, web.drain_limit), (AllDown::UseAll, Duration::from_secs(600)));
    assert_eq!((dns.all_down, dns.drain_limit), (AllDown::Refuse, Duration::from_secs(3600)));
    let kinds: Vec<CheckKind> = services.iter().map(|service| service.health.kind()).collect();
    assert_eq!(
        kinds,
        [CheckKind::Http, CheckKind::None, CheckKind::Tcp, CheckKind::Udp, CheckKind::Udp, CheckKind::None]
    );
    assert_eq!((dns.protocol, dns.algorithm), (Protocol::Udp, Algorithm::SourceHash));
}

#[test]
fn global_timeouts_apply_unless_a_service_overrides_them() {
    let text = with("[timeouts]\ntcp_closed = \"1s\"\nudp_established = \"1m 30s\"") + "timeouts.tcp_closed = \"2s\"\n";
    let timeouts = good(&text).snapshot.services[0].timeouts;
    assert_eq!(timeouts.tcp_closed, Duration::from_secs(2));
    assert_eq!(timeouts.udp_established, Duration::from_secs(90));
}

#[test]
fn the_drain_limit_applies_unless_a_service_has_its_own() {
    let text = with("[limits]\ndrain_limit = \"5m\"");
    assert_eq!(good(&text).snapshot.services[0].drain_limit, Duration::from_secs(300));
    let config = good(&(text + "drain_limit = \"0s\"\n"));
    assert_eq!((config.snapshot.services[0].drain_limit, config.settings.drain_limit.as_secs()), (Duration::ZERO, 300));
    refuses(
        &with("[limits]\ndrain_limit = \"31days\""),
        "3:15: error: `drain_limit` is \"31days\", out of range; use \"0s\" to \"30days\"",
    );
}

#[test]
fn metrics_may_have_names() {
    let hosts = |list: &str| with(&format!("[metrics]\nhosts = {list}"));
    assert_eq!(good(&hosts("[]")).settings.metrics_hosts, [""; 0]);
    assert_eq!(
        good(&hosts("[\"Edge.example.com\", \"lb_1.lan\"]")).settings.metrics_hosts,
        ["edge.example.com", "lb_1.lan"]
    );
    let remedy = "write a name without scheme and port, such as \"edge.example.com\"";
    for wrong in ["http://edge.example.com", "edge.example.com:9560", "", "a b", "[::1]"] {
        let expected = format!("3:10: error: `hosts` has \"{wrong}\", which is no name of a host; {remedy}");
        refuses(&hosts(&format!("[\"{wrong}\"]")), &expected);
    }
    let many: Vec<String> = (0..17).map(|number| format!("\"h{number}.lan\"")).collect();
    refuses(&hosts(&format!("[{}]", many.join(", "))), "3:9: error: `hosts` has 17 names; have 16 at most");
}

#[test]
fn metrics_are_off_or_somewhere() {
    let listen = |text: &str| with(&format!("[metrics]\nlisten = \"{text}\""));
    assert_eq!(good(&listen("off")).settings.metrics, None);
    for loopback in ["127.0.0.9:80", "[::1]:9560", "[::ffff:127.0.0.1]:9560"] {
        let config = good(&listen(loopback));
        assert_eq!((config.settings.metrics, config.warnings), (loopback.parse().ok(), vec![]));
    }
    for everybody in ["0.0.0.0:9560", "[::]:9560", "10.0.0.1:9560"] {
        let [warning] = &warned(&listen(everybody))[..] else { panic!("{everybody}") };
        let expected = format!("t.toml:3:10: warning: `listen` is \"{everybody}\", not a loopback address; every host");
        assert!(warning.starts_with(&expected), "{warning}");
    }
    let remedy = "write \"127.0.0.1:9560\", \"[::1]:9560\" or \"off\"";
    for (text, wrong) in [
        ("9560", ", not an address and port"),
        ("localhost:9560", ", not an address and port"),
        ("127.0.0.1:0", ", with port 0"),
        ("224.0.0.1:9560", ", with a multicast address"),
    ] {
        refuses(&listen(text), &format!("3:10: error: `listen` is \"{text}\"{wrong}; {remedy}"));
    }
}

#[test]
fn policies_have_their_numbers() {
    use hairpin_core::offload::{BUILT_IN, Choice, Combine, FirstN, HeavyHitter, Tree};
    let chosen = |text: &str| good(&with(&format!("[offload]\n{text}"))).settings.offload;
    assert_eq!(chosen(""), Choice::Always);
    assert_eq!(chosen("policy = \"auto\""), Choice::Auto);
    assert_eq!(chosen("policy = \"first-n\"\nconnections = 7"), Choice::FirstN(FirstN { connections: 7 }));
    assert_eq!(chosen("policy = \"fastest-flow\""), Choice::FastestFlow { packets_per_s: 100 });
    let heavy = |text: &str| match chosen(&format!("policy = \"heavy-hitter\"\n{text}")) {
        Choice::HeavyHitter(heavy) => heavy,
        other => panic!("{other:?}"),
    };
    let none = HeavyHitter::default();
    assert_eq!(heavy(""), HeavyHitter { packets: Some(16), ..none });
    assert_eq!(heavy("bytes = 10"), HeavyHitter { bytes: Some(10), ..none });
    let all = HeavyHitter { packets: Some(3), duration: Some(Duration::from_secs(1)), combine: Combine::All, ..none };
    assert_eq!(heavy("packets = 3\nduration = \"1s\"\ncombine = \"all\""), all);
    let Choice::DecisionTree(tree) = chosen("policy = \"decision-tree\"") else { panic!("a tree") };
    assert_eq!(*tree, Tree::parse(BUILT_IN).unwrap());
    let warning = "4:11: warning: `packets` means nothing with `policy = \"auto\"`; leave it out, or write policy = \
                   \"heavy-hitter\"";
    let warnings = good(&with("[offload]\npolicy = \"auto\"\npackets = 5")).warnings;
    assert_eq!(warnings.iter().map(|warning| warning.to_string()).collect::<Vec<_>>(), [format!("t.toml:{warning}")]);
}

#[test]
fn set_up_in_the_engine_needs_one_that_tracks() {
    use hairpin::config::SetUpChoice;
    let text = |rest: &str| with(&format!("{rest}\n[offload]\nset_up = \"engine\""));
    assert_eq!(good(&with("")).settings.set_up, SetUpChoice::Worker);
    assert_eq!(good(&text("")).settings.set_up, SetUpChoice::Engine);
    let never = said(&with("[offload]\npolicy = \"never\"\nset_up = \"engine\"")).concat();
    let wrong = "`set_up` is \"engine\", but `policy = \"never\"` leaves nothing to the engine; choose another policy, or \
                 write set_up = \"worker\"";
    assert!(never.contains(wrong), "{never}");
    let untracked = said(&text("connection_table = \"maglev\"")).concat();
    assert!(untracked.contains("but `connection_table` tracks no connections"), "{untracked}");
}

#[test]
fn model_file_is_read_and_errors_are_reported() {
    use hairpin_core::offload::Choice;
    let path = std::env::temp_dir().join(format!("hairpin-model-{}.tree", std::process::id()));
    let model = |path: &str| with(&format!("[offload]\npolicy = \"decision-tree\"\nmodel = \"{path}\""));
    let named = path.display().to_string();
    std::fs::write(&path, "decision-tree 1\nmore 7\nlong probability=1 expected=9 flows=3\n").unwrap();
    let Choice::DecisionTree(tree) = good(&model(&named)).settings.offload else { panic!("a tree") };
    assert_eq!((tree.more(), tree.nodes().len()), (7, 1));
    std::fs::write(&path, "decision-tree 1\nmore 7\nif size <= 9\n").unwrap();
    let wrong = format!("4:9: error: `model` \"{named}\": line 3: there is no feature \"size\"");
    assert!(said(&model(&named)).concat().contains(&wrong), "{:?}", said(&model(&named)));
    std::fs::remove_file(&path).unwrap();
    for (path, wrong) in [
        (named.as_str(), "cannot read it: No such file or directory (os error 2); name a file that"),
        ("edge.tree", "not an absolute path; start it with `/`"),
        ("/dev/zero", "not a file of 1048576 bytes or less"),
        ("/tmp", "not a file of 1048576 bytes or less"),
    ] {
        let told = said(&model(path)).concat();
        assert!(told.contains(&format!("`model` \"{path}\": {wrong}")), "{told}");
    }
}

#[test]
fn unknown_fields_name_the_nearest() {
    refuses(
        &(GOOD.to_string() + "blance = \"maglev\"\n"),
        "5:1: error: unknown field `blance` in [[service]]; did you mean `balance`?",
    );
    refuses(
        &with("[linux]\nfowarding = \"check\""),
        "3:1: error: unknown field `fowarding` in [linux]; did you mean `forwarding`?",
    );
    refuses(
        &with("policy = \"never\""),
        "2:1: error: unknown field `policy` in the top level; `policy` belongs in [offload]",
    );
    refuses(
        &with("[offload]\nzzzzzz = 1"),
        "3:1: error: unknown field `zzzzzz` in [offload]; known fields: policy, set_up, connections, packets, bytes, duration, \
         combine, packets_per_s, model",
    );
    refuses(
        &with("[timeout]\ntcp_closed = \"1s\""),
        "2:2: error: unknown field `timeout` in the top level; did you mean `timeouts`?",
    );
    refuses(
        &with("timeout = \"1s\""),
        "2:1: error: unknown field `timeout` in the top level; `timeout` belongs in [service.health]",
    );
    refuses(
        &(GOOD.to_string() + "[[service.backend]]\naddress = \"10.0.0.2:80\"\nwieght = 3\n"),
        "7:1: error: unknown field `wieght` in [[service.backend]]; did you mean `weight`?",
    );
}

#[test]
fn words_name_the_nearest() {
    refuses(
        &(GOOD.to_string() + "balance = \"magelv\"\n"),
        "5:11: error: `balance` is \"magelv\"; did you mean \"maglev\"? (one of \"round-robin\", \
         \"weighted-round-robin\", \"least-connections\", \"power-of-two\", \"maglev\", \"source-hash\", \"header-hash\", \
         \"cookie-hash\", \"path-hash\", \"least-latency\")",
    );
    refuses(&with("plane = \"xdp\""), "2:9: error: `plane` is \"xdp\"; use one of \"linux\", \"dpdk\"");
    refuses(
        &with("[offload]\npolicy = 1"),
        "3:10: error: `policy` is the number 1, not text; write it in quotes, such as policy = \"always\"",
    );
}

#[test]
fn durations_have_units() {
    refuses(
        &with("[timeouts]\ntcp_closed = 30"),
        "3:14: error: `tcp_closed` is a bare number; say the unit: tcp_closed = \"30s\" or \"30ms\"",
    );
    refuses(
        &with("[timeouts]\ntcp_closed = \"30\""),
        "3:14: error: `tcp_closed` is \"30\", not a duration; write a number and its unit, such as \"500ms\", \"30s\", \
         \"5m\" or \"1h\"",
    );
    refuses(
        &with("[linux]\nheartbeat_timeout = \"1ms\""),
        "3:21: error: `heartbeat_timeout` is \"1ms\", out of range; use \"500ms\" to \"1h\"",
    );
}

#[test]
fn without_a_process_only_the_engine_sets_connections_up() {
    refuses(
        &with("[linux]\nwhen_absent = \"serve\""),
        "3:15: error: `when_absent` is \"serve\", but workers set connections up, and end with the process; write \
         set_up = \"engine\" in [offload], or when_absent = \"drop\"",
    );
}

#[test]
fn numbers_have_ranges() {
    refuses(&with("workers = 0"), "2:11: error: `workers` is 0, out of range; use 1 to 64 or \"auto\"");
    refuses(
        &with("workers = \"all\""),
        "2:11: error: `workers` is the text \"all\", not a whole number; use 1 to 64 or \"auto\"",
    );
    refuses(&with("[limits]\nrules_max = -1"), "3:13: error: `rules_max` is -1, out of range; use 64 to 16777216");
    refuses(
        &with("[limits]\nrules_max = 1e6"),
        "3:13: error: `rules_max` is the number 1e6, not a whole number; use 64 to 16777216",
    );
    refuses(
        &(GOOD.to_string() + "[[service.backend]]\naddress = \"10.0.0.2:80\"\nweight = 65536\n"),
        "7:10: error: `weight` is 65536, out of range; use 0 to 65535",
    );
    assert_eq!(good(&with("workers = 0x10")).settings.workers, Some(16));
    refuses(
        &with("[linux]\npolicer_floor = 500\npolicer_ceiling = 100"),
        "4:19: error: `policer_ceiling` (100) is below `policer_floor` (500); the rate moves between them: lower the \
         one or raise the other",
    );
}

#[test]
fn names_and_paths_have_forms() {
    refuses(
        &with("instance = \"much-too-long\""),
        "2:12: error: `instance` is \"much-too-long\"; use 1 to 9 letters, digits, `-` or `_`",
    );
    refuses(
        &with("instance = \"../x\""),
        "2:12: error: `instance` is \"../x\"; use 1 to 9 letters, digits, `-` or `_`",
    );
    refuses(
        &with("[control]\ndirectory = \"run\""),
        "3:13: error: `directory` is \"run\", not an absolute path; start it with `/`",
    );
    refuses(
        &with("[limits]\nmemory_directory = \"shm\""),
        "3:20: error: `memory_directory` is \"shm\", not an absolute path; start it with `/`",
    );
}

#[test]
fn interfaces_are_names() {
    let of = |list: &str| GOOD.replace("[\"eth0\"]", list);
    refuses(&of("[]"), "1:14: error: `interfaces` names none; name the interfaces that face clients and backends");
    refuses(
        &of("\"eth0\""),
        "1:14: error: `interfaces` is the text \"eth0\", not a list; write a list of texts, such as interfaces = \
         [\"eth0\", \"eth1\"]",
    );
    refuses(&of("[\"eth0\", \"eth0\"]"), "1:23: error: interface \"eth0\" is named twice; leave one out");
    refuses(
        &of("[\"a/b\"]"),
        "1:15: error: \"a/b\" cannot be the name of an interface; names have 1 to 15 characters, none of them `/`, `:` \
         or a space",
    );
    let missing = GOOD.replace("interfaces = [\"eth0\"]\n", "");
    refuses(&missing, "1:1: error: `interfaces` is missing in the top level; add interfaces = [\"eth0\", \"eth1\"]");
}

#[test]
fn ends_have_forms() {
    let listen = |text: &str| GOOD.replace("192.0.2.1:80/tcp", text);
    refuses(
        &listen("192.0.2.1:80"),
        "3:10: error: `listen` \"192.0.2.1:80\" names no protocol; write \"192.0.2.1:80/tcp\", or with udp, http, https or tls",
    );
    refuses(
        &listen("192.0.2.1:80/sctp"),
        "3:10: error: `listen` \"192.0.2.1:80/sctp\" has the unknown protocol \"sctp\"; use tcp, udp, http, https or tls",
    );
    refuses(
        &listen("192.0.2.1/tcp"),
        "3:10: error: `listen` \"192.0.2.1/tcp\" has no port; write \"192.0.2.10:80\" or \"[2001:db8::10]:80\"",
    );
    for beyond in ["192.0.2.1:99999", "[2001:db8::1]:65536"] {
        let expected =
            format!("3:10: error: `listen` \"{beyond}/tcp\" has a port that is out of range; use 1 to 65535");
        refuses(&listen(&format!("{beyond}/tcp")), &expected);
    }
    refuses(&listen("192.0.2.1:0/tcp"), "3:10: error: `listen` \"192.0.2.1:0/tcp\" has port 0; use 1 to 65535");
    refuses(
        &listen("0.0.0.0:80/tcp"),
        "3:10: error: `listen` \"0.0.0.0:80/tcp\" is the unspecified address; name one address",
    );
    refuses(
        &listen("127.0.0.1:80/tcp"),
        "3:10: error: `listen` \"127.0.0.1:80/tcp\" is a loopback address, which never comes in on an interface",
    );
    refuses(
        &listen("example.com:80/tcp"),
        "3:10: error: `listen` \"example.com:80/tcp\" is not an address and port; write \"192.0.2.10:80\" or \
         \"[2001:db8::10]:80\"",
    );
    let backend = |text: &str| GOOD.replace("10.0.0.1:80", text);
    refuses(
        &backend("10.0.0.1:99999"),
        "4:13: error: backend \"10.0.0.1:99999\" has a port that is out of range; use 1 to 65535",
    );
    refuses(
        &backend("fd00::1:80"),
        "4:13: error: backend \"fd00::1:80\" has no port; write \"192.0.2.10:80\" or \"[2001:db8::10]:80\"",
    );
    refuses(
        &backend("[fe80::1]:80"),
        "4:13: error: backend \"[fe80::1]:80\" is a link-local address, which routers do not forward",
    );
    refuses(
        &backend("[2001:db8::1%2]:80"),
        "4:13: error: backend \"[2001:db8::1%2]:80\" has a zone; leave out `%` and what follows",
    );
    refuses(
        &backend("[::ffff:10.0.0.1]:80"),
        "4:13: error: backend \"[::ffff:10.0.0.1]:80\" is an IPv4-mapped address; write it as IPv4",
    );
}

#[test]
fn all_problems_are_reported_in_the_order_of_the_file() {
    let text = "interfaces = [\"eth0\"]\nworkrs = 2\n[timeouts]\ntcp_closed = 5\n\
                [[service]]\nlisten = \"x\"\nmode = \"tunnel\"\n";
    let lines: Vec<String> = said(text).iter().map(|line| line.split(": ").next().unwrap().to_string()).collect();
    assert_eq!(lines, ["t.toml:2:1", "t.toml:4:14", "t.toml:5:1", "t.toml:6:10", "t.toml:7:8"]);
}

#[test]
fn syntax_errors_have_lines() {
    let all = said("interfaces = [\"eth0\"\n[[service]\nlisten = \n");
    assert!(all.iter().all(|line| line.starts_with("t.toml:") && line.contains("error")), "{all:?}");
    let repeated = said(&(GOOD.to_string() + "listen = \"192.0.2.1:81/tcp\"\n"));
    assert!(repeated[0].starts_with("t.toml:5:1: error: duplicate key"), "{repeated:?}");
    assert_eq!(
        said(""),
        [
            "t.toml:1:1: error: `interfaces` is missing in the top level; add interfaces = [\"eth0\", \"eth1\"]",
            "t.toml:1:1: error: there is no service; add one: [[service]] with `listen` and `backends`",
        ]
    );
}

#[test]
fn a_syntax_error_hides_no_other_mistake() {
    let text = "interfaces = [\"eth0\"]\nworkrs = 2\ninstance = @\n[timeouts]\ntcp_closed = 5\n\
                [[service]]\nname = \nlisten = \"192.0.2.1:99999/tcp\"\nmode = \"tunnel\"\n";
    let lines: Vec<String> = said(text).iter().map(|line| line.split(": ").next().unwrap().to_string()).collect();
    // No error that the service has no backend: the wrong line may be its backend.
    assert_eq!(lines, ["t.toml:2:1", "t.toml:3:12", "t.toml:5:14", "t.toml:7:8", "t.toml:8:10", "t.toml:9:8"]);
    // The text behind a broken name of a table would be read as part of another one.
    assert_eq!(said("workrs = 2\n[timeouts\ntcp_closed = 5\n").len(), 1);
}

#[test]
fn an_unclosed_list_is_one_mistake() {
    let text = "workers = 2\ninterfaces = [\"eth0\"\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.1:80\"]\n\
                [timeouts]\ntcp_closed = \"5s\"\n";
    assert_eq!(
        said(text),
        ["t.toml:3:1: error: the list before this is not closed, or lacks a comma; end it with `]`"]
    );
}

#[test]
fn counts_are_bounded() {
    let mut text = String::from("interfaces = [\"eth0\"]\n");
    for port in 1..=1025 {
        text += &format!("[[service]]\nlisten = \"192.0.2.1:{port}/tcp\"\nbackends = [\"10.0.0.1:{port}\"]\n");
    }
    refuses(&text, "3074:1: error: 1025 services; have 1024 at most");
    let list: Vec<String> = (1..=16385).map(|port| format!("\"10.0.0.1:{port}\"")).collect();
    refuses(
        &GOOD.replace("[\"10.0.0.1:80\"]", &format!("[{}]", list.join(","))),
        "1:1: error: 16385 backends in all services; have 16384 at most",
    );
}

#[test]
fn picking_up_wants_maglev() {
    let with = |more: &str| GOOD.to_string() + "unknown = \"pick-up\"\n" + more;
    assert_eq!(
        warned(&with("")),
        [
            "t.toml:5:11: warning: `unknown = \"pick-up\"` of service \"192.0.2.1:80/tcp\" takes up connections with the \
          backend that Maglev names, which is not the one that they have; use balance = \"maglev\", here and in the other \
          instance"
        ]
    );
    assert!(warned(&with("balance = \"maglev\"\n")).is_empty());
}

#[test]
fn what_is_hardly_meant_is_warned_of() {
    let backend = |more: &str| GOOD.to_string() + "[[service.backend]]\naddress = \"10.0.0.2:80\"\n" + more;
    assert_eq!(
        warned(&backend("weight = 2\n")),
        ["t.toml:2:1: warning: service \"192.0.2.1:80/tcp\" has weights, which \
        round-robin ignores; use balance = \"weighted-round-robin\""]
    );
    let off = GOOD
        .replace("backends = [\"10.0.0.1:80\"]", "[[service.backend]]\naddress = \"10.0.0.1:80\"\nstate = \"drain\"");
    assert_eq!(
        warned(&off),
        ["t.toml:3:10: warning: no backend of service \"192.0.2.1:80/tcp\" takes new connections; \
        enable one with a weight above 0"]
    );
    let udp = GOOD.replace("/tcp", "/udp") + "unknown = \"reset\"\n";
    assert_eq!(
        warned(&udp),
        ["t.toml:5:11: warning: `unknown` means nothing to service \"192.0.2.1:80/udp\", which is \
        UDP; leave it out"]
    );
    assert!(good(&udp).warnings.iter().all(|problem| problem.severity == Severity::Warning));
}

#[test]
fn an_unreadable_file_says_so() {
    let problems = config::load(Path::new("/nonexistent/hairpin.toml")).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "/nonexistent/hairpin.toml: error: cannot read the configuration: No such file or directory (os error 2); name \
         the configuration with -c FILE (`hairpin config` prints every field)"
    );
}
