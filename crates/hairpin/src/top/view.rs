//! The screen.

use super::columns;
use super::model::{Model, RateTotals};
use crate::render::{brief, number, percent, scaled, span};
use crate::status::{HttpStatus, Status, Traffic, WorkerStatus};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Sparkline, Wrap};

/// Lines of workers at most; more of them stand side by side.
const WORKER_LINES: u16 = 8;
/// Lines of a screen with room for everything.
const ROOMY: u16 = 30;
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
    let figures = figures(model, usize::from(area.width));
    // On a small screen services and backends come first.
    let (history_lines, event_lines) = if area.height >= ROOMY { (5, 4) } else { (2, 2) };
    let rows = [
        Constraint::Length(1),
        Constraint::Length(figures.len() as u16 + 1),
        Constraint::Length(history_lines),
        Constraint::Length(worker_lines),
        Constraint::Min(4),
        Constraint::Length(event_lines),
        Constraint::Length(1),
    ];
    let [top, traffic, history, load, table, happening, keys] = Layout::vertical(rows).areas(area);
    frame.render_widget(header(model), top);
    frame.render_widget(Paragraph::new(figures).block(titled("traffic")), traffic);
    draw_history(frame, model, history);
    let bars = bars(model.status.as_deref(), side_by_side);
    frame.render_widget(Paragraph::new(bars).block(titled("workers")), load);
    draw_table(frame, model, table);
    let events = Paragraph::new(events(model)).wrap(Wrap { trim: false });
    frame.render_widget(events.block(titled("drops and events per second")), happening);
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
            line.push_span(format!("  instance {}", status.instance));
        }
        None => line.push_span(" hairpin: waiting for the instance"),
    }
    if model.paused {
        line.push_span(Span::from("  PAUSED").fg(Color::Yellow).bold());
    }
    if let Some(why) = &model.away {
        line.push_span(Span::from(format!("  AWAY: {why}; waiting for it")).fg(Color::Red).bold());
    }
    // Last, as the end is cut off on a narrow screen.
    if let Some(status) = &model.status {
        let uptime = span(status.uptime_s);
        line.push_span(format!("  process {}  up {uptime}  on {}", status.pid, status.interfaces.join(", ")));
    }
    line
}

/// Rates, share and rules.
fn figures(model: &Model, width: usize) -> Vec<Line<'static>> {
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
    lines.extend(fitted(rules(model), width).map(Line::from));
    let http = model.status.as_ref().and_then(|status| status.http.as_ref());
    lines.extend(http.into_iter().flat_map(|http| fitted(requests(http), width)).map(Line::from));
    lines
}

/// A line's pieces on as many lines as they take: further ones begin below the second piece.
fn fitted(pieces: Vec<String>, width: usize) -> impl Iterator<Item = String> {
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        match lines.last_mut() {
            Some(line) if line.chars().count() + piece.chars().count() <= width => line.push_str(&piece),
            Some(_) => lines.push(format!(" {:<12} {}", "", piece.trim_start_matches([',', ';', ' ']))),
            None => lines.push(piece),
        }
    }
    lines.into_iter()
}

/// HTTP and TLS services, in pieces.
fn requests(http: &HttpStatus) -> Vec<String> {
    let mut line =
        vec![format!(" {:<12} {:>16} ", "requests", scaled(http.requests.per_s).trim_end().to_string() + "/s")];
    for (class, count) in http.responses.iter().filter(|(_, count)| count.per_s > 0.0) {
        line.push(format!(" {class} {}/s", scaled(count.per_s).trim_end()));
    }
    if http.replies.per_s > 0.0 {
        line.push(format!(" own {}/s", scaled(http.replies.per_s).trim_end()));
    }
    let refused: f64 = http.refused.values().map(|count| count.per_s).sum();
    if refused > 0.0 {
        line.push(format!(" refused {}/s", scaled(refused).trim_end()));
    }
    let numbers = [http.clients, http.backend_connections, http.backend_connections_idle].map(|n| number(n as f64));
    let [clients, backends, idle] = numbers;
    line.push(format!(" {clients} clients, {backends} connections to backends, {idle} idle"));
    line
}

fn share(totals: &RateTotals) -> Line<'static> {
    let share = totals.offloaded_share();
    let mut line = Line::from(format!(" {:<12} {:>16}  ", "share", percent(share)));
    line.push_span(Span::from(bar(share, BAR)).fg(Color::Green));
    line
}

/// Rules, in pieces.
fn rules(model: &Model) -> Vec<String> {
    match (&model.offload, &model.status) {
        (Some(offload), _) => {
            let latency = match offload.latency_us {
                latency if latency.count == 0 => "none measured".to_string(),
                latency => format!("half within {}, 99 % within {}", brief(latency.p50), brief(latency.p99)),
            };
            let [v4, v6] = offload.rules.map(|count| number(count as f64));
            let installed = scaled(offload.installed_per_s);
            let first = format!(" {:<12} {:>16}  IPv4 {v4}, IPv6 {v6}", "rules", installed + "new/s");
            vec![first, format!("; latency: {latency}")]
        }
        (None, Some(status)) => {
            let installed = scaled(status.offload.installed_per_s);
            vec![format!(" {:<12} {:>16}  {}", "rules", installed + "new/s", number(status.offload.rules as f64))]
        }
        (None, None) => vec![String::new()],
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
    let table = columns::table(&rows, scroll..rows.len().min(scroll + model.room), usize::from(area.width));
    frame.render_widget(table.block(titled(&title)), area);
    model.scroll = scroll;
}

fn events(model: &Model) -> Line<'static> {
    let happening = model.happening();
    if happening.is_empty() {
        return Line::from(" none").dim();
    }
    let texts: Vec<_> = happening.iter().map(|(name, per_s)| format!(" {name} {}", number(*per_s))).collect();
    Line::from(texts.join("  "))
}
