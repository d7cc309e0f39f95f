//! What is left of a run, and how packets fared.

use super::BalancerHost;
use hairpin_core::config::BACKENDS_MAX;
use hairpin_core::worker::Drop;
use std::collections::BTreeMap;

impl BalancerHost {
    /// Checks that nothing is left when all connections have ended.
    pub fn remains(&self) -> Vec<String> {
        let mut remains = Vec::new();
        let connections = self.event_loop.worker.connections().count();
        if connections > 0 {
            let some: Vec<String> =
                self.event_loop.worker.connections().take(4).map(|one| format!("{one:?}")).collect();
            remains.push(format!("the worker has {connections} connections: {}", some.join("; ")));
        }
        let (client_conns, backend_conns, buffers) = self.event_loop.worker.splices();
        if client_conns > 0 || backend_conns > 0 || buffers > 0 {
            remains.push(format!("the worker has {client_conns} client connections, {backend_conns} backend connections, {buffers} buffers"));
        }
        let impossible = self.event_loop.worker.statistics().drops[Drop::Invariant as usize];
        if impossible > 0 {
            remains.push(format!("the worker has met {impossible} cases that cannot happen"));
        }
        let rules = self.event_loop.engine.keys().len();
        if rules > 0 {
            remains.push(format!("the engine has {rules} rules"));
        }
        let lent = self.event_loop.io.lent();
        if lent > 0 {
            remains.push(format!("{lent} frames were not given back"));
        }
        if !self.event_loop.engine.is_idle() {
            remains.push("the engine has requests under way".into());
        }
        // Last: it takes longer than all before, and this is asked after every event.
        if remains.is_empty() {
            let loads: u32 = (0..BACKENDS_MAX).map(|number| self.loads.now(number)).sum();
            remains.extend((loads > 0).then(|| format!("backends are said to have {loads} connections")));
        }
        remains
    }

    /// How packets of each kind fared, for people.
    pub fn tally(&self) -> BTreeMap<&'static str, u64> {
        let statistics = self.event_loop.worker.statistics();
        BTreeMap::from([
            ("frames", statistics.frames),
            ("forwarded", statistics.forwarded),
            ("answered", statistics.answered),
            ("to the kernel", statistics.to_kernel),
            ("offloaded", self.event_loop.engine.carried().0),
            ("guarded", self.event_loop.engine.carried().1),
            ("overflows", self.overflows),
        ])
    }
}
