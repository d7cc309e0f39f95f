//! The JSON of commands is that of docs/reference/json.md, in both directions.

use hairpin::control::{
    Changes, ConnectionView, ControlAnswer, ControlRequest, ExchangeView, OffloadView, Page, RouteAnswer, RouteBackend,
    RouteGroup, RouteView, RuleView, SplicedView, serve,
};
use hairpin::status::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A documented type's fields: name, type, whether it may be missing.
type Fields = Vec<(String, String, bool)>;

/// The types of docs/reference/json.md.
fn documented() -> BTreeMap<String, Fields> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/json.md");
    let page = std::fs::read_to_string(path).unwrap();
    let mut types: BTreeMap<String, Fields> = BTreeMap::new();
    let mut name = None;
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            name = Some(title.to_string());
            types.insert(title.to_string(), Fields::new());
        } else if let (Some(name), Some(row)) = (&name, line.strip_prefix("| `")) {
            let (field, rest) = row.split_once("` | ").unwrap();
            let kind = rest.split(" | ").next().unwrap();
            let missing = kind.strip_suffix(", may be missing");
            types.get_mut(name).unwrap().push((field.into(), missing.unwrap_or(kind).into(), missing.is_some()));
        }
    }
    types
}

/// The difference between `value` and type `kind`, at `place`.
fn check(types: &BTreeMap<String, Fields>, kind: &str, value: &Value, place: &str) -> Result<(), String> {
    let wrong = || Err(format!("{place}: no {kind}: {value}"));
    if let Some(kind) = kind.strip_prefix("array of ") {
        let Some(all) = value.as_array() else { return wrong() };
        return all.iter().try_for_each(|one| check(types, kind, one, &format!("{place}[]")));
    }
    if let Some(kind) = kind.strip_prefix("object of ") {
        let Some(all) = value.as_object() else { return wrong() };
        return all.iter().try_for_each(|(name, one)| check(types, kind, one, &format!("{place}.{name}")));
    }
    if let Some(kind) = kind.strip_suffix(" or null") {
        return if value.is_null() { Ok(()) } else { check(types, kind, value, place) };
    }
    if let Some((one, other)) = kind.strip_prefix("pair of ").and_then(|kinds| kinds.split_once(" and ")) {
        let Some([first, second]) = value.as_array().map(Vec::as_slice) else { return wrong() };
        return check(types, one, first, place).and_then(|()| check(types, other, second, place));
    }
    let fits = match kind {
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        link => {
            let name = link.strip_prefix('[').and_then(|link| link.split(']').next());
            let fields = name.and_then(|name| types.get(name)).ok_or(format!("{place}: {kind} is not documented"))?;
            return fits_fields(types, fields, value, place);
        }
    };
    if fits { Ok(()) } else { wrong() }
}

fn fits_fields(types: &BTreeMap<String, Fields>, fields: &Fields, value: &Value, place: &str) -> Result<(), String> {
    let object = value.as_object().ok_or(format!("{place}: no object: {value}"))?;
    for (name, kind, may_miss) in fields {
        match object.get(name) {
            Some(value) => check(types, kind, value, &format!("{place}.{name}"))?,
            None if *may_miss => {}
            None => return Err(format!("{place}.{name} is documented and missing")),
        }
    }
    let is_known = |name: &str| name == "schema_version" || fields.iter().any(|(known, ..)| known == name);
    match object.keys().find(|name| !is_known(name)) {
        Some(name) => Err(format!("{place}.{name} is not documented")),
        None => Ok(()),
    }
}

