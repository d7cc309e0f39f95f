//! The engine and what it holds.

use super::{add, aligned, brief, number, percent, trimmed};
use crate::control::OffloadView;
use std::fmt::Write;

/// The engine as tables.
pub fn offload(view: &OffloadView) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "policy {}, engine {}", view.policy, view.engine);
    let mut table = aligned(&["RULES"], &["NOW", "MAX", "OCCUPIED"]);
    for (family, (now, max)) in ["IPv4", "IPv6"].iter().zip(view.rules.iter().zip(view.rules_max)) {
        let numbers = [number(*now as f64), number(max as f64), percent(*now as f64 / max.max(1) as f64)];
        add(&mut table, &[family], &numbers);
    }
    let _ = writeln!(out, "\n{table}");
    if view.passes > 0 {
        let _ = writeln!(out, "\nof these, {} leave a flow to the kernel", number(view.passes as f64));
    }

    let mut table = aligned(&[""], &["TOTAL", "/s", "P50", "P90", "P99", "MAX"]);
    let latency = view.latency_us;
    let mut numbers = vec![number(view.installed_total as f64), number(view.installed_per_s)];
    numbers.extend([latency.p50, latency.p90, latency.p99, latency.max].map(|percentile| match latency.count {
        0 => "-".to_string(),
        _ => brief(percentile),
    }));
    add(&mut table, &["installed"], &numbers);
    add(&mut table, &["removed"], &[number(view.removed_total as f64)]);
    let _ = writeln!(out, "\n{table}");

    let mut table = aligned(&["CONNECTIONS"], &["NOW"]);
    let at_least = if view.is_part { "at least " } else { "" };
    let shown = |count: u64| format!("{at_least}{}", number(count as f64));
    add(&mut table, &["offloaded"], &[shown(view.offloaded)]);
    for (reason, count) in &view.in_software {
        add(&mut table, &[&format!("software: {reason}")], &[shown(*count)]);
    }
    let _ = writeln!(out, "\n{table}");
    trimmed(&out)
}

#[cfg(test)]
mod tests {
    use super::super::squeezed;
    use super::*;
    use crate::control::LatencyView;

    #[test]
    fn occupancy_latency_and_reasons_are_shown() {
        let mut view = OffloadView {
            policy: "always".into(),
            engine: "linux".into(),
            rules: [131_072, 0],
            rules_max: [262_144, 262_144],
            installed_total: 300_000,
            installed_per_s: 12.0,
            removed_total: 5,
            latency_us: LatencyView { p50: 64.0, p90: 128.0, p99: 2048.0, max: 4096.0, count: 9 },
            in_software: vec![("not established".into(), 3), ("engine-full".into(), 2)],
            offloaded: 65_536,
            ..OffloadView::default()
        };
        assert_eq!(
            squeezed(&offload(&view)),
            [
                "policy always, engine linux",
                "",
                "RULES NOW MAX OCCUPIED",
                "IPv4 131 k 262 k 50.0 %",
                "IPv6 0 262 k 0.0 %",
                "",
                "TOTAL /s P50 P90 P99 MAX",
                "installed 300 k 12 64 us 128 us 2.05 ms 4.10 ms",
                "removed 5",
                "",
                "CONNECTIONS NOW",
                "offloaded 65536",
                "software: not established 3",
                "software: engine-full 2",
            ]
        );
        view.latency_us = LatencyView::default();
        view.rules_max = [0, 0];
        view.passes = 7;
        view.is_part = true;
        let text = offload(&view);
        assert!(squeezed(&text).contains(&"offloaded at least 65536".to_string()), "{text}");
        assert!(squeezed(&text).contains(&"software: engine-full at least 2".to_string()), "{text}");
        assert!(squeezed(&text).contains(&"installed 300 k 12 - - - -".to_string()), "{text}");
        assert!(text.contains("of these, 7 leave a flow to the kernel"), "{text}");
    }
}
