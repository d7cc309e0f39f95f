//! What HTTP services did between two statuses: differences of totals and of histograms' buckets.

use crate::control::LatencyView;
use crate::status::{BackendStatus, RequestTimesStatus, ServiceStatus, Status};
use std::collections::HashMap;

/// The classes of responses, `1xx` to `5xx`.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// A refresh interval. Services and their backends stand in the order of the later status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Interval {
    /// How long it was, in seconds.
    pub(super) seconds: f64,
    /// Its services and groups.
    pub(super) services: Vec<ServiceInterval>,
}

/// A service or group in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ServiceInterval {
    /// Requests per second; of a group, responses of its backends. `None`: it has none, or the interval has not passed.
    pub(super) requests_per_s: Option<f64>,
    /// Responses of its backends, and of those of its groups; `None` likewise.
    pub(super) responses: Option<ResponseRates>,
    /// How long its requests took until connected to a backend, until answered by it, and until they were with the client;
    /// `None` likewise.
    pub(super) times: Option<[LatencyView; 3]>,
    /// Responses of each backend.
    pub(super) backends: Vec<Option<ResponseRates>>,
}

impl ServiceInterval {
    /// The whole time of its requests, if there were some.
    pub(super) fn in_all(&self) -> Option<LatencyView> {
        self.times.map(|[_, _, in_all]| in_all).filter(|in_all| in_all.count > 0)
    }
}

/// Responses per second by class, `1xx` first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ResponseRates([f64; CLASSES.len()]);

impl ResponseRates {
    /// Each class with its rate.
    pub(super) fn by_class(self) -> impl Iterator<Item = (&'static str, f64)> {
        CLASSES.into_iter().zip(self.0)
    }

    /// Final responses: one for each request that was answered.
    pub(super) fn answers(self) -> f64 {
        self.0[1..].iter().sum()
    }

    /// Responses of class 5xx.
    pub(super) fn errors(self) -> f64 {
        self.0[4]
    }

    /// The share of errors in the answers, 0 to 1.
    pub(super) fn error_share(self) -> f64 {
        if self.answers() > 0.0 { self.errors() / self.answers() } else { 0.0 }
    }

    fn add(&mut self, other: ResponseRates) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, one)| *sum += one);
    }
}

impl Interval {
    /// From `before` to `now`. Without the former, or if it is another process's, whose counts began anew, nothing is known.
    pub(super) fn between(before: Option<&Status>, now: &Status) -> Interval {
        let same = before.filter(|before| before.pid == now.pid && before.instance == now.instance);
        let seconds = same.map_or(0.0, |before| now.uptime_s - before.uptime_s);
        let known: HashMap<_, _> = same
            .filter(|_| seconds > 0.0)
            .into_iter()
            .flat_map(|before| &before.services)
            .map(|service| ((&*service.name, &*service.listen), service))
            .collect();
        let of = |service: &ServiceStatus| match known.get(&(&*service.name, &*service.listen)) {
            Some(before) => service_interval(before, service, seconds),
            None => ServiceInterval { backends: vec![None; service.backends.len()], ..ServiceInterval::default() },
        };
        let mut services: Vec<ServiceInterval> = now.services.iter().map(of).collect();
        add_groups(&now.services, &mut services);
        Interval { seconds: seconds.max(0.0), services }
    }
}

fn service_interval(before: &ServiceStatus, now: &ServiceStatus, seconds: f64) -> ServiceInterval {
    let known: HashMap<&str, &BackendStatus> =
        before.backends.iter().map(|backend| (&*backend.address, backend)).collect();
    let of = |backend: &BackendStatus| {
        let before = known.get(&*backend.address)?;
        let total = |backend: &BackendStatus, class| backend.responses.get(class).copied().unwrap_or(0);
        let rate = |class| total(backend, class).saturating_sub(total(before, class)) as f64 / seconds;
        (!backend.responses.is_empty()).then(|| ResponseRates(CLASSES.map(rate)))
    };
    let backends: Vec<Option<ResponseRates>> = now.backends.iter().map(of).collect();
    let responses = backends.iter().flatten().copied().reduce(|mut sum, one| {
        sum.add(one);
        sum
    });
    let requests = now.requests.zip(before.requests);
    let counted = requests.map(|(now, before)| now.total.saturating_sub(before.total) as f64 / seconds);
    ServiceInterval {
        requests_per_s: counted.or(responses.map(ResponseRates::answers)),
        responses,
        times: before.times.as_ref().zip(now.times.as_ref()).map(|(before, now)| times(before, now)),
        backends,
    }
}

