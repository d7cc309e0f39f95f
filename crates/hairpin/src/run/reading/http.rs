//! The workers' counters of HTTP and TLS services.

use super::{Reading, ReadingRates};
use crate::status::{AdoptedHttpStatus, Count, HttpStatus, Status};
use hairpin_core::config::Snapshot;
use hairpin_core::l7::splice::{AdoptedSplices, HttpStatistics, Refused};
use hairpin_core::l7::threshold::Threshold;
use std::collections::BTreeMap;

/// Classes of responses, as the status calls them.
pub(crate) const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Responses of one backend.
pub(super) fn by_class(responses: &[u64; 5]) -> BTreeMap<String, u64> {
    CLASSES.iter().zip(responses).map(|(class, count)| (class.to_string(), *count)).collect()
}

/// The totals of HTTP and TLS services, if there are any, or have been any that did something.
pub(super) fn status(snapshot: &Snapshot, per_s: ReadingRates, before: &Reading, now: &Reading) -> Option<HttpStatus> {
    let configured = snapshot.services.iter().any(|service| service.kind.is_layer7());
    let sum = |reading: &Reading, of: &dyn Fn(&HttpStatistics) -> u64| -> u64 {
        reading.workers.iter().map(|worker| of(&worker.statistics.http)).sum()
    };
    let count = |of: &dyn Fn(&HttpStatistics) -> u64| -> Count {
        let [earlier, total] = [before, now].map(|reading| sum(reading, of));
        Count { total, per_s: per_s.of(earlier, total) }
    };
    let total = |of: fn(&HttpStatistics) -> u64| sum(now, &of);
    if !configured && total(|http| http.client_conns_peak) == 0 {
        return None;
    }
    let responses = CLASSES.iter().enumerate();
    let refused =
        Refused::ALL.iter().enumerate().map(|(at, why)| (why.name().to_string(), count(&|http| http.refused[at])));
    let thresholds = || now.workers.iter().map(|worker| worker.statistics.http.threshold);
    let mean = |of: fn(&Threshold) -> u64| {
        let known: Vec<u64> = thresholds().map(|threshold| of(&threshold)).filter(|&value| value > 0).collect();
        known.iter().sum::<u64>() as f64 / known.len().max(1) as f64
    };
    Some(HttpStatus {
        clients_entries: total(|http| http.client_conns_now),
        clients_peak: total(|http| http.client_conns_peak),
        clients_max: total(|http| http.client_conns_max),
        backend_connections_idle: total(|http| http.idle_now),
        requests: count(&|http| http.requests),
        responses: responses.map(|(at, class)| (class.to_string(), count(&|http| http.responses[at]))).collect(),
        replies: count(&|http| http.replies),
        refused: refused.filter(|(_, count)| count.total > 0).collect::<BTreeMap<_, _>>(),
        reused_total: total(|http| http.reused),
        retries_total: total(|http| http.retries),
        skipped_total: total(|http| http.skipped),
        retired_total: total(|http| http.retired),
        timestamps_declined_total: total(|http| http.timestamps_declined),
        reminded_total: total(|http| http.reminded),
        offloaded_total: total(|http| http.offloaded),
        offload_bytes_min: mean(|threshold| threshold.bytes_min) as u64,
        rule_pair_us: mean(|threshold| threshold.pair_ns) / 1e3,
        body_frame_us: mean(|threshold| threshold.frame_ns) / 1e3,
        body_frame_bytes: mean(|threshold| threshold.frame_bytes) as u64,
        retransmitted_total: total(|http| http.retransmitted),
        out_of_order_total: total(|http| http.out_of_order),
        unrecorded_total: total(|http| http.unrecorded),
        acknowledgements_superseded_total: total(|http| http.superseded),
        buffers: total(|http| http.buffers_now),
        buffers_max: total(|http| http.buffers_max),
        buffers_exhausted_total: total(|http| http.buffers_exhausted),
        cookies_sent_total: total(|http| http.cookies_sent),
        cookies_invalid_total: total(|http| http.cookies_invalid),
        cookies_used_total: total(|http| http.cookies_used),
        ended_overwritten_total: total(|http| http.ended_overwritten),
        ..HttpStatus::default()
    })
}

/// Adds up the connections of HTTP and TLS services, once each service has its own.
pub(super) fn count_connections(status: &mut Status) {
    let Some(http) = &mut status.http else { return };
    for service in &status.services {
        match &*service.protocol {
            "http" | "https" | "tls" => http.clients += service.connections,
            "group" => {}
            _ => continue,
        }
        http.backend_connections += service.backends.iter().map(|backend| backend.connections).sum::<u64>();
    }
}

