//! The common parts of `generate`, `sink` and `forward`: a port, its threads, an end.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use hairpin_lab::testbed::Measurement;
use hairpin_lab::testbed::cores::allowed;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A port and who serves it.
#[derive(Args, Debug)]
pub(super) struct PortArguments {
    /// The device by its DPDK name, with arguments: 0000:03:00.0, net_memif0,role=server,socket=/run/m.sock,
    /// net_af_xdp0,iface=veth1, net_af_packet0,iface=veth1.
    #[arg(long, value_name = "DEVICE")]
    pub(super) port: String,
    /// Queues of the port, each with a thread of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) cores: u16,
    /// Processors of the threads, one for each core; the first ones there are, unless given.
    #[arg(long, value_name = "CPU,...", value_delimiter = ',')]
    pub(super) cpus: Vec<usize>,
    /// Frames that each queue holds.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(64..=32768))]
    pub(super) descriptors: u16,
}

impl PortArguments {
    /// The processors, `from_end` from the last one on where none are given.
    pub(super) fn processors(&self, from_end: bool) -> Result<Vec<usize>> {
        let cores = usize::from(self.cores);
        if !self.cpus.is_empty() {
            ensure!(self.cpus.len() == cores, "{} processors for {cores} cores", self.cpus.len());
            return Ok(self.cpus.clone());
        }
        let all = allowed()?;
        ensure!(all.len() >= cores, "{cores} cores, and {} processors", all.len());
        Ok(if from_end { all[all.len() - cores..].to_vec() } else { all[..cores].to_vec() })
    }

    /// The port's settings, for frames of so many bytes.
    #[cfg(feature = "dpdk")]
    pub(super) fn settings(&self, longest: u16, from_end: bool) -> Result<hairpin_lab::testbed::ports::PortSetup> {
        Ok(hairpin_lab::testbed::ports::PortSetup {
            device: self.port.clone(),
            descriptors: self.descriptors,
            cpus: self.processors(from_end)?,
            longest,
        })
    }
}

/// DPDK, looking for cards if one of the devices is one.
#[cfg(feature = "dpdk")]
pub(super) fn start(devices: &[&str]) -> Result<hairpin_dpdk::Eal> {
    use hairpin_dpdk::{Eal, EalOptions, EalPages};
    let pci = devices.iter().any(|device| is_card(device));
    let options = EalOptions { memory_mib: 512, pages: if pci { EalPages::Auto } else { EalPages::None }, pci };
    Eal::start(options).context("could not start DPDK")
}

/// Whether a device is a card by its address, such as 0000:03:00.0: the names of others begin with `net_`.
#[cfg(feature = "dpdk")]
fn is_card(device: &str) -> bool {
    device.split(',').next().is_some_and(|name| name.contains(':') && name.contains('.'))
}

/// The flag that is set when the process is told to end.
pub(super) fn told_to_end() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone()).context("cannot listen for signals")?;
    }
    Ok(stop)
}

/// Six bytes in hexadecimal, colons between.
pub(super) fn ethernet_address(word: &str) -> Result<[u8; 6]> {
    let mut address = [0; 6];
    let mut parts = word.split(':');
    for byte in &mut address {
        let digits = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let part = parts.next().filter(|part| (1..=2).contains(&part.len())).filter(digits);
        let Some(value) = part.and_then(|part| u8::from_str_radix(part, 16).ok()) else {
            bail!("{word:?} is no Ethernet address such as 02:00:00:00:00:02");
        };
        *byte = value;
    }
    ensure!(parts.next().is_none(), "{word:?} is longer than an Ethernet address");
    Ok(address)
}

/// Why nothing can be done here.
#[cfg(not(feature = "dpdk"))]
pub(super) fn without() -> anyhow::Error {
    anyhow::anyhow!("this program was built without DPDK, which ports stand on: build it with --features dpdk")
}

