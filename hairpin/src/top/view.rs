//! The screen.

use super::model::{Model, Row, Totals};
use crate::render::{brief, number, percent, scaled, span};
use crate::status::{BackendStatus, HttpStatus, ServiceStatus, Status, Traffic, WorkerStatus};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row as TableRow, Sparkline, Table};

/// Lines of workers at most; more of them stand side by side.
const WORKER_LINES: u16 = 8;
/// Cells of a worker's bar.
const BAR: usize = 20;
/// Columns a worker takes with its bar, number and share.
const WORKER_WIDTH: usize = BAR + 18;

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let area = frame.area();
    let workers = model.status.as_ref().map_or(0, |status| status.workers.len());
    let side_by_side = (usize::from(area.width) / WORKER_WIDTH).max(1);
    let worker_lines = (workers.div_ceil(side_by_side) as u16).clamp(1, WORKER_LINES) + 1;
    let figures = figures(model);
    let rows = [
        Constraint::Length(1),
        Constraint::Length(figures.len() as u16 + 1),
        Constraint::Length(5),
        Constraint::Length(worker_lines),
        Constraint::Min(4),
        Constraint::Length(4),
        Constraint::Length(1),
    ];
    let [top, traffic, history, load, table, happening, keys] = Layout::vertical(rows).areas(area);
    frame.render_widget(header(model), top);
    frame.render_widget(Paragraph::new(figures).block(titled("traffic")), traffic);
    draw_history(frame, model, history);
    let bars = bars(model.status.as_deref(), side_by_side);
    frame.render_widget(Paragraph::new(bars).block(titled("workers")), load);
    draw_table(frame, model, table);
    frame.render_widget(Paragraph::new(events(model)).block(titled("drops and events per second")), happening);
    let order = format!(" q end   p pause   s sort (by {})   arrows, page keys scroll", model.order.name());
    frame.render_widget(Paragraph::new(order).dim(), keys);
}

/// A thin line with a title above something.
fn titled(title: &str) -> Block<'_> {
    Block::new().borders(ratatui::widgets::Borders::TOP).title(format!(" {title} ")).border_style(Style::new().dim())
}

fn header(model: &Model) -> Line<'static> {
    let mut line = Line::default();
    match &model.status {
        Some(status) => {
            line.push_span(Span::from(format!(" hairpin {}", status.version)).bold());
            line.push_span(format!("  instance {}  process {}", status.instance, status.pid));
            line.push_span(format!("  up {}  on {}", span(status.uptime_s), status.interfaces.join(", ")));
        }
        None => line.push_span(" hairpin: waiting for the instance"),
    }
    if model.paused {
        line.push_span(Span::from("  PAUSED").fg(Color::Yellow).bold());
    }
    if let Some(why) = &model.away {
        line.push_span(Span::from(format!("  AWAY: {why}; waiting for it")).fg(Color::Red).bold());
    }
    line
}

/// Rates, share and rules.
fn figures(model: &Model) -> Vec<Line<'static>> {
    let totals = model.totals();
    let path = |name: &'static str, traffic: &Traffic| {
        let (packets, bits) = (scaled(traffic.packets_per_s), scaled(traffic.bits_per_s));
        Line::from(format!(" {name:<12} {:>16}  {:>14}", packets + "packet/s", bits + "bit/s"))
    };
    let mut lines = vec![
        Line::from(format!(" {:<12} {:>16}", "connections", scaled(totals.new_per_s) + "new/s")),
        path("software", &totals.software),
        path("offloaded", &totals.offloaded),
        share(&totals),
    ];
    lines.push(Line::from(rules(model)));
    lines.extend(model.status.as_ref().and_then(|status| status.http.as_ref()).map(|http| Line::from(requests(http))));
    lines
}

