use super::model::{HISTORY, Model};
use super::order::SortOrder;
use super::poll::{Carriers, News, Poll};
use super::view;
use crate::control::{ControlAnswer, ControlRequest, LatencyView, OffloadView, Page, serve};
use crate::status::{
    BackendStatus, CapacityStatus, Count, HealthStatus, HttpStatus, OffloadStatus, ServiceStatus, Status, Traffic,
    WorkerStatus,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::time::Duration;

fn traffic(packets_per_s: f64) -> Traffic {
    Traffic { packets_per_s, bits_per_s: packets_per_s * 8000.0, ..Traffic::default() }
}

fn backend(name: &str, connections: u64) -> BackendStatus {
    BackendStatus {
        name: name.into(),
        address: "10.0.2.11:8080".into(),
        state: "enabled".into(),
        connections,
        connections_per_s: 100.0 - connections as f64,
        offloaded: traffic(connections as f64),
        ..BackendStatus::default()
    }
}

pub(super) fn example() -> Status {
    let mut down = backend("web-2", 9);
    down.health = HealthStatus { state: "down".into(), reason: "refused".into(), ..HealthStatus::default() };
    down.overridden = true;
    let service = |name: &str, connections, backends| ServiceStatus {
        name: name.into(),
        listen: "192.0.2.10:80/tcp".into(),
        connections,
        connections_per_s: 25.0,
        software: traffic(1000.0),
        offloaded: traffic(3000.0),
        backends,
        ..ServiceStatus::default()
    };
    Status {
        version: "1.2.3".into(),
        instance: "edge".into(),
        pid: 42,
        uptime_s: 75.0,
        interfaces: vec!["eth0".into()],
        workers: vec![
            WorkerStatus { id: 0, busy_share: 0.5, ..WorkerStatus::default() },
            WorkerStatus { id: 1, busy_share: 1.0, ..WorkerStatus::default() },
        ],
        services: vec![
            service("web", 12, vec![backend("web-1", 3), down]),
            service("dns", 30, vec![backend("ns", 30)]),
        ],
        capacity: CapacityStatus {
            connections_max: 45,
            connections_state: "nearly-full".into(),
            ..CapacityStatus::default()
        },
        offload: OffloadStatus::default(),
        drops: [("kernel.policed-client".to_string(), Count { total: 9, per_s: 4.0 })].into(),
        events: [("worker.quiet".to_string(), Count { total: 9, per_s: 0.0 })].into(),
        ..Status::default()
    }
}

fn engine() -> OffloadView {
    OffloadView {
        rules: [70, 4],
        installed_per_s: 50.0,
        latency_us: LatencyView { p50: 64.0, p99: 2000.0, count: 9, ..LatencyView::default() },
        ..OffloadView::default()
    }
}

pub(super) fn figures(status: Status) -> News {
    News::Figures(Box::new(status), Some(Box::new(engine())))
}

/// The words on the screen, one space apart.
pub(super) fn screen(model: &mut Model, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, model)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let lines = buffer.content.chunks(usize::from(width));
    lines
        .map(|cells| cells.iter().map(|cell| cell.symbol()).collect::<String>())
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

pub(super) fn press(model: &mut Model, code: KeyCode) -> bool {
    model.key(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn the_screen_shows_rates_load_and_backends() {
    let mut model = Model::default();
    model.take(figures(example()));
    let lines = screen(&mut model, 120, 30);
    let text = lines.join("\n");
    for expected in [
        "hairpin 1.2.3 instance edge process 42 up 1m15s on eth0",
        "connections 50 new/s",
        "software 2.00 kpacket/s 16.0 Mbit/s",
        "offloaded 6.00 kpacket/s 48.0 Mbit/s",
        "share 75.0 % ███████████████░░░░░",
        "rules 50 new/s IPv4 70, IPv6 4; latency: half within 64 us, 99 % within 2.00 ms",
        "connections: 42 of 45, NEARLY FULL",
        "0 ██████████░░░░░░░░░░ 50.0 % 1 ████████████████████ 100.0 %",
        "NAME ADDRESS STATE HEALTH CONNS NEW/s SOFTWARE OFFLOADED",
        "web 192.0.2.10:80/tcp 12 25 8.00 Mbit/s 24.0 Mbit/s",
        "web-1 10.0.2.11:8080 enabled 3 97 0 bit/s 24.0 kbit/s",
        "web-2 10.0.2.11:8080 enabled* down: refused 9 91 0 bit/s 72.0 kbit/s",
        "kernel.policed-client 4",
        "q end ? keys Enter detail s sort (configuration) r reverse / filter",
    ] {
        assert!(text.contains(expected), "{expected}\n---\n{text}");
    }
    assert!(!text.contains("worker.quiet"), "{text}");
}

/// Services and backends with names as people give them.
fn ordinary() -> Status {
    let mut status = example();
    let [web, dns] = &mut status.services[..] else { unreachable!() };
    (web.name, dns.name) = ("shop-frontend".into(), "resolver-internal".into());
    for (backend, name) in web.backends.iter_mut().zip(["shop-frontend-01", "shop-frontend-02"]) {
        backend.name = name.into();
    }
    web.backends[1].health.reason = "connection refused".into();
    dns.backends[0].name = "10.0.2.11:8080".into();
    status.http = Some(HttpStatus {
        clients: 1234,
        backend_connections: 40,
        backend_connections_idle: 12,
        responses: [("2xx".to_string(), Count { total: 9, per_s: 1400.0 })].into(),
        ..HttpStatus::default()
    });
    status
}

#[test]
fn names_are_whole_at_80_by_24() {
    let mut model = Model::default();
    model.take(figures(ordinary()));
    let lines = screen(&mut model, 80, 24);
    let text = lines.join("\n");
    for expected in [
        "hairpin 1.2.3 instance edge process 42 up 1m15s on eth0",
        "rules 50 new/s IPv4 70, IPv6 4",
        "latency: half within 64 us, 99 % within 2.00 ms",
        "2xx 1.40 k/s",
        "1234 clients, 40 connections to backends, 12 idle",
        "shop-frontend 12 25 8.00 Mbit/s 24.0 Mbit/s",
        "shop-frontend-01 enabled 3 97 0 bit/s 24.0 kbit/s",
        "shop-frontend-02 down 9 91 0 bit/s 72.0 kbit/s",
        "resolver-internal 30 25 8.00 Mbit/s 24.0 Mbit/s",
        "10.0.2.11:8080 enabled 30 70 0 bit/s 240 kbit/s",
        "kernel.policed-client 4",
        "q end ? keys Enter detail s sort (configuration) r reverse / filter",
    ] {
        assert!(text.contains(expected), "{expected}\n---\n{text}");
    }
    // With more room nothing is left out.
    let text = screen(&mut model, 140, 40).join("\n");
    let whole = "shop-frontend-02 10.0.2.11:8080 enabled* down: connection refused 9 91 0 bit/s 72.0 kbit/s";
    assert!(text.contains(whole), "{text}");
}

#[test]
fn top_status_and_metrics_count_the_same_connections() {
    let mut status = example();
    let spliced = |name: &str, protocol: &str, connections| ServiceStatus {
        name: name.into(),
        protocol: protocol.into(),
        connections,
        ..ServiceStatus::default()
    };
    let group = ServiceStatus { group_of: Some("shop".into()), ..spliced("shop/a", "group", 4) };
    status.services.extend([spliced("shop", "http", 7), group]);
    // Records kept of ended connections take entries, and are no connections.
    status.capacity = CapacityStatus { connections: 42, entries: 90, connections_max: 1000, ..status.capacity };
    let mut model = Model::default();
    model.take(figures(status.clone()));
    let top = screen(&mut model, 120, 30).join("\n");
    assert!(top.contains("connections: 49 of"), "{top}");
    let told = crate::render::status(&status, None);
    assert!(told.contains("\nconnections: 49; connection table: 90 of 1000 entries"), "{told}");
    assert_eq!(metric(&status, "hairpin_service_connections", |line| !line.contains("shop/a")), 49);
    // Those of layer 4 by their backends, too.
    assert_eq!(metric(&status, "hairpin_connections", |_| true), 42);
    assert_eq!(metric(&status, "hairpin_table_connections", |_| true), 42);
}

/// The sum of the samples of a metric whose lines fit.
fn metric(status: &Status, name: &str, fits: fn(&str) -> bool) -> u64 {
    use std::io::{Read, Write};
    let shown = status.clone();
    let server = crate::metrics::serve(([127, 0, 0, 1], 0).into(), move || Ok(shown.clone())).unwrap();
    let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let samples = page.lines().filter(|line| line.split(['{', ' ']).next() == Some(name) && fits(line));
    samples.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64).sum()
}

/// The names in the table, from top to bottom.
fn names(model: &Model) -> Vec<String> {
    model.rows().iter().map(|row| row.name().to_string()).collect()
}

#[test]
fn sorting_goes_through_the_columns_and_back() {
    let mut model = Model::default();
    model.take(figures(example()));
    assert_eq!(names(&model), ["web", "web-1", "web-2", "dns", "ns"]);
    let mut orders = Vec::new();
    for _ in 0..7 {
        press(&mut model, KeyCode::Char('s'));
        orders.push((model.order, names(&model)[1].clone()));
    }
    let first = |order, name: &str| (order, name.to_string());
    assert_eq!(
        orders,
        [
            first(SortOrder::Name, "ns"),
            first(SortOrder::State, "web-2"),
            first(SortOrder::Connections, "ns"),
            first(SortOrder::New, "web-1"),
            // Services that are equal stay as they are.
            first(SortOrder::Software, "web-1"),
            first(SortOrder::Offloaded, "web-2"),
            first(SortOrder::Configuration, "web-1"),
        ]
    );
    press(&mut model, KeyCode::Char('S'));
    assert_eq!(model.order, SortOrder::Offloaded);
    press(&mut model, KeyCode::Char('r'));
    assert_eq!(names(&model), ["web", "web-1", "web-2", "dns", "ns"]);
    model.order = SortOrder::Connections;
    assert_eq!(names(&model), ["web", "web-1", "web-2", "dns", "ns"]);
    let header = |model: &mut Model| screen(model, 140, 30).into_iter().find(|line| line.starts_with("NAME")).unwrap();
    assert!(header(&mut model).contains(" CONNS▲ "), "{}", header(&mut model));
    press(&mut model, KeyCode::Char('r'));
    assert_eq!(names(&model), ["dns", "ns", "web", "web-2", "web-1"]);
    assert!(header(&mut model).contains(" CONNS▼ "), "{}", header(&mut model));
    model.order = SortOrder::Name;
    assert!(header(&mut model).contains("NAME▲ "), "{}", header(&mut model));
}

#[test]
fn the_table_follows_the_cursor_within_bounds() {
    let mut model = Model::default();
    let mut long = example();
    long.services[0].backends = (0..100)
        .map(|n| BackendStatus { address: format!("10.0.2.{n}:80"), ..backend(&format!("b-{n}"), n) })
        .collect();
    model.take(figures(long));
    let first = |model: &mut Model| {
        let lines = screen(model, 120, 30);
        let header = lines.iter().position(|line| line.starts_with("NAME ")).unwrap();
        lines[header + 1].split(' ').next().unwrap().to_string()
    };
    assert_eq!(first(&mut model), "web");
    press(&mut model, KeyCode::Up);
    assert_eq!(first(&mut model), "web");
    let room = model.scroll.room;
    (1..room).for_each(|_| assert!(!press(&mut model, KeyCode::Down)));
    assert_eq!(first(&mut model), "web");
    press(&mut model, KeyCode::Char('j'));
    assert_eq!(first(&mut model), "b-0");
    press(&mut model, KeyCode::PageDown);
    assert_eq!(first(&mut model), format!("b-{room}"));
    press(&mut model, KeyCode::Char('k'));
    assert_eq!(first(&mut model), format!("b-{room}"), "the cursor moves, the table need not");
    press(&mut model, KeyCode::End);
    let text = screen(&mut model, 120, 30).join("\n");
    assert!(text.contains("ns 10.0.2.11:8080") && text.contains(" to 103 of 103"), "{text}");
    press(&mut model, KeyCode::PageDown);
    assert_eq!(screen(&mut model, 120, 30).join("\n"), text);
    // The table may become shorter.
    model.take(figures(example()));
    assert_eq!(first(&mut model), "web");
    press(&mut model, KeyCode::Home);
    assert_eq!(model.scroll.first, 0);
}

#[test]
fn the_cursor_stays_on_its_row_when_the_order_changes() {
    let mut model = Model::default();
    model.take(figures(example()));
    screen(&mut model, 80, 24);
    (0..3).for_each(|_| assert!(!press(&mut model, KeyCode::Down)));
    let at = |model: &mut Model| {
        screen(model, 80, 24);
        let rows = model.rows();
        rows[model.cursor(&rows)].name().to_string()
    };
    assert_eq!(at(&mut model), "dns");
    model.order = SortOrder::Connections;
    assert_eq!((at(&mut model), names(&model)[0].as_str()), ("dns".into(), "dns"));
    // A row that has gone leaves its place to the next.
    (0..4).for_each(|_| assert!(!press(&mut model, KeyCode::Down)));
    assert_eq!(at(&mut model), "web-1");
    let mut fewer = example();
    fewer.services[0].backends.remove(0);
    model.take(figures(fewer));
    assert_eq!(at(&mut model), "web-2");
}

#[test]
fn filters_keep_what_fits_with_its_service() {
    let mut model = Model::default();
    model.take(figures(example()));
    screen(&mut model, 80, 24);
    let write =
        |model: &mut Model, text: &str| text.chars().for_each(|letter| assert!(!press(model, KeyCode::Char(letter))));
    write(&mut model, "/WEB-2q");
    assert!(names(&model).is_empty());
    let text = screen(&mut model, 80, 24).join("\n");
    assert!(text.contains("filter: WEB-2q_") && text.contains("no service or backend has that"), "{text}");
    press(&mut model, KeyCode::Backspace);
    press(&mut model, KeyCode::Enter);
    assert_eq!(names(&model), ["web", "web-2"]);
    assert!(screen(&mut model, 80, 24).join("\n").contains("services with \"WEB-2\""));
    press(&mut model, KeyCode::Esc);
    assert_eq!(names(&model).len(), 5);
    write(&mut model, "/dns");
    assert_eq!(names(&model), ["dns", "ns"]);
    press(&mut model, KeyCode::Esc);
    assert_eq!((names(&model).len(), model.typing), (5, false));
    assert!(press(&mut model, KeyCode::Char('q')));
}

#[test]
fn pausing_keeps_the_figures_but_not_the_history() {
    let mut model = Model::default();
    model.take(figures(example()));
    press(&mut model, KeyCode::Char('p'));
    model.take(figures(Status { pid: 43, ..example() }));
    assert_eq!((model.status.as_ref().unwrap().pid, model.history.len()), (42, 2));
    assert!(screen(&mut model, 120, 30)[0].contains("PAUSED"));
    press(&mut model, KeyCode::Char('p'));
    (0..2 * HISTORY).for_each(|_| model.take(figures(Status { pid: 43, ..example() })));
    assert_eq!((model.status.as_ref().unwrap().pid, model.history.len()), (43, HISTORY));
}

#[test]
fn pausing_keeps_the_carriers_of_the_service_that_is_shown() {
    let carriers = |service: &str, engine| {
        News::Carriers(Some(Carriers { service: service.into(), engine, ..Carriers::default() }))
    };
    let mut model = Model::default();
    model.take(figures(example()));
    model.take(carriers("web", 1));
    press(&mut model, KeyCode::Char('p'));
    model.take(carriers("web", 2));
    assert_eq!(model.carriers.as_ref().map(|carriers| carriers.engine), Some(1));
    model.take(carriers("dns", 3));
    assert_eq!(model.carriers.as_ref().map(|carriers| carriers.engine), Some(3));
}

#[test]
fn the_newest_wanted_service_is_asked_for() {
    let directory = std::env::temp_dir().join(format!("hairpin-top-wanted-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let socket = directory.join("s");
    let (asked, heard) = std::sync::mpsc::channel();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Arc::new(std::sync::Mutex::new(gate));
    serve(&socket, move |request| match request {
        ControlRequest::Status => {
            gate.lock().unwrap().recv().unwrap();
            ControlAnswer::Status(Box::new(example()))
        }
        ControlRequest::Connections(query) => {
            asked.send(query.service.unwrap()).unwrap();
            ControlAnswer::Connections(Page::default())
        }
        other => ControlAnswer::Error(format!("{other:?} is not for tests")),
    })
    .unwrap();
    let poll = Poll::begin(socket, Duration::from_secs(3600)).unwrap();
    ["one", "two", "three"].iter().for_each(|name| poll.want(Some((*name).to_string())));
    go.send(()).unwrap();
    assert_eq!(heard.recv_timeout(Duration::from_secs(20)).as_deref(), Ok("three"));
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn keys_end_it() {
    let mut model = Model::default();
    assert!(press(&mut model, KeyCode::Char('q')) && !press(&mut model, KeyCode::Esc));
    assert!(model.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    assert!(!press(&mut model, KeyCode::Char('c')) && !press(&mut model, KeyCode::Down));
}

#[test]
fn an_instance_may_go_away_and_come_back() {
    let directory = std::env::temp_dir().join(format!("hairpin-top-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let socket = directory.join("s");
    let poll = Poll::begin(socket.clone(), Duration::from_secs(1)).unwrap();
    let next = || poll.news.recv_timeout(Duration::from_secs(20)).unwrap();
    let mut model = Model::default();
    model.take(next());
    assert_eq!(model.away.as_deref(), Some("the instance does not answer"));
    assert!(screen(&mut model, 120, 30)[0].contains("waiting for the instance AWAY: the instance does not answer"));
    serve(&socket, |request| match request {
        ControlRequest::Status => ControlAnswer::Status(Box::new(example())),
        other => ControlAnswer::Error(format!("{other:?} is not for tests")),
    })
    .unwrap();
    while model.away.is_some() {
        model.take(next());
    }
    assert!(model.offload.is_none());
    let text = screen(&mut model, 120, 30).join("\n");
    assert!(text.contains("instance edge") && !text.contains("AWAY"), "{text}");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn http_services_have_a_line_and_groups_do_not_count_twice() {
    let mut status = example();
    let count = |per_s| Count { total: 9, per_s };
    status.http = Some(HttpStatus {
        clients: 6,
        clients_max: 55,
        backend_connections: 4,
        backend_connections_idle: 1,
        requests: count(1500.0),
        responses: [("2xx".to_string(), count(1400.0)), ("4xx".to_string(), count(0.0))].into(),
        replies: count(100.0),
        refused: [("no-route".to_string(), count(60.0)), ("denied".to_string(), count(20.0))].into(),
        ..HttpStatus::default()
    });
    let group = ServiceStatus { group_of: Some("web".into()), connections: 4, ..ServiceStatus::default() };
    status.services.push(group);
    let mut model = Model::default();
    model.take(figures(status));
    let text = screen(&mut model, 120, 30).join("\n");
    let line = "requests 1.50 k/s 2xx 1.40 k/s own 100/s refused 80/s 6 clients, 4 connections to backends, 1 idle";
    for expected in [line, "connections: 42 of 100"] {
        assert!(text.contains(expected), "{expected}\n---\n{text}");
    }
}
