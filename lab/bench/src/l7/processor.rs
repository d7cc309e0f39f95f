//! The activity of the cores.

use anyhow::{Context, Result};

/// Time of a core so far, in ticks.
#[derive(Clone, Copy, Debug, Default)]
struct CoreTime {
    all: u64,
    idle: u64,
    softirq: u64,
}

/// The times of a core by kind, in seconds. The kernel gives hundredths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoreTimes {
    pub(crate) idle_s: f64,
    pub(crate) softirq_s: f64,
}

/// USER_HZ, which is 100 wherever Rust runs on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// The cores' times so far.
#[derive(Clone, Debug)]
pub(crate) struct Cores(Vec<CoreTime>);

impl Cores {
    /// Reads them.
    pub(crate) fn now() -> Result<Cores> {
        let text = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let lines = text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
        let core = |line: &str| {
            // user, nice, system, idle, iowait, irq, softirq, steal (proc(5)).
            let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
            let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
            CoreTime { all: ticks.iter().take(8).sum(), idle: at(3) + at(4), softirq: at(5) + at(6) }
        };
        Ok(Cores(lines.map(core).collect()))
    }

    /// The times of each since `before`.
    pub(crate) fn times_since(&self, before: &Cores) -> Vec<CoreTimes> {
        let seconds = |now: u64, then: u64| now.saturating_sub(then) as f64 / TICKS_PER_SECOND;
        let of = |(now, then): (&CoreTime, &CoreTime)| CoreTimes {
            idle_s: seconds(now.idle, then.idle),
            softirq_s: seconds(now.softirq, then.softirq),
        };
        self.0.iter().zip(&before.0).map(of).collect()
    }

    /// Their times since `before`, as people read them.
    pub(crate) fn since(&self, before: &Cores) -> String {
        let one = |number: usize, who: &str| {
            let (Some(now), Some(then)) = (self.0.get(number), before.0.get(number)) else { return String::new() };
            let all = (now.all - then.all).max(1) as f64;
            let busy = 100.0 - 100.0 * (now.idle - then.idle) as f64 / all;
            format!("{who} {busy:.0} % busy ({:.0} % softirq)", 100.0 * (now.softirq - then.softirq) as f64 / all)
        };
        format!("{}, {}", one(1, "balancer's core"), one(0, "the other"))
    }
}
