//! The data to show, apart from its form: figures, history, order, filter and position.

use super::interval::{Interval, ResponseRates, ServiceInterval};
use super::order::SortOrder;
use super::poll::{Carriers, News};
use crate::control::OffloadView;
use crate::status::{BackendStatus, ServiceStatus, Status, Traffic};
use std::collections::VecDeque;

/// Refreshes of history: as wide as a wide terminal.
pub(super) const HISTORY: usize = 300;

/// A line of the table: a service or group, or one of its backends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TopRow<'a> {
    /// A service or group.
    Service(&'a ServiceStatus, &'a ServiceInterval),
    /// A backend of this service or group, and what it answered.
    Backend(&'a ServiceStatus, &'a BackendStatus, Option<ResponseRates>),
}

impl<'a> TopRow<'a> {
    /// Its name.
    pub(super) fn name(&self) -> &'a str {
        match self {
            TopRow::Service(service, _) => &service.name,
            TopRow::Backend(_, backend, _) => &backend.name,
        }
    }

    /// The service or group, or that of the backend.
    pub(super) fn service(&self) -> &'a ServiceStatus {
        match self {
            TopRow::Service(service, _) | TopRow::Backend(service, ..) => service,
        }
    }

    /// Connections now.
    pub(super) fn connections(&self) -> u64 {
        match self {
            TopRow::Service(service, _) => service.connections,
            TopRow::Backend(_, backend, _) => backend.connections,
        }
    }

    /// New connections per second.
    pub(super) fn connections_per_s(&self) -> f64 {
        match self {
            TopRow::Service(service, _) => service.connections_per_s,
            TopRow::Backend(_, backend, _) => backend.connections_per_s,
        }
    }

    /// Requests per second; of a backend, its answers.
    pub(super) fn requests_per_s(&self) -> Option<f64> {
        match self {
            TopRow::Service(_, interval) => interval.requests_per_s,
            TopRow::Backend(_, _, responses) => responses.map(ResponseRates::answers),
        }
    }

    /// Responses of backends.
    pub(super) fn responses(&self) -> Option<ResponseRates> {
        match self {
            TopRow::Service(_, interval) => interval.responses,
            TopRow::Backend(_, _, responses) => *responses,
        }
    }

    /// The interval of a service.
    pub(super) fn interval(&self) -> Option<&'a ServiceInterval> {
        match self {
            TopRow::Service(_, interval) => Some(interval),
            TopRow::Backend(..) => None,
        }
    }

    /// Traffic that workers forward.
    pub(super) fn software(&self) -> &'a Traffic {
        match self {
            TopRow::Service(service, _) => &service.software,
            TopRow::Backend(_, backend, _) => &backend.software,
        }
    }

    /// Traffic that the engine forwards.
    pub(super) fn offloaded(&self) -> &'a Traffic {
        match self {
            TopRow::Service(service, _) => &service.offloaded,
            TopRow::Backend(_, backend, _) => &backend.offloaded,
        }
    }

    /// How little it serves, for sorting: 2 down, 1 takes no new connections, 0 neither. Of a service, the most of its backends'.
    pub(super) fn trouble(&self) -> f64 {
        let of = |backend: &BackendStatus| match (&*backend.health.state, &*backend.state) {
            ("down", _) => 2.0,
            (_, "enabled") => 0.0,
            _ => 1.0,
        };
        match self {
            TopRow::Service(service, _) => service.backends.iter().map(of).fold(0.0, f64::max),
            TopRow::Backend(_, backend, _) => of(backend),
        }
    }

    fn key(&self) -> RowKey {
        let backend = match self {
            TopRow::Service(..) => None,
            TopRow::Backend(_, backend, _) => Some((backend.name.clone(), backend.address.clone())),
        };
        RowKey { service: ServiceKey::of(self.service()), backend }
    }
}

/// A service or group, from one status to the next. The address keeps apart services of one name: one that was removed, and
/// the one that has its name now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceKey {
    /// Its name.
    pub(super) name: String,
    listen: String,
}

impl ServiceKey {
    pub(super) fn of(service: &ServiceStatus) -> ServiceKey {
        ServiceKey { name: service.name.clone(), listen: service.listen.clone() }
    }

    pub(super) fn is(&self, service: &ServiceStatus) -> bool {
        self.name == service.name && self.listen == service.listen
    }
}

/// A row, from one status to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RowKey {
    service: ServiceKey,
    /// Name and address.
    backend: Option<(String, String)>,
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

/// A part of a list that is longer than the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scroll {
    /// Lines above the screen.
    pub(super) first: usize,
    /// Lines that fit on the screen, as last drawn.
    pub(super) room: usize,
    /// All lines, as last drawn.
    pub(super) lines: usize,
}

impl Scroll {
    /// Within the lines there are.
    pub(super) fn to(&mut self, first: usize) {
        self.first = first.min(self.lines.saturating_sub(self.room.max(1)));
    }
}