/// HTTP and TLS services.
fn requests(http: &HttpStatus) -> String {
    let mut line = format!(" {:<12} {:>16} ", "requests", scaled(http.requests.per_s).trim_end().to_string() + "/s");
    for (class, count) in http.responses.iter().filter(|(_, count)| count.per_s > 0.0) {
        line.push_str(&format!(" {class} {}/s", scaled(count.per_s).trim_end()));
    }
    if http.replies.per_s > 0.0 {
        line.push_str(&format!(" own {}/s", scaled(http.replies.per_s).trim_end()));
    }
    let refused: f64 = http.refused.values().map(|count| count.per_s).sum();
    if refused > 0.0 {
        line.push_str(&format!(" refused {}/s", scaled(refused).trim_end()));
    }
    let numbers = [http.clients, http.backend_connections, http.backend_connections_idle].map(|n| number(n as f64));
    let [clients, backends, idle] = numbers;
    line + &format!(" {clients} clients, {backends} connections to backends, {idle} idle")
}

fn share(totals: &Totals) -> Line<'static> {
    let share = totals.offloaded_share();
    let mut line = Line::from(format!(" {:<12} {:>16}  ", "share", percent(share)));
    line.push_span(Span::from(bar(share, BAR)).fg(Color::Green));
    line
}

fn rules(model: &Model) -> String {
    match (&model.offload, &model.status) {
        (Some(offload), _) => {
            let latency = match offload.latency_us {
                latency if latency.count == 0 => "none measured".to_string(),
                latency => format!("half within {}, 99 % within {}", brief(latency.p50), brief(latency.p99)),
            };
            let [v4, v6] = offload.rules.map(|count| number(count as f64));
            let installed = scaled(offload.installed_per_s);
            format!(" {:<12} {:>16}  IPv4 {v4}, IPv6 {v6}; latency: {latency}", "rules", installed + "new/s")
        }
        (None, Some(status)) => {
            let installed = scaled(status.offload.installed_per_s);
            format!(" {:<12} {:>16}  {}", "rules", installed + "new/s", number(status.offload.rules as f64))
        }
        (None, None) => String::new(),
    }
}

fn draw_history(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let now = model.history.front().copied().unwrap_or(0);
    let mut title = format!("connections: {}", number(now as f64));
    let mut style = Style::new().fg(Color::Cyan);
    let clients_max = model.status.as_ref().and_then(|status| status.http.as_ref()).map_or(0, |http| http.clients_max);
    if let Some(capacity) = model.status.as_ref().map(|status| &status.capacity).filter(|c| c.connections_max > 0) {
        title.push_str(&format!(" of {}", number((capacity.connections_max + clients_max) as f64)));
        match &*capacity.connections_state {
            "nearly-full" => (title, style) = (title + ", NEARLY FULL", Style::new().fg(Color::Yellow)),
            "full" => (title, style) = (title + ", FULL", Style::new().fg(Color::Red)),
            _ => {}
        }
    }
    let block = titled(&title);
    let width = usize::from(block.inner(area).width);
    // The newest to the right.
    let newest = model.history.iter().take(width);
    let padding = std::iter::repeat_n(0, width.saturating_sub(newest.len()));
    let data: Vec<u64> = padding.chain(newest.rev().copied()).collect();
    frame.render_widget(Sparkline::default().data(data).style(style).block(block), area);
}

fn bars(status: Option<&Status>, side_by_side: usize) -> Vec<Line<'static>> {
    let workers: &[WorkerStatus] = status.map_or(&[], |status| &status.workers);
    let line = |workers: &[WorkerStatus]| {
        let mut line = Line::default();
        for worker in workers {
            let colour = match worker.busy_share {
                busy if busy >= 0.9 => Color::Red,
                busy if busy >= 0.6 => Color::Yellow,
                _ => Color::Green,
            };
            line.push_span(format!(" {:>3} ", worker.id));
            line.push_span(Span::from(bar(worker.busy_share, BAR)).fg(colour));
            line.push_span(format!(" {:>8}   ", percent(worker.busy_share)));
        }
        line
    };
    workers.chunks(side_by_side).map(line).collect()
}

