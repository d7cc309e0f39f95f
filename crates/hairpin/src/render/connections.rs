//! Connections, a line each, page after page.

use super::{number, scaled, span};
use crate::control::{ConnectionView, SplicedView};
use std::fmt::Write;

/// The columns: title, and whether numbers stand in it.
const COLUMNS: [(&str, bool); 11] = [
    ("SERVICE", false),
    ("CLIENT", false),
    ("BACKEND", false),
    ("STATE", false),
    ("PATH", false),
    ("REQUESTS", true),
    ("PACKETS", true),
    ("BYTES", true),
    ("AGE", true),
    ("IDLE", true),
    ("WHY", false),
];

/// Columns that a narrow terminal goes without, the first one first.
const SPARED: [usize; 8] = [5, 6, 9, 10, 8, 7, 4, 3];

/// A table of connections that is written page by page: later pages keep the widths of earlier ones, so that nothing
/// has to be kept. A cell that is wider still moves its own line only.
#[derive(Debug, Default)]
pub struct Listing {
    widths: [usize; COLUMNS.len()],
    /// Columns that are left out.
    hidden: [bool; COLUMNS.len()],
    begun: bool,
    /// Columns of the terminal.
    width: Option<usize>,
}

impl Listing {
    /// On lines of at most `width` columns, if that is given and columns that matter less can be left out for it.
    pub fn new(width: Option<usize>) -> Listing {
        Listing { width, ..Listing::default() }
    }

    /// The lines of a page, with the titles before the first that has any.
    pub fn page(&mut self, connections: &[ConnectionView]) -> String {
        let rows: Vec<_> = connections.iter().map(cells).collect();
        for (column, width) in self.widths.iter_mut().enumerate() {
            let longest = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            *width = (*width).max(longest).max(COLUMNS[column].0.len());
        }
        let mut out = String::new();
        if !self.begun && !rows.is_empty() {
            self.begun = true;
            self.fit();
            self.line(&COLUMNS.map(|(title, _)| title.to_string()), &mut out);
        }
        rows.iter().for_each(|row| self.line(row, &mut out));
        out
    }

    /// Leaves columns out until the others fit, as wide as they are on the first page.
    fn fit(&mut self) {
        let Some(width) = self.width else { return };
        for spared in SPARED {
            let shown = self.widths.iter().zip(self.hidden).filter(|(_, hidden)| !hidden);
            if shown.map(|(width, _)| width + 2).sum::<usize>() <= width + 2 {
                return;
            }
            self.hidden[spared] = true;
        }
    }

    fn line(&self, cells: &[String; COLUMNS.len()], out: &mut String) {
        let start = out.len();
        let shown = cells.iter().zip(self.widths).zip(COLUMNS).zip(self.hidden).filter(|(_, hidden)| !hidden);
        for (((cell, width), (_, right)), _) in shown {
            let _ = if right { write!(out, "{cell:>width$}  ") } else { write!(out, "{cell:<width$}  ") };
        }
        out.truncate(start + out[start..].trim_end().len());
        out.push('\n');
    }
}

fn cells(connection: &ConnectionView) -> [String; COLUMNS.len()] {
    let sum = |both: [u64; 2]| both[0].saturating_add(both[1]) as f64;
    [
        connection.service.clone(),
        or_none(&connection.client).to_string(),
        or_none(&connection.backend).to_string(),
        connection.state.clone(),
        path(connection).to_string(),
        // Those that are forwarded have none that software knows of.
        connection.spliced.as_ref().map_or_else(String::new, |spliced| number(f64::from(spliced.requests))),
        number(sum(connection.packets)),
        format!("{}B", scaled(sum(connection.bytes))),
        span(connection.age_s),
        span(connection.idle_s),
        connection.offload.clone(),
    ]
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

fn path(connection: &ConnectionView) -> &'static str {
    if connection.offloaded { "offloaded" } else { "software" }
}

/// A connection and why it is, or is not, with the engine: a short paragraph.
pub fn explanation(connection: &ConnectionView) -> String {
    let ConnectionView { service, protocol, client, vip, backend_end, state, worker, .. } = connection;
    let source = connection.source.as_ref().map_or_else(String::new, |source| format!(" from {source}"));
    let share = |direction: usize| {
        let (offloaded, all) = (connection.packets_offloaded[direction], connection.packets[direction]);
        format!("{} of {}", number(offloaded as f64), number(all as f64))
    };
    let (ends, asks) = match &connection.spliced {
        None => (format!("{client} -> {vip}/{protocol} ({service}) ->{source} {backend_end}"), String::new()),
        Some(spliced) if spliced.end == "backend" => (format!("{service} ->{source} {backend_end}"), asked(spliced)),
        Some(spliced) => {
            let to = if backend_end.is_empty() { String::new() } else { format!(" ->{source} {backend_end}") };
            (format!("{client} -> {vip}/{} ({service}){to}", spliced.speaks), asked(spliced))
        }
    };
    format!(
        "{ends}\n  \
           {}, {state}, worker {worker}, since {}, last packet {} ago\n{asks}  \
           packets the engine forwarded: {} from the client, {} from the backend\n  \
           {}\n",
        path(connection),
        span(connection.age_s),
        span(connection.idle_s),
        share(0),
        share(1),
        if connection.offload.is_empty() { "no reason is given" } else { &connection.offload },
    )
}

