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
    /// Segments that had arrived already, as their receivers told (RFC 2883).
    needless: u64,
    /// Packets that a core's queue of this machine had no room for (`net.core.netdev_max_backlog`).
    dropped: u64,
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
            all.needless += counter(&more, "TcpExt:", "TCPDSACKRecv")?;
        }
        let softnet = std::fs::read_to_string("/proc/net/softnet_stat").context("/proc/net/softnet_stat")?;
        all.dropped = backlog_drops(&softnet)?;
        Ok(all)
    }

    /// The difference since `before`, as people read it.
    pub(super) fn since(&self, before: &Resent) -> String {
        let segments = self.segments.saturating_sub(before.segments);
        let probes = self.probes.saturating_sub(before.probes);
        let timeouts = self.timeouts.saturating_sub(before.timeouts);
        let needless = self.needless.saturating_sub(before.needless);
        let dropped = self.dropped.saturating_sub(before.dropped);
        format!(
            "{segments} resent ({probes} probes, {timeouts} timeouts, {needless} had arrived, {dropped} dropped by cores' queues)"
        )
    }
}

/// The packets dropped by the queues of all cores: the second column, in hexadecimal, a line a core.
fn backlog_drops(softnet: &str) -> Result<u64> {
    let of_core = |line: &str| -> Result<u64> {
        let word = line.split_whitespace().nth(1).context("too short a line")?;
        u64::from_str_radix(word, 16).with_context(|| format!("\"{word}\" is no hexadecimal number"))
    };
    softnet.lines().map(of_core).sum::<Result<u64>>().context("/proc/net/softnet_stat has an unknown form")
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
    use super::{backlog_drops, counter};

    #[test]
    fn drops_of_all_cores_are_summed_up() {
        assert_eq!(backlog_drops("00000001 00000010 0\n00000002 00000001 0\n").expect("a form"), 17);
        assert!(backlog_drops("00000001\n").is_err() && backlog_drops("1 x\n").is_err());
    }

    #[test]
    fn a_counter_is_the_value_under_its_name() {
        let text = "Ip: A B\nIp: 1 2\nTcp: MaxConn RetransSegs\nTcp: -1 17\n";
        assert_eq!(counter(text, "Tcp:", "RetransSegs").expect("it is there"), 17);
        assert!(counter(text, "Tcp:", "B").is_err(), "of another group");
        assert!(counter(text, "Tcp:", "MaxConn").is_err(), "below zero");
    }
}
