//! The screen.

use super::columns::{self, SERVICES};
use super::commands::KEYS;
use super::detail;
use super::model::{Model, RateTotals};
use crate::render::{brief, cut, number, percent, scaled, span};
use crate::status::{HttpStatus, Status, Traffic, WorkerStatus};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Sparkline, Wrap};
use std::time::{SystemTime, UNIX_EPOCH};
use unicode_width::UnicodeWidthStr;

/// Lines of workers at most; more of them stand side by side.
const WORKER_LINES: u16 = 8;
/// Lines of a screen with room for everything.
const ROOMY: u16 = 30;
/// Cells of a worker's bar.
const BAR: usize = 20;
/// Where the second piece of a line begins.
const INDENT: usize = 14;
/// Columns a worker takes with its bar, number and share.
const WORKER_WIDTH: usize = BAR + 18;

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let [top, rest, keys] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(header(model), top);
    if model.help {
        let width = usize::from(rest.width);
        let lines = KEYS.iter().map(|(keys, what)| Line::from(cut(&format!(" {keys:<20} {what}"), width)));
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(titled("keys")), rest);
    } else if model.detail.is_some() {
        draw_detail(frame, model, rest);
    } else {
        draw_all(frame, model, rest);
    }
    frame.render_widget(bottom(model, usize::from(keys.width)), keys);
}

/// Rates, history, load, the table and events.
fn draw_all(frame: &mut Frame<'_>, model: &mut Model, area: Rect) {
    let workers = model.status.as_ref().map_or(0, |status| status.workers.len());
    let side_by_side = (usize::from(area.width) / WORKER_WIDTH).max(1);
    let worker_lines = (workers.div_ceil(side_by_side) as u16).clamp(1, WORKER_LINES) + 1;
    let figures = figures(model, usize::from(area.width));
    let (history_lines, event_lines) = if frame.area().height >= ROOMY { (5, 4) } else { (2, 2) };
    // On a small screen services and backends come first: figures have what a third of it leaves.
    let table_lines = (model.rows().len() as u16).saturating_add(2).min(area.height / 3).max(4);
    let left = area.height.saturating_sub(history_lines + worker_lines + table_lines + event_lines);
    let rows = [
        Constraint::Length((figures.len() as u16 + 1).min(left)),
        Constraint::Length(history_lines),
        Constraint::Length(worker_lines),
        Constraint::Min(table_lines),
        Constraint::Length(event_lines),
    ];
    let [traffic, history, load, table, happening] = Layout::vertical(rows).areas(area);
    frame.render_widget(Paragraph::new(figures).block(titled("traffic")), traffic);
    draw_history(frame, model, history);
    let bars = bars(model.status.as_deref(), side_by_side);
    frame.render_widget(Paragraph::new(bars).block(titled("workers")), load);
    draw_table(frame, model, table);
    let events = Paragraph::new(events(model)).wrap(Wrap { trim: false });
    frame.render_widget(events.block(titled("drops and events per second")), happening);
}

fn draw_detail(frame: &mut Frame<'_>, model: &mut Model, area: Rect) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let lines = detail::lines(model, usize::from(area.width), now);
    model.detail_scroll.room = usize::from(area.height.saturating_sub(1));
    model.detail_scroll.lines = lines.len();
    model.detail_scroll.to(model.detail_scroll.first);
    let (first, room) = (model.detail_scroll.first, model.detail_scroll.room);
    let name = model.detail.as_ref().map_or("", |service| &service.name);
    let part = part(first, room, lines.len());
    let shown: Vec<Line<'_>> = lines.into_iter().skip(first).take(room).collect();
    frame.render_widget(Paragraph::new(shown).block(titled(&format!("{name}{part}"))), area);
}

/// Which lines of a list are seen, if not all are.
fn part(first: usize, room: usize, all: usize) -> String {
    match all {
        all if all > room => format!(", lines {} to {} of {all}", first + 1, (first + room).min(all)),
        _ => String::new(),
    }
}

