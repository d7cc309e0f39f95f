//! Iterations over rings: the testbed of real packets, its device metered.

use super::{Bench, DevicePoint, entries};
use crate::testbed::meter::CoreWork;
use crate::testbed::rings::RingTestbed;
use crate::testbed::{
    Arrivals, Device, Measurement, PacketSource, SendRate, Testbed, TransportProtocol, Trial, TrialProgress,
};
use anyhow::{Result, bail};
use hairpin_dpdk::Eal;
use std::time::Duration;

/// As fast as the generator can, for large iterations, both protocols alike (TCP costs more); and slowly, for small ones.
const LOADS: [(SendRate, TransportProtocol); 4] = [
    (SendRate::Max, TransportProtocol::Tcp),
    (SendRate::Max, TransportProtocol::Udp),
    (SendRate::Packets(1e6), TransportProtocol::Udp),
    (SendRate::Packets(1e6), TransportProtocol::Tcp),
];

/// Generator, device and sink over rings.
pub struct OverRings {
    bed: RingTestbed,
    duration: Duration,
    seed: u64,
    /// Packets in iterations that were interrupted, and all packets.
    interrupted: (u64, u64),
}

impl OverRings {
    /// With DPDK, which has been started; trials of so long.
    pub fn new(eal: Eal, duration: Duration) -> OverRings {
        let mut bed = RingTestbed::new(eal);
        bed.set_metered(true);
        OverRings { bed, duration, seed: 0, interrupted: (0, 0) }
    }
}

/// A trial at full speed of flows that the device knows.
fn trial(point: &DevicePoint, transport: TransportProtocol, duration: Duration, seed: u64) -> Trial {
    let source = PacketSource::Synthetic { transport, arrivals: Arrivals::Fixed, sizes: None, ipv6: false };
    Trial {
        device: point.device,
        table: point.table.clone(),
        table_entries: entries(point.flows),
        flows: point.flows,
        duration,
        source,
        seed,
        // Only a balancer knows flows.
        run: if point.device == Device::Balancer { 2 } else { 1 },
        ..Trial::default()
    }
}

impl Bench for OverRings {
    fn work(&mut self, point: &DevicePoint, progress: &mut dyn FnMut(&str)) -> Result<CoreWork> {
        let mut all = CoreWork::default();
        for (rate, transport) in LOADS {
            self.seed += 1;
            let trial = Trial { rate, ..trial(point, transport, self.duration, self.seed) };
            if let Some(obstacle) = self.bed.obstacle(&trial) {
                bail!("{obstacle}");
            }
            let measured = self.bed.measure(&trial, &mut |state| {
                if let TrialProgress::Preparing { what } = state {
                    progress(&what);
                }
            })?;
            all.add(&measured.work.unwrap_or_default());
        }
        self.interrupted.0 += all.interrupted;
        self.interrupted.1 += all.interrupted + all.packets();
        Ok(all)
    }

    /// The measurements in memory left a processor idle, and schedulers (that of a virtual machine's host, too) move
    /// threads when that changes: the first point would find another machine than all others.
    fn warm_up(&mut self) -> Result<()> {
        let point = DevicePoint { device: Device::Forwarder, table: String::new(), flows: 1000 };
        self.work(&point, &mut |_| ()).map(drop)
    }

    fn trial(&mut self, trial: &Trial) -> Result<Measurement> {
        if let Some(obstacle) = self.bed.obstacle(trial) {
            bail!("{obstacle}");
        }
        self.bed.measure(trial, &mut |_| ())
    }

    fn place(&self) -> String {
        let (interrupted, all) = self.interrupted;
        let part = 100.0 * interrupted as f64 / all.max(1) as f64;
        format!(
            "over rings between two cores ({part:.1} % of the packets were in turns that were interrupted, left out)"
        )
    }
}
