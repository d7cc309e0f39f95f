//! A port opened for an engine: with hairpin queues where there are some.

use super::probe::{Findings, ProbeDepth, probe};
use super::translate::EnginePort;
use crate::eal::Eal;
use crate::error::Error;
use crate::pool::MbufPool;
use crate::port::{Port, PortOptions};

/// A port, and what it can do for an engine.
#[derive(Debug)]
pub struct Probed {
    /// The port, open.
    pub port: Port,
    /// The findings.
    pub findings: Findings,
    /// Why it has no hairpin queues though its driver says that there are some.
    pub no_hairpins: Option<Error>,
}

impl Probed {
    /// Finds out what the open `port`, which the plane counts as `number`, can do beside the plane's `others`, by DPDK's
    /// numbers. If there are none, so that packets only have to get back out of it, and it may have hairpin queues, it is
    /// closed, opened again by `options` with one of them, and tried once more with that. What carries packets must not use
    /// it meanwhile.
    ///
    /// # Errors
    /// As of [`Port::open`], when it is opened again.
    pub fn of(
        eal: &Eal,
        port: Port,
        (options, pool): (&PortOptions, &MbufPool),
        (number, depth): (u16, ProbeDepth),
        others: &[u16],
    ) -> Result<Probed, Error> {
        let findings = probe(&EnginePort::of(number, &port), others, depth);
        if findings.hairpin_queues == 0 || !others.is_empty() {
            return Ok(Probed { port, findings, no_hairpins: None });
        }
        drop(port);
        // A driver may say so and refuse: then it is as it was.
        let (port, no_hairpins) = match Port::open_with_hairpins(eal, options, pool, 1) {
            Ok(port) => (port, None),
            Err(error) => (Port::open(eal, options, pool)?, Some(error)),
        };
        let findings = probe(&EnginePort::of(number, &port), others, depth);
        Ok(Probed { port, findings, no_hairpins })
    }
}
