//! What limits of clients have decided, over all workers and runtimes.

use super::Reading;
use crate::config::SettingWord;
use crate::status::LimitStatus;
use hairpin_core::config::Service;
use hairpin_core::limit::LimitCounts;

/// Of the service with this number.
pub(super) fn of(reading: &Reading, number: usize, service: &Service) -> Vec<LimitStatus> {
    let said = service.limits.iter().enumerate().map(|(at, limit)| {
        let mut sum = LimitCounts::default();
        let services = reading.workers.iter().filter_map(|worker| worker.statistics.services.get(number));
        services.filter_map(|service| service.limits.get(at)).for_each(|counts| sum.add(counts));
        LimitStatus {
            limit: at as u16 + 1,
            counts: limit.kind.name().to_string(),
            action: limit.action.word().to_string(),
            dry_run: limit.is_dry_run,
            admitted_total: sum.admitted,
            refused_total: sum.refused,
            would_refuse_total: sum.would_refuse,
            displaced_total: sum.displaced,
        }
    });
    said.collect()
}
