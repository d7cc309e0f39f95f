//! What Hairpin costs by itself: its BPF program, rule installation, idleness.

use super::report::{Bar, Row};
use super::samples::Samples;
use super::{Plan, progress};
use crate::peer::{Hairpin, HairpinOptions, Service};
use crate::servers::{ECHO_PORT, HTTP_PORT};
use crate::topology::{Family, Options, Topology};
use anyhow::Result;
use std::time::{Duration, Instant};

/// Processor time of a Hairpin that has nothing to do, as a share of one core.
pub(super) fn idle(plan: &Plan) -> Result<Vec<Row>> {
    let topology = Topology::create(Options::default())?;
    let services = [Service::tcp("http", Family::V4, HTTP_PORT), Service::udp("echo", Family::V6, ECHO_PORT)];
    let mut hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
    std::thread::sleep(Duration::from_secs(2));
    let mut samples = Samples::default();
    for _ in 0..plan.repetitions {
        let (before, start) = (hairpin.process().cpu_seconds()?, Instant::now());
        std::thread::sleep(if plan.quick { plan.duration } else { Duration::from_secs(10) });
        let share = (hairpin.process().cpu_seconds()? - before) / start.elapsed().as_secs_f64();
        progress("idle", "hairpin", share * 100.0, "% of a core", "");
        samples.push(share * 100.0);
    }
    hairpin.process().check()?;
    Ok(vec![Row::against_value("idle", "% of a core", &samples, "2 %", 2.0, Bar::AtMost(1.0))])
}
