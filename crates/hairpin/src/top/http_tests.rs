//! What `top` shows of HTTP services, the detail of a service, and every size of screen.

use super::columns::{self, SERVICES};
use super::model::Model;
use super::order::SortOrder;
use super::poll::{Carriers, News};
use super::tests::{example, figures, press, screen};
use super::{batch, uncolour, view};
use crate::status::{BackendStatus, Count, HealthStatus, RequestTimesStatus, ServiceStatus, Status, WorkerStatus};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::style::Color;
use unicode_width::UnicodeWidthStr;

/// A backend that has answered so often, and with 5xx.
fn backend(name: &str, answers: u64, errors: u64) -> BackendStatus {
    BackendStatus {
        name: name.into(),
        address: format!("{name}:80"),
        weight: 3,
        state: "enabled".into(),
        responses: [("2xx".to_string(), answers - errors), ("5xx".to_string(), errors)].into(),
        ..BackendStatus::default()
    }
}

/// An instance with HTTP at a time in seconds, after this many requests of 2 ms, and others of 30 ms.
fn shop(uptime_s: f64, quick: u64, slow: u64) -> Status {
    let mut status = example();
    let service = |name: &str, requests: u64, buckets: &[(f64, u64)], backends| ServiceStatus {
        name: name.into(),
        listen: format!("192.0.2.11:80/{name}"),
        protocol: "http".into(),
        mode: "full-nat".into(),
        balance: "round-robin".into(),
        requests: Some(Count { total: requests, per_s: 0.0 }),
        times: Some(RequestTimesStatus {
            in_all_buckets: buckets.to_vec(),
            to_response_buckets: buckets.to_vec(),
            ..RequestTimesStatus::default()
        }),
        ready: true,
        backends,
        ..ServiceStatus::default()
    };
    let mut down = backend("api-2", 0, 0);
    down.health = HealthStatus {
        state: "down".into(),
        reason: "connection refused by 10.0.2.12 after two tries".into(),
        checks_total: 9,
        failed_total: 4,
        ..HealthStatus::default()
    };
    let api = service("api", slow, &[(0.032_768, slow)], vec![backend("api-1", slow, slow / 2), down]);
    let shop = service("shop", quick, &[(0.002_048, quick)], vec![backend("shop-1", 0, 0)]);
    let group = ServiceStatus {
        name: "shop/canary".into(),
        protocol: "group".into(),
        group_of: Some("shop".into()),
        backends: vec![backend("canary-1", quick, 0)],
        ..ServiceStatus::default()
    };
    status.services.extend([shop, group, api]);
    status.offload.engine = "kernel".into();
    status.offload.not_offloaded = [("engine-full".to_string(), 3)].into();
    Status { uptime_s, ..status }
}

/// With the figures of an interval of two seconds: 100 quick requests a second, and 20 slow ones, half of them errors.
fn busy() -> Model {
    let mut model = Model::default();
    model.take(figures(shop(100.0, 5000, 400)));
    model.take(figures(shop(102.0, 5200, 440)));
    model
}

#[test]
fn requests_errors_and_percentiles_have_columns() {
    let mut model = busy();
    let text = screen(&mut model, 150, 40).join("\n");
    for expected in [
        "NAME ADDRESS STATE HEALTH CONNS NEW/s REQ/s 5xx/s P50 P99 SOFTWARE OFFLOADED",
        "shop 192.0.2.11:80/shop 0 0 100 0 2.05 ms 2.05 ms 0 bit/s 0 bit/s",
        "shop/canary group 0 0 100 0 0 bit/s 0 bit/s",
        "canary-1 canary-1:80 enabled 0 0 100 0 0 bit/s 0 bit/s",
        "api 192.0.2.11:80/api 0 0 20 10 32.77 ms 32.77 ms 0 bit/s 0 bit/s",
        "api-1 api-1:80 enabled 0 0 20 10 0 bit/s 0 bit/s",
        "api-2 api-2:80 enabled down: connection refused by 10.… 0 0 0 0 0 bit/s 0 bit/s",
        "dns 192.0.2.10:80/tcp 30 25 8.00 Mbit/s 24.0 Mbit/s",
    ] {
        assert!(text.contains(expected), "{expected}\n---\n{text}");
    }
    // Before a second answer nothing is known of the interval.
    let mut first = Model::default();
    first.take(figures(shop(100.0, 5000, 400)));
    let text = screen(&mut first, 150, 40).join("\n");
    assert!(text.contains("api 192.0.2.11:80/api 0 0 0 bit/s 0 bit/s"), "{text}");
}