/// Every part of a status there can be.
fn status() -> Status {
    let count = || BTreeMap::from([("x".to_string(), Count { total: 3, per_s: 1.5 })]);
    let number = || BTreeMap::from([("x".to_string(), 3)]);
    let health = HealthStatus { requests_failed: number(), ..HealthStatus::default() };
    let service = ServiceStatus {
        group_of: Some("shop".into()),
        requests: Some(Count::default()),
        times: Some(RequestTimesStatus {
            in_all_buckets: vec![(0.5, 3)],
            tls_handshake_us: Some(hairpin::control::LatencyView::default()),
            ..RequestTimesStatus::default()
        }),
        sizes: Some(RequestSizesStatus::default()),
        replies: number(),
        backends: vec![BackendStatus {
            health,
            ejection: Some(EjectionStatus::default()),
            responses: number(),
            ..BackendStatus::default()
        }],
        ..ServiceStatus::default()
    };
    let offload = OffloadStatus {
        engine_detail: "x".into(),
        engine_counts: number(),
        engine_lacks: BTreeMap::from([("x".to_string(), "y".to_string())]),
        not_offloaded: number(),
        kept: number(),
        evicted: number(),
        latency: vec![(0.5, 3)],
        ..OffloadStatus::default()
    };
    Status {
        interfaces: vec!["eth0".into()],
        ports: vec![PortStatus { addresses: vec!["192.0.2.1/24".into()], ..PortStatus::default() }],
        mbufs: Some(BufferStatus::default()),
        workers: vec![WorkerStatus::default()],
        services: vec![service, ServiceStatus::default()],
        offload,
        http: Some(HttpStatus { responses: count(), refused: count(), ..HttpStatus::default() }),
        api: Some(ApiStatus { answers_total: number(), connections_closed_total: number(), ..ApiStatus::default() }),
        tracing: Some(TracingStatus { spans_lost_total: number(), ..TracingStatus::default() }),
        monitors: vec![MonitorStatus {
            interfaces: vec!["eth0".into()],
            reports_total: number(),
            top: vec![TalkerStatus::default()],
            ..MonitorStatus::default()
        }],
        resolver: Some(ResolverStatus {
            servers: vec!["192.0.2.53:53".into()],
            names: vec![NameStatus { addresses: vec!["10.0.0.1".into()], age_s: Some(3), ..NameStatus::default() }],
            ..ResolverStatus::default()
        }),
        drops: count(),
        events: count(),
        ..Status::default()
    }
}

fn connections() -> Vec<ConnectionView> {
    let exchange = Some(ExchangeView { bytes_left: [Some(7), None], ..ExchangeView::default() });
    let spliced = Some(SplicedView { exchange, ..SplicedView::default() });
    let source = Some("10.0.9.1:2000".to_string());
    vec![ConnectionView::default(), ConnectionView { spliced, source, ..ConnectionView::default() }]
}

fn route() -> RouteAnswer {
    let rule = || Some(RuleView { denies: true, ..RuleView::default() });
    let backends = vec![RouteBackend { health: "up".into(), ..RouteBackend::default() }, RouteBackend::default()];
    let view = RouteView {
        access: rule(),
        route: rule(),
        status: Some(403),
        reason: "x".into(),
        location: Some("x".into()),
        sticky: Some("x".into()),
        replaced_prefix: Some("/".into()),
        groups: vec![RouteGroup { backends, ..RouteGroup::default() }],
        ..RouteView::default()
    };
    RouteAnswer { services: vec![view, RouteView::default()] }
}

fn answer(request: ControlRequest) -> ControlAnswer {
    let changes = || Changes { changes: vec!["a".into()], later: vec!["b".into()], warnings: vec!["c".into()] };
    match request {
        ControlRequest::Status => ControlAnswer::Status(Box::new(status())),
        ControlRequest::Connections(_) => {
            ControlAnswer::Connections(Page { connections: connections(), matched: 2, next: None })
        }
        ControlRequest::Offload => {
            let in_software = vec![("policy".to_string(), 3)];
            ControlAnswer::Offload(Box::new(OffloadView { in_software, ..OffloadView::default() }))
        }
        ControlRequest::Route(_) => ControlAnswer::Route(route()),
        ControlRequest::Reload { file: None, discard: false } | ControlRequest::Diff { .. } => {
            ControlAnswer::Changes(changes())
        }
        _ => ControlAnswer::Error("no".into()),
    }
}