fn times(before: &RequestTimesStatus, now: &RequestTimesStatus) -> [LatencyView; 3] {
    [
        (&before.to_backend_buckets, &now.to_backend_buckets),
        (&before.to_response_buckets, &now.to_response_buckets),
        (&before.in_all_buckets, &now.in_all_buckets),
    ]
    .map(|(before, now)| {
        let earlier = |upper: f64| before.iter().find(|(end, _)| *end == upper).map_or(0, |(_, count)| *count);
        let buckets: Vec<(f64, u64)> =
            now.iter().map(|(upper, count)| (*upper, count.saturating_sub(earlier(*upper)))).collect();
        LatencyView::of(&buckets)
    })
}

/// What backends of groups answered, they answered to requests of the group's service, behind which it stands.
fn add_groups(services: &[ServiceStatus], intervals: &mut [ServiceInterval]) {
    let mut owner = None;
    for at in 0..services.len() {
        if services[at].group_of.is_none() {
            owner = Some(at);
        } else if let (Some(owner), Some(rates)) = (owner, intervals[at].responses) {
            intervals[owner].responses.get_or_insert_default().add(rates);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Count;

    fn status(uptime_s: f64, requests: u64, errors: u64, buckets: &[(f64, u64)]) -> Status {
        let backend = |address: &str, good, errors| BackendStatus {
            address: address.into(),
            responses: [("2xx".to_string(), good), ("5xx".to_string(), errors)].into(),
            ..BackendStatus::default()
        };
        let web = ServiceStatus {
            name: "web".into(),
            listen: "192.0.2.10:80/http".into(),
            requests: Some(Count { total: requests, per_s: 0.0 }),
            times: Some(RequestTimesStatus { in_all_buckets: buckets.to_vec(), ..RequestTimesStatus::default() }),
            backends: vec![backend("10.0.2.11:80", requests - errors, 0)],
            ..ServiceStatus::default()
        };
        let group = ServiceStatus {
            name: "web/a".into(),
            group_of: Some("web".into()),
            backends: vec![backend("10.0.2.12:80", 0, errors)],
            ..ServiceStatus::default()
        };
        Status { pid: 1, uptime_s, services: vec![web, group], ..Status::default() }
    }

    #[test]
    fn percentiles_are_those_of_the_interval_alone() {
        let before = status(10.0, 1000, 0, &[(0.001, 1000)]);
        let now = status(12.0, 1100, 20, &[(0.001, 1000), (0.004, 60), (0.016, 40)]);
        let interval = Interval::between(Some(&before), &now);
        let [web, group] = &interval.services[..] else { panic!("{interval:?}") };
        assert_eq!((interval.seconds, web.requests_per_s, group.requests_per_s), (2.0, Some(50.0), Some(10.0)));
        let in_all = web.in_all().unwrap();
        assert_eq!((in_all.p50, in_all.p99, in_all.count), (4000.0, 16_000.0, 100));
        let rates = web.responses.unwrap();
        assert_eq!((rates.errors(), rates.answers(), rates.error_share()), (10.0, 50.0, 0.2));
        assert_eq!(group.backends[0].unwrap().errors(), 10.0);
        assert_eq!(rates.by_class().map(|(_, rate)| rate).collect::<Vec<_>>(), [0.0, 40.0, 0.0, 0.0, 10.0]);
    }

    #[test]
    fn another_process_or_no_time_tells_nothing() {
        let before = status(10.0, 1000, 0, &[(0.001, 1000)]);
        let unknown = |before: Option<&Status>, now: &Status| {
            let interval = Interval::between(before, now);
            interval.services.iter().all(|one| (one.requests_per_s, one.responses, one.times) == (None, None, None))
        };
        let now = status(12.0, 5, 0, &[]);
        assert!(unknown(None, &now) && unknown(Some(&before), &Status { pid: 2, ..now.clone() }));
        assert!(unknown(Some(&before), &before) && unknown(Some(&now), &before));
        // A quiet interval is known, and has no percentiles.
        let quiet = Interval::between(Some(&before), &Status { uptime_s: 11.0, ..before.clone() });
        assert_eq!((quiet.services[0].requests_per_s, quiet.services[0].in_all()), (Some(0.0), None));
        // A service that is new has nothing before.
        let fresh = Status { services: Vec::new(), ..before.clone() };
        assert!(unknown(Some(&fresh), &Status { uptime_s: 11.0, ..before }));
    }
}
