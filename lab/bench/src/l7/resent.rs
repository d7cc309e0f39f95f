//! The segments that the kernel's TCP had to send again.

use anyhow::{Context, Result};
use hairpin_e2e::namespace::Namespace;
use hairpin_e2e::tool::inside;

/// Counters of client, balancer and server, so far. The balancer's are those of a proxy; Hairpin has no TCP of its own
/// there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Resent {
    /// Segments.
    segments: u64,
    /// Probes for lost ends among these (RFC 8985).
    probes: u64,
    /// Timers that ran out.
    timeouts: u64,
}

impl Resent {
    /// Reads them.
    pub(super) fn now<'a>(namespaces: impl IntoIterator<Item = &'a Namespace>) -> Result<Resent> {
        let mut all = Resent::default();
        for namespace in namespaces {
            let read = |file: &'static str| move || std::fs::read_to_string(file).context(file);
            let basic = inside::run(namespace, read("/proc/thread-self/net/snmp"))?;
            let more = inside::run(namespace, read("/proc/thread-self/net/netstat"))?;
            all.segments += counter(&basic, "Tcp:", "RetransSegs")?;
            all.probes += counter(&more, "TcpExt:", "TCPLossProbes")?;
            all.timeouts += counter(&more, "TcpExt:", "TCPTimeouts")?;
        }
        Ok(all)
    }

    /// The difference since `before`, as people read it.
    pub(super) fn since(&self, before: &Resent) -> String {
        let segments = self.segments.saturating_sub(before.segments);
        let probes = self.probes.saturating_sub(before.probes);
        let timeouts = self.timeouts.saturating_sub(before.timeouts);
        format!("{segments} resent ({probes} probes, {timeouts} timeouts)")
    }
}

/// A counter of one of these files: a line has a group's names, the next its values.
fn counter(text: &str, group: &str, name: &str) -> Result<u64> {
    let mut lines = text.lines().filter(|line| line.split_whitespace().next() == Some(group));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let value = names.split_whitespace().zip(values.split_whitespace()).find(|(found, _)| *found == name);
    let (_, value) = value.with_context(|| format!("the kernel has no counter {group} {name}"))?;
    value.parse().with_context(|| format!("{group} {name} is {value}"))
}

#[cfg(test)]
mod tests {
    use super::counter;

    #[test]
    fn a_counter_is_the_value_under_its_name() {
        let text = "Ip: A B\nIp: 1 2\nTcp: MaxConn RetransSegs\nTcp: -1 17\n";
        assert_eq!(counter(text, "Tcp:", "RetransSegs").expect("it is there"), 17);
        assert!(counter(text, "Tcp:", "B").is_err(), "of another group");
        assert!(counter(text, "Tcp:", "MaxConn").is_err(), "below zero");
    }
}