/// A line of what was asked for over a connection, and what is being.
fn asked(spliced: &SplicedView) -> String {
    let mut line = format!("  requests: {}", number(f64::from(spliced.requests)));
    if let Some(exchange) = &spliced.exchange {
        let method = exchange.method.as_ref().map_or_else(String::new, |method| format!(" {method}"));
        let route = exchange.route.map_or_else(String::new, |route| format!(" by route {route}"));
        let left = |at: usize| exchange.bytes_left[at].map_or_else(String::new, |left| format!(" ({left} at most)"));
        let _ = write!(
            line,
            "; now{method}{route} to {}, since {}, still to come: of the request {}{}, of the response {}{}",
            exchange.group,
            span(exchange.age_s),
            exchange.request,
            left(0),
            exchange.response,
            left(1)
        );
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ExchangeView;

    fn connection(port: u16) -> ConnectionView {
        ConnectionView {
            service: "web".into(),
            protocol: "tcp".into(),
            client: format!("203.0.113.7:{port}"),
            vip: "192.0.2.10:80".into(),
            backend: "web-1".into(),
            backend_end: "10.0.2.11:8080".into(),
            source: None,
            state: "established".into(),
            worker: 1,
            offloaded: port > 9,
            offload: if port > 9 { "offloaded".into() } else { "engine-full".into() },
            packets: [10, 20],
            bytes: [1_000, 2_000_000],
            packets_offloaded: [8, 18],
            bytes_offloaded: [800, 1_800_000],
            age_s: 75.0,
            idle_s: 2.0,
            spliced: None,
        }
    }

    fn spliced(is_client: bool) -> ConnectionView {
        let exchange = ExchangeView {
            method: Some("GET".into()),
            version: Some("1.1".into()),
            route: Some(2),
            group: "web/a".into(),
            request: "nothing".into(),
            response: "bytes".into(),
            bytes_left: [None, Some(500)],
            age_s: 3.0,
        };
        let view = SplicedView {
            end: if is_client { "client" } else { "backend" }.into(),
            speaks: "http".into(),
            requests: 12,
            exchange: Some(exchange).filter(|_| is_client),
        };
        let source = Some("10.0.2.1:16384".into());
        let base = ConnectionView { source, spliced: Some(view), state: "spliced".into(), ..connection(9) };
        let idle = ConnectionView { client: String::new(), vip: String::new(), state: "idle".into(), ..base.clone() };
        if is_client { base } else { idle }
    }

    #[test]
    fn pages_line_up_and_have_one_header() {
        let mut listing = Listing::default();
        assert_eq!(listing.page(&[]), "");
        let first = listing.page(&[connection(40112), connection(9)]);
        let second = listing.page(&[connection(5), spliced(true), spliced(false)]);
        assert_eq!(
            first + &second,
            "\
SERVICE  CLIENT             BACKEND  STATE        PATH       REQUESTS  PACKETS    BYTES    AGE  IDLE  WHY
web      203.0.113.7:40112  web-1    established  offloaded                 30  2.00 MB  1m15s    2s  offloaded
web      203.0.113.7:9      web-1    established  software                  30  2.00 MB  1m15s    2s  engine-full
web      203.0.113.7:5      web-1    established  software                  30  2.00 MB  1m15s    2s  engine-full
web      203.0.113.7:9      web-1    spliced      software         12       30  2.00 MB  1m15s    2s  engine-full
web      -                  web-1    idle         software         12       30  2.00 MB  1m15s    2s  engine-full
"
        );
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns() {
        let text = |width| Listing::new(Some(width)).page(&[connection(40112)]);
        for width in [40, 60, 80, 100] {
            assert!(text(width).lines().all(|line| line.len() <= width), "{}", text(width));
        }
        let header = |width| text(width).lines().next().map(str::to_string).unwrap_or_default();
        assert_eq!(header(80), "SERVICE  CLIENT             BACKEND  STATE        PATH         BYTES    AGE");
        assert_eq!(header(40), "SERVICE  CLIENT             BACKEND");
        assert_eq!(text(200), Listing::new(None).page(&[connection(40112)]));
    }

    #[test]
    fn an_explanation_names_both_sides_and_the_reason() {
        let full_nat = ConnectionView { source: Some("10.0.2.1:16384".into()), ..connection(9) };
        assert_eq!(
            explanation(&full_nat),
            "203.0.113.7:9 -> 192.0.2.10:80/tcp (web) -> from 10.0.2.1:16384 10.0.2.11:8080\n  \
               software, established, worker 1, since 1m15s, last packet 2s ago\n  \
               packets the engine forwarded: 8 of 10 from the client, 18 of 20 from the backend\n  \
               engine-full\n"
        );
        assert_eq!(
            explanation(&spliced(true)),
            "203.0.113.7:9 -> 192.0.2.10:80/http (web) -> from 10.0.2.1:16384 10.0.2.11:8080\n  \
               software, spliced, worker 1, since 1m15s, last packet 2s ago\n  \
               requests: 12; now GET by route 2 to web/a, since 3s, still to come: of the request nothing, of the response \
               bytes (500 at most)\n  \
               packets the engine forwarded: 8 of 10 from the client, 18 of 20 from the backend\n  \
               engine-full\n"
        );
        let idle = explanation(&spliced(false));
        assert!(idle.starts_with("web -> from 10.0.2.1:16384 10.0.2.11:8080\n"), "{idle}");
        assert!(idle.contains("\n  requests: 12\n"), "{idle}");
        assert!(
            explanation(&connection(40112)).starts_with("203.0.113.7:40112 -> 192.0.2.10:80/tcp (web) -> 10.0.2.11")
        );
    }
}