#[test]
fn groups_stay_behind_their_service_in_every_order() {
    let mut model = busy();
    let names = |model: &Model| model.rows().iter().map(|row| row.name().to_string()).collect::<Vec<_>>();
    for order in [SortOrder::P99, SortOrder::P50, SortOrder::Errors] {
        model.order = order;
        assert_eq!(names(&model)[..6], ["api", "api-1", "api-2", "shop", "shop-1", "shop/canary"], "{order:?}");
    }
    model.order = SortOrder::Requests;
    assert_eq!(names(&model)[..5], ["shop", "shop-1", "shop/canary", "canary-1", "api"]);
    model.reversed = true;
    assert_eq!(names(&model)[5..], ["api", "api-2", "api-1", "shop", "shop-1", "shop/canary", "canary-1"]);
}

#[test]
fn narrow_tables_go_without_columns_but_not_the_sorted_one() {
    let mut model = busy();
    let header = |model: &Model, width| {
        let rows = model.rows();
        let order = (model.order, model.reversed);
        let table = columns::table(&rows, &SERVICES, model.has_http(), order, Some(width));
        for line in table.rows.iter().chain([&table.header]) {
            assert!(line.width() <= width, "{width}: {line:?}");
        }
        table.header.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(header(&model, 80), "NAME STATE CONNS NEW/s REQ/s 5xx/s P50 P99 OFFLOADED");
    assert_eq!(header(&model, 40), "NAME STATE CONNS REQ/s");
    assert_eq!(header(&model, 24), "NAME CONNS");
    model.order = SortOrder::Software;
    assert_eq!(header(&model, 40), "NAME STATE CONNS SOFTWARE▼");
    model.order = SortOrder::P50;
    assert_eq!(header(&model, 24), "NAME P50▼");
}

#[test]
fn enter_shows_a_service_in_detail_and_esc_leads_back() {
    let mut model = busy();
    model.order = SortOrder::Errors;
    screen(&mut model, 100, 50);
    press(&mut model, KeyCode::Down);
    press(&mut model, KeyCode::Enter);
    let reasons = [("not established".to_string(), 2), ("engine-full".to_string(), 1)].into();
    let carriers = Carriers { service: "api".into(), engine: 7, software: 3, is_part: false, reasons };
    model.take(News::Carriers(Some(carriers)));
    let text = screen(&mut model, 100, 50).join("\n");
    for expected in [
        "api ───",
        "service 192.0.2.11:80/api, full-nat, round-robin",
        "requests 20/s, so far 440",
        "responses 2xx 10/s, 5xx 10/s; 50.0 % are 5xx",
        "carried by kernel 7, software 3",
        "in software engine-full 1, not established 2",
        "REQUESTS UNTIL P50 P90 P99 MAX COUNT",
        "in the last 2.0 s",
        "with the client 32.77 ms 32.77 ms 32.77 ms 32.77 ms 40",
        "connected to a backend - - - - 0",
        "backends of api, round-robin",
        "NAME ADDRESS WEIGHT STATE CONNS NEW/s REQ/s 5xx/s SOFTWARE OFFLOADED",
        "api-1 api-1:80 3 enabled 0 0 20 10 0 bit/s 0 bit/s",
        "responses so far: 2xx 220, 5xx 220",
        "down: connection refused by 10.0.2.12 after two tries; 4 of 9 checks failed",
        "refused engine-full 3",
        "Esc back",
    ] {
        assert!(text.contains(expected), "{expected}\n---\n{text}");
    }
    // At a time there is no more than fits.
    let part = screen(&mut model, 40, 10);
    assert!(part[1].contains("api, lines 1 to 7 of "), "{part:?}");
    press(&mut model, KeyCode::End);
    assert!(screen(&mut model, 40, 10).join("\n").contains("engine-full 3"));
    // The service may go while it is looked at.
    model.take(figures(example()));
    assert!(screen(&mut model, 100, 50).join("\n").contains("api is not there any more; Esc leads back"));
    press(&mut model, KeyCode::Esc);
    assert!(model.detail.is_none() && screen(&mut model, 100, 50).join("\n").contains("NAME ADDRESS"));
}

#[test]
fn the_detail_of_a_service_has_its_groups() {
    let mut model = busy();
    model.filter = "canary".into();
    screen(&mut model, 100, 60);
    press(&mut model, KeyCode::Enter);
    let text = screen(&mut model, 100, 60).join("\n");
    assert!(text.contains("group of shop") && !text.contains("shop-1"), "{text}");
    press(&mut model, KeyCode::Esc);
    model.filter = "shop-1".into();
    press(&mut model, KeyCode::Enter);
    let text = screen(&mut model, 100, 60).join("\n");
    let (own, group) = (text.find("backends of shop,"), text.find("group shop/canary"));
    assert!(own.is_some() && own < group && text.contains("canary-1 canary-1:80 3"), "{text}");
}

#[test]
fn a_question_mark_shows_the_keys_and_any_key_hides_them() {
    let mut model = busy();
    press(&mut model, KeyCode::Char('?'));
    let text = screen(&mut model, 80, 24).join("\n");
    assert!(text.contains("/ filter by name or address") && !text.contains("OFFLOADED"), "{text}");
    press(&mut model, KeyCode::Char('s'));
    assert_eq!((model.help, model.order), (false, SortOrder::Configuration));
}

#[test]
fn a_screen_without_colours_says_the_same() {
    let mut model = busy();
    let mut buffers = [false, true].map(|plain| {
        let mut terminal = Terminal::new(TestBackend::new(100, 50)).unwrap();
        let draw = |frame: &mut ratatui::Frame<'_>| {
            view::draw(frame, &mut model);
            if plain {
                uncolour(frame.buffer_mut());
            }
        };
        terminal.draw(draw).unwrap();
        terminal.backend().buffer().clone()
    });
    let colours = |buffer: &ratatui::buffer::Buffer| {
        buffer.content.iter().filter(|cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset)).count()
    };
    assert!(colours(&buffers[0]) > 0 && colours(&buffers[1]) == 0);
    uncolour(&mut buffers[0]);
    assert_eq!(buffers[0], buffers[1]);
}