/// Everything that is shown.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// The newest figures, or those at which it was paused.
    pub(super) status: Option<Box<Status>>,
    /// What happened between them and those before.
    pub(super) interval: Interval,
    /// The rules that the engine holds.
    pub(super) offload: Option<Box<OffloadView>>,
    /// Who forwards the connections of the service that is shown in detail.
    pub(super) carriers: Option<Carriers>,
    /// Why the instance does not answer, if it does not.
    pub(super) away: Option<String>,
    /// Connections, refresh by refresh, the newest first.
    pub(super) history: VecDeque<u64>,
    /// Whether figures stay as they are.
    pub(super) paused: bool,
    /// The order of services.
    pub(super) order: SortOrder,
    /// Whether that order is turned round.
    pub(super) reversed: bool,
    /// Only services and backends with this in their names or addresses.
    pub(super) filter: String,
    /// Whether the filter is being typed.
    pub(super) typing: bool,
    /// Whether the keys are shown.
    pub(super) help: bool,
    /// The service that is shown in detail.
    pub(super) detail: Option<ServiceKey>,
    /// The row that keys are about; `None`: the first one, whichever that is.
    selected: Option<RowKey>,
    /// Where that row was seen last.
    position: usize,
    /// The table.
    pub(super) scroll: Scroll,
    /// The detail.
    pub(super) detail_scroll: Scroll,
    /// The newest figures, paused or not, that the next interval begins with.
    newest: Option<Box<Status>>,
}

impl Model {
    /// What is to be shown, of nothing yet.
    pub(super) fn new(order: SortOrder, reversed: bool, filter: String) -> Model {
        Model { order, reversed, filter, ..Model::default() }
    }

    /// Takes what a round of questions gave. The history goes on while paused.
    pub(super) fn take(&mut self, news: News) {
        match news {
            News::Away(why) => self.away = Some(why),
            News::Carriers(carriers) => {
                // Of a service that is shown only now, any figures are better than none.
                let of = |carriers: &Option<Carriers>| carriers.as_ref().map(|carriers| carriers.service.clone());
                if !self.paused || (carriers.is_some() && of(&carriers) != of(&self.carriers)) {
                    self.carriers = carriers;
                }
            }
            News::Figures(status, offload) => {
                self.away = None;
                self.history.push_front(status.connections());
                self.history.truncate(HISTORY);
                if !self.paused {
                    self.interval = Interval::between(self.newest.as_deref(), &status);
                    (self.status, self.offload) = (Some(status.clone()), offload);
                }
                self.newest = Some(status);
            }
        }
    }

    /// Whether there are services with requests.
    pub(super) fn has_http(&self) -> bool {
        self.status.iter().flat_map(|status| &status.services).any(|service| service.requests.is_some())
    }

    /// Services and their intervals, each with the groups that belong to it.
    fn blocks(&self) -> Vec<Vec<TopRow<'_>>> {
        let mut blocks: Vec<Vec<TopRow<'_>>> = Vec::new();
        let Some(status) = &self.status else { return blocks };
        for (service, interval) in status.services.iter().zip(&self.interval.services) {
            let row = TopRow::Service(service, interval);
            match blocks.last_mut() {
                Some(block) if service.group_of.is_some() => block.push(row),
                _ => blocks.push(vec![row]),
            }
        }
        blocks
    }

    /// The table's lines, in order: services, each followed by its backends and its groups.
    pub(super) fn rows(&self) -> Vec<TopRow<'_>> {
        // Stable: what is equal stays in the order of the configuration.
        let sort = |rows: &mut [TopRow<'_>]| rows.sort_by(|a, b| self.order.compare(self.reversed, a, b));
        let mut blocks = self.blocks();
        blocks.sort_by(|a, b| self.order.compare(self.reversed, &a[0], &b[0]));
        if self.reversed && self.order == SortOrder::Configuration {
            blocks.reverse();
        }
        let mut rows = Vec::new();
        for mut block in blocks {
            sort(&mut block[1..]);
            for service in block {
                let mut backends = backends(service);
                sort(&mut backends);
                backends.retain(|backend| self.fits(service) || self.fits(*backend));
                if self.fits(service) || !backends.is_empty() {
                    rows.push(service);
                    rows.extend(backends);
                }
            }
        }
        rows
    }

    fn fits(&self, row: TopRow<'_>) -> bool {
        let has = |text: &str| text.to_lowercase().contains(&self.filter.to_lowercase());
        match row {
            _ if self.filter.is_empty() => true,
            TopRow::Service(service, _) => has(&service.name) || has(&service.listen),
            TopRow::Backend(_, backend, _) => has(&backend.name) || has(&backend.address),
        }
    }

    /// Where the selected row is among `rows`. One that has gone leaves its place to the next.
    pub(super) fn cursor(&self, rows: &[TopRow<'_>]) -> usize {
        let Some(selected) = &self.selected else { return 0 };
        let found = rows.iter().position(|row| row.key() == *selected);
        found.unwrap_or(self.position).min(rows.len().saturating_sub(1))
    }

    /// Selects the row that stands `position` rows from the first.
    pub(super) fn select(&mut self, position: usize) {
        let rows = self.rows();
        let position = position.min(rows.len().saturating_sub(1));
        let key = rows.get(position).filter(|_| position > 0).map(TopRow::key);
        (self.selected, self.position) = (key, position);
    }

    /// The selected row stands `position` rows from the first now.
    pub(super) fn settle(&mut self, position: usize) {
        self.position = position;
    }

    /// The service of the selected row.
    pub(super) fn selected_service(&self) -> Option<ServiceKey> {
        let rows = self.rows();
        rows.get(self.cursor(&rows)).map(|row| ServiceKey::of(row.service()))
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

/// The backends of a service or group, in the order of the configuration.
pub(super) fn backends(row: TopRow<'_>) -> Vec<TopRow<'_>> {
    let TopRow::Service(service, interval) = row else { return Vec::new() };
    let responses = interval.backends.iter().copied().chain(std::iter::repeat(None));
    service.backends.iter().zip(responses).map(|(backend, rates)| TopRow::Backend(service, backend, rates)).collect()
}