#[test]
fn json_is_what_its_page_says() {
    let directory: PathBuf = std::env::temp_dir().join(format!("hairpin-json-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let socket = directory.join("s");
    let serving = socket.clone();
    serve(&serving, answer).unwrap();
    let file = directory.join("new.toml");
    std::fs::write(&file, "").unwrap();
    let event = r#"{"time":"2023-11-14T22:13:20.250Z","level":"info","kind":"start","pid":7,"message":"it serves"}"#;
    std::fs::write(directory.join("s.events"), format!("{event}\n{event}\n")).unwrap();
    let types = documented();
    let diff = format!("diff {}", file.display());
    let commands = [
        ("status", "Status", 1),
        ("status --ready", "Readiness", 1),
        ("monitor", "MonitorStatus", 1),
        ("connections", "ConnectionView", 2),
        ("offload --software", "ConnectionView", 2),
        ("connections --count", "Counted", 1),
        ("offload", "OffloadView", 1),
        ("route GET http://a.example/", "RouteAnswer", 1),
        ("events", "Event", 2),
        ("reload", "Changes", 1),
        (&*diff, "Changes", 1),
    ];
    for (command, kind, lines) in commands {
        let words = command.split(' ').chain(["-o", "json", "--socket"]);
        let output = Command::new(env!("CARGO_BIN_EXE_hairpin")).args(words).arg(&socket).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), lines, "{command}: {text} {}", String::from_utf8_lossy(&output.stderr));
        for line in text.lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            assert_eq!(value["schema_version"], 1, "{command}: {line}");
            check(&types, &format!("[{kind}]"), &value, kind).unwrap_or_else(|wrong| panic!("{command}: {wrong}"));
        }
    }
    let refused = Command::new(env!("CARGO_BIN_EXE_hairpin"))
        .args(["reload", "-o", "json", "--socket", "/nonexistent/s"])
        .output()
        .unwrap();
    let value: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(value["schema_version"], 1, "{value}");
    check(&types, "[Refusal]", &value, "Refusal").unwrap();
    let limits = Command::new(env!("CARGO_BIN_EXE_hairpin")).args(["limits", "-o", "json"]).output().unwrap();
    let value: Value = serde_json::from_slice(&limits.stdout).unwrap();
    assert_eq!(value["schema_version"], 1, "{value}");
    check(&types, "[Limits]", &value, "Limits").unwrap_or_else(|wrong| panic!("limits: {wrong}"));
    let nginx = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nginx/certbot.conf");
    let words = ["import", "nginx", "-o", "json"];
    let import = Command::new(env!("CARGO_BIN_EXE_hairpin")).args(words).arg(&nginx).output().unwrap();
    let notes = String::from_utf8(import.stderr).unwrap();
    assert!(import.status.success() && notes.lines().count() > 1, "{notes}");
    for line in notes.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["schema_version"], 1, "{value}");
        check(&types, "[ImportNote]", &value, "ImportNote").unwrap_or_else(|wrong| panic!("import: {wrong}"));
    }
    // Whatever this machine is like, it lacks something of this.
    let config =
        "interfaces = [\"no-such0\"]\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nbackends = [\"192.0.2.2:80\"]\n";
    std::fs::write(&file, config).unwrap();
    let words = ["validate", "--live", "-o", "json", "-c"];
    let live = Command::new(env!("CARGO_BIN_EXE_hairpin")).args(words).arg(&file).output().unwrap();
    let value: Value = serde_json::from_slice(&live.stdout).unwrap();
    assert_eq!((live.status.code(), &value["schema_version"]), (Some(1), &Value::from(1)), "{value}");
    assert!(value["findings"].as_array().is_some_and(|findings| findings.len() >= 2), "{value}");
    check(&types, "[LiveReport]", &value, "LiveReport").unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}