/// A bar of `width` cells, filled to `share`.
fn bar(share: f64, width: usize) -> String {
    let filled = ((share.clamp(0.0, 1.0) * width as f64).round() as usize).min(width);
    "█".repeat(filled) + &"░".repeat(width - filled)
}

fn draw_table(frame: &mut Frame<'_>, model: &mut Model, area: Rect) {
    // A line above with the title, and the columns' names.
    model.room = usize::from(area.height.saturating_sub(2));
    let rows = model.rows();
    let scroll = model.scroll.min(rows.len().saturating_sub(model.room.max(1)));
    let title = match rows.len() {
        all if all > model.room => {
            format!("services, lines {} to {} of {all}", scroll + 1, (scroll + model.room).min(all))
        }
        _ => "services".to_string(),
    };
    let shown = rows.iter().skip(scroll).take(model.room).map(|row| match row {
        Row::Service(service) => service_row(service),
        Row::Backend(backend) => backend_row(backend),
    });
    let header = ["NAME", "ADDRESS", "STATE", "HEALTH", "CONNS", "NEW/s", "SOFTWARE", "OFFLOADED"];
    let numbers = header.len() - 4;
    let header = header.iter().enumerate().map(|(column, name)| match column {
        0..4 => Cell::new(*name),
        _ => right((*name).to_string()),
    });
    let widths = [Constraint::Fill(3), Constraint::Fill(3), Constraint::Length(9), Constraint::Fill(3)];
    let widths = widths.into_iter().chain(std::iter::repeat_n(Constraint::Length(12), numbers));
    let header = TableRow::new(header).style(Style::new().add_modifier(Modifier::BOLD));
    let table = Table::new(shown, widths).header(header).block(titled(&title));
    frame.render_widget(table, area);
    model.scroll = scroll;
}

fn right(text: String) -> Cell<'static> {
    Cell::new(Line::from(text).alignment(Alignment::Right))
}

fn numbers(now: u64, per_s: f64, software: &Traffic, offloaded: &Traffic) -> [Cell<'static>; 4] {
    let bits = |traffic: &Traffic| scaled(traffic.bits_per_s) + "bit/s";
    [number(now as f64), number(per_s), bits(software), bits(offloaded)].map(right)
}

fn service_row(service: &ServiceStatus) -> TableRow<'static> {
    let removed = if service.state == "removed" { "removed" } else { "" };
    let listen = if service.group_of.is_some() { "group" } else { &service.listen };
    let words = [service.name.clone(), listen.to_string(), removed.into(), String::new()].map(Cell::new);
    let numbers = numbers(service.connections, service.connections_per_s, &service.software, &service.offloaded);
    TableRow::new(words.into_iter().chain(numbers)).style(Style::new().add_modifier(Modifier::BOLD))
}

fn backend_row(backend: &BackendStatus) -> TableRow<'static> {
    let hand = if backend.by_hand { "*" } else { "" };
    let health = match &*backend.health.state {
        "" | "unchecked" => String::new(),
        state if backend.health.reason.is_empty() => state.to_string(),
        state => format!("{state}: {}", backend.health.reason),
    };
    let words = [format!("  {}", backend.name), backend.address.clone(), format!("{}{hand}", backend.state), health]
        .map(Cell::new);
    let numbers = numbers(backend.connections, backend.connections_per_s, &backend.software, &backend.offloaded);
    let style = match (&*backend.health.state, &*backend.state) {
        ("down", _) => Style::new().fg(Color::Red),
        (_, "enabled") => Style::new(),
        _ => Style::new().dim(),
    };
    TableRow::new(words.into_iter().chain(numbers)).style(style)
}

fn events(model: &Model) -> Line<'static> {
    let happening = model.happening();
    if happening.is_empty() {
        return Line::from(" none").dim();
    }
    let texts: Vec<_> = happening.iter().map(|(name, per_s)| format!(" {name} {}", number(*per_s))).collect();
    Line::from(texts.join("  "))
}