#[test]
fn a_batch_is_text_without_escapes_or_cuts() {
    let mut model = busy();
    model.order = SortOrder::P99;
    let text = batch::text(&model, None);
    let lines: Vec<String> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(lines[0].starts_with("hairpin 1.2.3 instance edge process 42"), "{text}");
    let header = lines.iter().position(|line| line.starts_with("NAME ADDRESS STATE HEALTH")).unwrap();
    assert!(lines[header + 1].starts_with("api 192.0.2.11:80/api 0 0 20 10 32.77 ms 32.77 ms"), "{text}");
    assert!(text.contains("\n  api-1 "), "{text}");
    assert!(!text.contains('\u{1b}') && !text.contains('\t'), "{text:?}");
    assert!(batch::text(&model, Some(60)).lines().all(|line| line.width() <= 60));
}

/// A screen of any size, small ones most of all.
fn size() -> impl Strategy<Value = (u16, u16)> {
    prop_oneof![(1u16..30, 1u16..12), (1u16..130, 1u16..45)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_size_name_or_key_breaks_the_screen(
        (width, height) in size(),
        name in "\\PC{0,70}",
        workers in 0u16..70,
        keys in proptest::collection::vec(
            prop_oneof![
                Just(KeyCode::Up), Just(KeyCode::Down), Just(KeyCode::PageDown), Just(KeyCode::PageUp), Just(KeyCode::End),
                Just(KeyCode::Home), Just(KeyCode::Enter), Just(KeyCode::Esc), Just(KeyCode::Backspace),
                proptest::sample::select(vec!['s', 'S', 'r', '/', '?', 'p', 'j', 'k', 'w']).prop_map(KeyCode::Char),
            ],
            0..8,
        ),
    ) {
        let mut model = Model::default();
        screen(&mut model, width, height);
        let mut status = shop(100.0, 50, 4);
        status.workers = (0..workers).map(|id| WorkerStatus { id, busy_share: f64::NAN, ..WorkerStatus::default() }).collect();
        status.services[0].name.clone_from(&name);
        status.services[0].not_ready = format!("{name} {name}");
        let health = HealthStatus { state: "up".into(), reason: name.clone(), ..HealthStatus::default() };
        status.services[1].backends[0].health = health;
        model.take(figures(status.clone()));
        model.take(figures(Status { uptime_s: 101.0, ..status }));
        screen(&mut model, width, height);
        for key in keys {
            press(&mut model, key);
            screen(&mut model, width, height);
        }
        let rows = model.rows();
        let order = (model.order, model.reversed);
        for line in columns::table(&rows, &SERVICES, true, order, Some(usize::from(width))).rows {
            prop_assert!(line.width() <= usize::from(width), "{line:?}");
        }
        batch::text(&model, Some(usize::from(width)));
    }
}