/// What became of the connections of HTTP and TLS services that the process before had.
pub(crate) fn adopted(adopted: &AdoptedSplices) -> AdoptedHttpStatus {
    AdoptedHttpStatus {
        clients: adopted.client_conns,
        backend_connections: adopted.backend_conns,
        offloaded: adopted.offloaded,
        interrupted: adopted.interrupted,
        without_service: adopted.without_service,
        misplaced: adopted.misplaced,
        invalid: adopted.forgotten(),
        ports_overwritten: adopted.resting_overwritten,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::reading;
    use super::*;
    use hairpin_core::l7::threshold::BYTES_MIN_DEFAULT;

    #[test]
    fn what_workers_did_adds_up() {
        let file = "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.1\"]\n\
            [[service]]\nlisten = \"192.0.2.1:80/http\"\nbackends = [\"10.0.0.1:80\"]\n";
        let config = crate::config::parse("t", file).unwrap();
        let before = reading(&config.snapshot, 10, 2);
        let mut now = reading(&config.snapshot, 12, 2);
        now.workers[0].statistics.http.threshold =
            Threshold { bytes_min: 64 << 10, pair_ns: 8000, frame_ns: 6000, frame_bytes: 50_000 };
        for worker in &mut now.workers {
            let statistics = &mut worker.statistics;
            statistics.services[0].client_conns_now = 3;
            statistics.services[0].requests = 50;
            statistics.backends[0].open_now = 2;
            statistics.backends[0].responses = [0, 40, 0, 0, 6];
            let http = &mut statistics.http;
            // One of them is over, and one to the backend.
            (http.client_conns_now, http.client_conns_peak, http.client_conns_max) = (4, 5, 100);
            (http.backend_conns_now, http.idle_now) = (3, 1);
            (http.requests, http.replies) = (50, 4);
            http.responses = [0, 40, 0, 0, 6];
            http.refused[Refused::NoRoute as usize] = 2;
        }
        let status = super::super::status(&config.settings, &config.snapshot, &before, &now);
        let http = status.http.expect("there is a service");
        assert_eq!((http.clients, http.clients_entries), (6, 8));
        assert_eq!((http.clients_peak, http.clients_max), (10, 200));
        assert_eq!((http.backend_connections, http.backend_connections_idle), (4, 2));
        assert_eq!(http.requests, Count { total: 100, per_s: 50.0 });
        let of_backend: Vec<u64> = status.services[0].backends[0].responses.values().copied().collect();
        assert_eq!(of_backend, [0, 80, 0, 0, 12]);
        let responses: Vec<_> = http.responses.iter().map(|(class, count)| (&**class, count.total)).collect();
        assert_eq!(responses, [("1xx", 0), ("2xx", 80), ("3xx", 0), ("4xx", 0), ("5xx", 12)]);
        assert_eq!(http.refused, BTreeMap::from([("no-route".to_string(), Count { total: 4, per_s: 2.0 })]));
        // One worker has not measured anything yet.
        let mean = (BYTES_MIN_DEFAULT + (64 << 10)) / 2;
        assert_eq!((http.offload_bytes_min, http.rule_pair_us, http.body_frame_us), (mean, 8.0, 6.0));
        assert_eq!(http.body_frame_bytes, 50_000);
        let service = &status.services[0];
        assert_eq!(
            (service.connections, service.backends[0].connections),
            (6, 4),
            "clients', and those to the backend"
        );
        assert_eq!(service.requests, Some(Count { total: 100, per_s: 50.0 }));
    }

    #[test]
    fn terminated_services_count_like_spliced_ones() {
        let file = "interfaces = [\"eth0\"]\n[[service]]\nname = \"s\"\nlisten = \"192.0.2.1:443/https\"\n\
            https.certificates = \"/tls\"\nbackends = [\"10.0.0.1:80\"]\n[[service.group]]\nname = \"a\"\n\
            backends = [\"10.0.0.2:80\"]\n[[service.group]]\nname = \"b\"\nbackends = [\"10.0.0.3:80\"]\n\
            [[service.route]]\ngroups = { a = 1, b = 1 }\n\
            [[service]]\nname = \"t\"\nlisten = \"192.0.2.1:1/tcp\"\nbackends = [\"10.0.0.1:1\"]\n";
        let config = crate::config::parse("t", file).unwrap();
        let mut now = reading(&config.snapshot, 10, 1);
        let statistics = &mut now.workers[0].statistics;
        (statistics.services[0].client_conns_now, statistics.services[0].requests) = (3, 50);
        (statistics.backends[0].open_now, statistics.backends[1].open_now) = (2, 4);
        statistics.backends[0].responses = [0, 40, 0, 0, 6];
        let status = super::super::status(&config.settings, &config.snapshot, &now, &now);
        let http = status.http.expect("there is a service");
        assert_eq!((http.clients, http.backend_connections), (3, 6));
        let service = &status.services[0];
        assert_eq!((&*service.listen, service.connections), ("192.0.2.1:443/https", 3));
        assert_eq!(service.requests.map(|requests| requests.total), Some(50));
        assert_eq!(service.backends[0].responses["2xx"], 40);
        let modes: Vec<_> = status.services.iter().map(|service| (&*service.protocol, &*service.mode)).collect();
        let group = ("group", "terminated");
        assert_eq!(modes, [("https", "terminated"), group, group, ("tcp", "nat")]);
    }

    #[test]
    fn without_such_services_there_is_nothing_to_say() {
        let file =
            "interfaces = [\"eth0\"]\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.1:80\"]\n";
        let config = crate::config::parse("t", file).unwrap();
        let now = reading(&config.snapshot, 10, 2);
        let status = super::super::status(&config.settings, &config.snapshot, &now, &now);
        assert_eq!((status.http, status.services[0].requests), (None, None));
    }
}