/// A measurement for people.
pub(super) fn report(measured: &Measurement) -> String {
    let percent = measured.loss() * 100.0;
    let mut lines = vec![
        format!("time       {:.3} s", measured.seconds),
        format!("sent       {} packets, {}", measured.sent, rates(measured.tx_pps, measured.tx_bps)),
        format!("received   {} packets, {}", measured.received, rates(measured.rx_pps, measured.rx_bps)),
        format!("lost       {} packets, {percent:.4} %", measured.lost()),
    ];
    lines.extend(measured.lost_by_reason.iter().map(|(reason, count)| format!("           {count} {reason}")));
    if measured.behind > 0 {
        lines.push(format!("behind     {} packets were due and not sent", measured.behind));
    }
    let (again, order, wrong) = (measured.duplicates, measured.reordered, measured.corrupted);
    lines.push(format!("faults     {order} out of order, {again} twice, {wrong} corrupted"));
    if measured.latency.count > 0 {
        let latency = &measured.latency;
        let at = |nanoseconds: u64| format!("{:?}", Duration::from_nanos(nanoseconds));
        lines.push(format!(
            "latency    mean {}, half {}, 95 % {}, 99 % {}, 99.9 % {}, most {}",
            at(latency.mean as u64),
            at(latency.p50),
            at(latency.p95),
            at(latency.p99),
            at(latency.p999),
            at(latency.max)
        ));
    }
    if measured.flows_seen > 0 {
        lines.push(flows(measured));
    }
    if !measured.backend_packets.is_empty() {
        lines.push(format!(
            "backends   {}, the busiest has {:.3} times the mean",
            measured.backend_packets.len(),
            measured.backend_spread
        ));
    }
    lines.join("\n") + "\n"
}

/// The flows, and whether each went to one backend: of no more than was checked.
fn flows(measured: &Measurement) -> String {
    let mut line = format!("flows      {}", measured.flows_seen);
    if !measured.backend_packets.is_empty() {
        line += &match measured.inconsistent_flows {
            0 => ", each to one backend".to_owned(),
            moved => format!(", {moved} to more than one backend"),
        };
    }
    if measured.unchecked > 0 {
        line += &format!(" ({} packets of flows that had to give way not checked)", measured.unchecked);
    }
    line
}

fn rates(packets: f64, bits: f64) -> String {
    format!("{:.4} Mpps, {:.4} Gbit/s", packets / 1e6, bits / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_addresses() {
        assert_eq!(ethernet_address("02:0:ff:A:0b:7").unwrap(), [2, 0, 0xff, 0xa, 0xb, 7]);
        for wrong in
            ["", "02:00:00:00:00", "02:00:00:00:00:00:00", "02:00:00:00:00:gg", "020:0:0:0:0:0", "+1:0:0:0:0:0"]
        {
            assert!(ethernet_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_report_names_every_reason() {
        let lost_by_reason = vec![("ring-full".to_owned(), 3), ("table-full".to_owned(), 4)];
        let text = report(&Measurement { sent: 100, received: 93, lost_by_reason, ..Measurement::default() });
        assert!(text.contains("7 packets, 7.0000 %") && text.contains("3 ring-full") && text.contains("4 table-full"));
    }

    #[test]
    fn a_report_says_what_was_not_checked() {
        let flows = |unchecked, backends: &[(String, u64)]| {
            let backend_packets = backends.to_vec();
            let measured = Measurement { flows_seen: 9, unchecked, backend_packets, ..Measurement::default() };
            report(&measured).lines().find(|line| line.starts_with("flows")).map(str::to_owned)
        };
        let backends = [("198.18.0.1:8080".to_owned(), 1)];
        assert_eq!(flows(0, &backends).unwrap(), "flows      9, each to one backend");
        let expected = "flows      9, each to one backend (12 packets of flows that had to give way not checked)";
        assert_eq!(flows(12, &backends).unwrap(), expected);
        assert_eq!(flows(12, &[]).unwrap(), "flows      9 (12 packets of flows that had to give way not checked)");
    }
}