/// The keys that matter most, or the filter that is typed.
fn bottom(model: &Model, width: usize) -> Line<'static> {
    if model.typing {
        return Line::from(format!(" filter: {}_   Enter keeps it, Esc drops it", model.filter));
    }
    let order = format!(" sort ({}{})", model.order.name(), if model.reversed { ", reversed" } else { "" });
    let pieces = match (model.help, &model.detail) {
        (true, _) => vec![" any key leads back".to_string(), "   q end".to_string()],
        (false, Some(_)) => [" Esc back", "   q end", "   ? keys", "   arrows, page keys scroll", "   p pause"]
            .map(str::to_string)
            .to_vec(),
        (false, None) => {
            vec![
                " q end   ? keys".to_string(),
                "   Enter detail".to_string(),
                format!("   s{order}"),
                "   r reverse".to_string(),
                "   / filter".to_string(),
                "   p pause".to_string(),
            ]
        }
    };
    Line::from(fitted(pieces, width).next().unwrap_or_default()).dim()
}

/// A thin line with a title above something.
fn titled(title: &str) -> Block<'_> {
    Block::new().borders(ratatui::widgets::Borders::TOP).title(format!(" {title} ")).border_style(Style::new().dim())
}

pub(super) fn header(model: &Model) -> Line<'static> {
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
pub(super) fn figures(model: &Model, width: usize) -> Vec<Line<'static>> {
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

/// A line's pieces on as many lines as they take: further ones begin below the second piece. A piece that has no room in a line
/// is broken between its words.
pub(super) fn fitted(pieces: Vec<String>, width: usize) -> impl Iterator<Item = String> {
    let room = width.saturating_sub(INDENT);
    let words = |piece: String| -> Vec<String> {
        if piece.width() <= room { vec![piece] } else { piece.split_inclusive(' ').map(str::to_string).collect() }
    };
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces.into_iter().flat_map(words) {
        match lines.last_mut() {
            Some(line) if line.width() + piece.trim_end().width() <= width => line.push_str(&piece),
            Some(_) => lines.push(format!("{:INDENT$}{}", "", piece.trim_start_matches([',', ';', ' ']))),
            None => lines.push(piece),
        }
    }
    lines.into_iter().map(move |line| cut(line.trim_end(), width))
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
    model.scroll.room = usize::from(area.height.saturating_sub(2));
    let rows = model.rows();
    let (all, cursor) = (rows.len(), model.cursor(&rows));
    // The row that keys are about is seen.
    let mut scroll = model.scroll;
    scroll.lines = all;
    let lowest = (cursor + 1).saturating_sub(scroll.room);
    scroll.to(scroll.first.clamp(lowest, cursor.max(lowest)));
    let order = (model.order, model.reversed);
    let table = columns::table(&rows, &SERVICES, model.has_http(), order, Some(usize::from(area.width)));
    let mut lines = vec![Line::from(table.header).bold()];
    let shown = table.rows.into_iter().zip(&rows).enumerate().skip(scroll.first).take(scroll.room);
    lines.extend(shown.map(|(at, (line, row))| {
        let style = columns::style(row);
        match at == cursor {
            // The whole line, not only as far as text goes.
            true => Line::styled(format!("{line:<width$}", width = usize::from(area.width)), style.reversed()),
            false => Line::styled(line, style),
        }
    }));
    if rows.is_empty() && !model.filter.is_empty() {
        lines.push(Line::from(" no service or backend has that in its name or address").dim());
    }
    let filter = match &*model.filter {
        "" => String::new(),
        filter => format!(" with \"{filter}\""),
    };
    let title = format!("services{filter}{}", part(scroll.first, scroll.room, all));
    frame.render_widget(Paragraph::new(lines).block(titled(&title)), area);
    model.scroll = scroll;
    model.settle(cursor);
}

fn events(model: &Model) -> Line<'static> {
    let happening = model.happening();
    if happening.is_empty() {
        return Line::from(" none").dim();
    }
    let texts: Vec<_> = happening.iter().map(|(name, per_s)| format!(" {name} {}", number(*per_s))).collect();
    Line::from(texts.join("  "))
}
