//! The ports of the dpdk plane as a table, and its packet buffers.

use super::{add, aligned, fitted, number};
use crate::status::{BufferStatus, PortStatus};
use std::fmt::Write;

/// Columns that a narrow terminal goes without, the first one first.
const SPARED: [usize; 6] = [3, 1, 5, 6, 11, 4];

/// A line for each port, and how packets find their worker.
pub(super) fn ports(ports: &[PortStatus], buffers: Option<&BufferStatus>, width: Option<usize>) -> String {
    let mut table = aligned(
        &["PORT", "DRIVER", "LINK", "ETHERNET", "ADDRESSES"],
        &["MTU", "QUEUES", "RECEIVED", "SENT", "MISSED", "ERRORS", "NO BUFFER"],
    );
    for port in ports {
        let name = port.device.split(',').next().unwrap_or_default();
        let link = if port.up { "up" } else { "DOWN" };
        let addresses = port.addresses.join(" ");
        let errors = port.receive_errors + port.transmit_errors;
        let few = [port.mtu, port.queues].map(|count| count.to_string());
        let counts = [port.received, port.transmitted, port.missed, errors, port.no_mbuf];
        let numbers: Vec<String> = few.into_iter().chain(counts.map(|count| number(count as f64))).collect();
        add(&mut table, &[name, &port.driver, link, &port.mac, &addresses], &numbers);
    }
    let mut out = fitted(table, width, &SPARED).to_string();
    if let Some(port) = ports.first() {
        let _ = write!(out, "\nsteering: {}; receive queues: {}", port.steering, port.spread);
    }
    for port in ports.iter().filter(|port| !port.rules.is_empty()) {
        let name = port.device.split(',').next().unwrap_or_default();
        let _ = write!(out, "\n{name}: {}", port.rules);
    }
    if let Some(buffers) = buffers {
        let [in_use, max] = [buffers.in_use, buffers.max].map(|count| number(f64::from(count)));
        let _ = write!(out, "\npacket buffers: {in_use} of {max} in use, {} bytes each", buffers.bytes);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_down_stands_out() {
        let port = PortStatus {
            device: "net_af_packet0,iface=eth1".into(),
            driver: "net_af_packet".into(),
            mac: "02:00:00:00:00:01".into(),
            addresses: vec!["10.0.0.1/24".into(), "fd00::1/64".into()],
            mtu: 1500,
            queues: 2,
            missed: 3,
            receive_errors: 1,
            transmit_errors: 1,
            steering: "one worker".into(),
            spread: "not by the driver".into(),
            rules: "no rules: the driver has none".into(),
            ..PortStatus::default()
        };
        let text = ports(&[port], Some(&BufferStatus { in_use: 12, max: 16_383, bytes: 2048 }), None);
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "PORT DRIVER LINK ETHERNET ADDRESSES MTU QUEUES RECEIVED SENT MISSED ERRORS NO BUFFER",
                "net_af_packet0 net_af_packet DOWN 02:00:00:00:00:01 10.0.0.1/24 fd00::1/64 1500 2 0 0 3 2 0",
                "steering: one worker; receive queues: not by the driver",
                "net_af_packet0: no rules: the driver has none",
                "packet buffers: 12 of 16383 in use, 2048 bytes each",
            ]
        );
    }
}
