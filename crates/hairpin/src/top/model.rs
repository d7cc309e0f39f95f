//! The data to show, apart from its form: figures, history, order and position.

use super::poll::News;
use crate::control::OffloadView;
use crate::status::{BackendStatus, ServiceStatus, Status, Traffic};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::VecDeque;

/// Seconds of history: as wide as a wide terminal.
pub(super) const HISTORY: usize = 300;

/// The column that services and backends are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SortOrder {
    /// As in the configuration.
    #[default]
    Configuration,
    /// Most connections first.
    Connections,
    /// Most new connections first.
    NewConnections,
    /// Most traffic first.
    Traffic,
}

impl SortOrder {
    fn next(self) -> SortOrder {
        match self {
            SortOrder::Configuration => SortOrder::Connections,
            SortOrder::Connections => SortOrder::NewConnections,
            SortOrder::NewConnections => SortOrder::Traffic,
            SortOrder::Traffic => SortOrder::Configuration,
        }
    }

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            SortOrder::Configuration => "configuration",
            SortOrder::Connections => "connections",
            SortOrder::NewConnections => "new/s",
            SortOrder::Traffic => "traffic",
        }
    }

    /// The value to sort by, greatest first.
    fn of(self, connections: u64, new: f64, software: &Traffic, offloaded: &Traffic) -> f64 {
        match self {
            SortOrder::Configuration => 0.0,
            SortOrder::Connections => connections as f64,
            SortOrder::NewConnections => new,
            SortOrder::Traffic => software.bits_per_s + offloaded.bits_per_s,
        }
    }
}

/// A line of the table: a service, or one of its backends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TopRow<'a> {
    /// A service.
    Service(&'a ServiceStatus),
    /// A backend of the service above.
    Backend(&'a BackendStatus),
}

/// Rates of all services together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RateTotals {
    /// New connections per second.
    pub(super) new_per_s: f64,
    /// Traffic that workers forward.
    pub(super) software: Traffic,
    /// Traffic that the kernel forwards.
    pub(super) offloaded: Traffic,
}

impl RateTotals {
    /// Share of the packets of the last second that was offloaded.
    pub(super) fn offloaded_share(&self) -> f64 {
        let all = self.software.packets_per_s + self.offloaded.packets_per_s;
        if all > 0.0 { self.offloaded.packets_per_s / all } else { 0.0 }
    }
}

/// Everything that is shown.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// The newest figures, or those at which it was paused.
    pub(super) status: Option<Box<Status>>,
    /// The rules that the engine holds.
    pub(super) offload: Option<Box<OffloadView>>,
    /// Why the instance does not answer, if it does not.
    pub(super) away: Option<String>,
    /// Connections, second by second, the newest first.
    pub(super) history: VecDeque<u64>,
    /// Whether figures stay as they are.
    pub(super) paused: bool,
    /// The order of services.
    pub(super) order: SortOrder,
    /// Lines of the table that are above the screen.
    pub(super) scroll: usize,
    /// Lines of the table that fit on the screen, as last drawn.
    pub(super) room: usize,
}

impl Model {
    /// Takes what a round of questions gave. The history goes on while paused.
    pub(super) fn take(&mut self, news: News) {
        match news {
            News::Away(why) => self.away = Some(why),
            News::Figures(status, offload) => {
                self.away = None;
                self.history.push_front(status.connections());
                self.history.truncate(HISTORY);
                if !self.paused {
                    (self.status, self.offload) = (Some(status), offload);
                }
            }
        }
    }

    /// Handles a key. Whether it is over.
    pub(super) fn key(&mut self, key: KeyEvent) -> bool {
        let last = self.rows().len().saturating_sub(self.room.max(1));
        let page = self.room.max(1);
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down => self.scroll += 1,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(page),
            KeyCode::PageDown => self.scroll += page,
            KeyCode::Home => self.scroll = 0,
            KeyCode::End => self.scroll = last,
            _ => {}
        }
        self.scroll = self.scroll.min(last);
        false
    }

    /// The table's lines, in order.
    pub(super) fn rows(&self) -> Vec<TopRow<'_>> {
        let Some(status) = &self.status else { return Vec::new() };
        let service_key =
            |s: &ServiceStatus| self.order.of(s.connections, s.connections_per_s, &s.software, &s.offloaded);
        let backend_key =
            |b: &BackendStatus| self.order.of(b.connections, b.connections_per_s, &b.software, &b.offloaded);
        // Stable: what is equal stays in the order of the configuration.
        let mut services: Vec<_> = status.services.iter().collect();
        services.sort_by(|a, b| service_key(b).total_cmp(&service_key(a)));
        let mut rows = Vec::new();
        for service in services {
            rows.push(TopRow::Service(service));
            let mut backends: Vec<_> = service.backends.iter().collect();
            backends.sort_by(|a, b| backend_key(b).total_cmp(&backend_key(a)));
            rows.extend(backends.into_iter().map(TopRow::Backend));
        }
        rows
    }

    /// Rates of all services together.
    pub(super) fn totals(&self) -> RateTotals {
        let mut totals = RateTotals::default();
        for service in self.status.iter().flat_map(|status| &status.services) {
            totals.new_per_s += service.connections_per_s;
            totals.software += service.software;
            totals.offloaded += service.offloaded;
        }
        totals
    }

    /// Drops and other events of the last second, most frequent first.
    pub(super) fn happening(&self) -> Vec<(&str, f64)> {
        let Some(status) = &self.status else { return Vec::new() };
        let all = status.drops.iter().chain(&status.events);
        let mut happening: Vec<_> =
            all.filter(|(_, count)| count.per_s > 0.0).map(|(name, count)| (&**name, count.per_s)).collect();
        happening.sort_by(|a, b| b.1.total_cmp(&a.1));
        happening
    }
}
