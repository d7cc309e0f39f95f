//! Two veth pairs in a network namespace, and frames through them.

use crate::suite::samples::RepeatedValues;
use anyhow::{Context, Result, bail, ensure};
use hairpin_core::flow::Steering;
use hairpin_e2e::namespace::{Namespace, unique_prefix};
use hairpin_e2e::tool::inside;
use hairpin_linux::cost::{LiveFrames, install_rules};
use hairpin_linux::device::Interface;
use hairpin_linux::programs::{LoadedPlane, ProgramOptions};
use std::collections::BTreeMap;

/// What forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ForwardingMethod {
    /// Hairpin in XDP.
    Xdp,
    /// Hairpin at tc ingress.
    Tc,
    /// The kernel.
    Routed,
}

impl ForwardingMethod {
    pub(super) const ALL: [ForwardingMethod; 3] =
        [ForwardingMethod::Xdp, ForwardingMethod::Tc, ForwardingMethod::Routed];

    pub(super) fn name(self) -> &'static str {
        match self {
            ForwardingMethod::Xdp => "xdp",
            ForwardingMethod::Tc => "tc",
            ForwardingMethod::Routed => "routed",
        }
    }
}

/// Frames are sent by `maker` to `left`, forwarded from there to `right`, and dropped at its other end, `drain`.
pub(super) struct XdpNetwork(Namespace);

/// GRO makes a veth poll, which frames need that are redirected to it. The kernel routes without looking at what it may
/// drop: martians, reverse paths.
const DEVICES: &str = "\
ip link set lo up
ip link add maker type veth peer name left
ip link add right type veth peer name drain
for device in maker left right drain; do
    sysctl -qw net.ipv6.conf.$device.disable_ipv6=1 net.ipv4.conf.$device.rp_filter=0
    ethtool -K $device gro on
    ip link set $device up
done
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0
ip address add 10.0.0.1/8 dev left
ip address add 198.51.100.1/24 dev right
ip neighbour add 198.51.100.2 lladdr 02:00:00:00:00:02 dev right
ip route add 192.0.2.0/24 via 198.51.100.2
";

/// The address of the host behind `right`.
const BEHIND: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The share of frames that may be lost between devices before a measurement is not one.
const LOST_MAX: f64 = 0.01;

impl XdpNetwork {
    pub(super) fn create() -> Result<XdpNetwork> {
        let namespace = Namespace::create(&format!("{}-xdp", unique_prefix()))?;
        namespace.script(DEVICES)?;
        Ok(XdpNetwork(namespace))
    }

    /// What each method costs a frame, in ns, in each round, beyond making and dropping it.
    pub(super) fn measure(
        &self,
        flows: u32,
        frames: u32,
        repetitions: usize,
    ) -> Result<BTreeMap<ForwardingMethod, RepeatedValues>> {
        let body = move || {
            let mut bench = ForwardingBench::load(flows, frames)?;
            let result = bench.rounds(repetitions);
            bench.plane.detach()?;
            result
        };
        inside::join(inside::spawn(&self.0, Some(0), body))
    }
}

struct ForwardingBench {
    plane: LoadedPlane,
    live: LiveFrames,
    maker: Interface,
    left: Interface,
    right: Interface,
    flows: u32,
    frames: u32,
}

impl ForwardingBench {
    fn load(flows: u32, frames: u32) -> Result<ForwardingBench> {
        let options = ProgramOptions {
            instance: format!("bench-xdp-{}", std::process::id()),
            rules_v4_max: flows,
            rules_v6_max: 1,
            ..ProgramOptions::default()
        };
        let plane = LoadedPlane::load(&options, Steering::by_hash([1, 2], 1))?;
        let live = LiveFrames::load()?;
        let device = |name| Interface::by_name(name).with_context(|| format!("no device {name}"));
        let (maker, left, right) = (device("maker")?, device("left")?, device("right")?);
        live.drop_at(&device("drain")?, true)?;
        install_rules(&plane, flows, &right, BEHIND)?;
        Ok(ForwardingBench { plane, live, maker, left, right, flows, frames })
    }

    fn rounds(&mut self, repetitions: usize) -> Result<BTreeMap<ForwardingMethod, RepeatedValues>> {
        let mut costs: BTreeMap<ForwardingMethod, RepeatedValues> = BTreeMap::new();
        // The first frames find caches cold and neighbours unknown.
        for round in 0..=repetitions {
            self.live.drop_at(&self.left, true)?;
            let made = self.send()?;
            self.live.drop_at(&self.left, false)?;
            for method in ForwardingMethod::ALL {
                self.switch(method)?;
                let net = self.send()? - made;
                if round > 0 {
                    println!(
                        "{} flows, {}: {net:.0} ns a frame, beside {made:.0} of making it",
                        self.flows,
                        method.name()
                    );
                    costs.entry(method).or_default().push(net);
                }
            }
        }
        Ok(costs)
    }

    fn switch(&mut self, method: ForwardingMethod) -> Result<()> {
        self.plane.detach_xdp()?;
        self.plane.detach_others(&[])?;
        if method == ForwardingMethod::Routed {
            return Ok(());
        }
        let interfaces = [(0, self.left.clone()), (1, self.right.clone())];
        for (slot, interface) in &interfaces {
            self.plane.attach(*slot, interface.index, interface.mac)?;
        }
        if method == ForwardingMethod::Xdp { self.plane.attach_xdp(&interfaces) } else { Ok(()) }
    }

    /// Nanoseconds a frame takes until it is dropped.
    fn send(&self) -> Result<f64> {
        let before = self.plane.totals(1)?[0].packets;
        let (elapsed, arrived) = self.live.send(&self.maker, self.left.mac, self.flows, self.frames)?;
        let lost = 1.0 - arrived as f64 / f64::from(self.frames);
        ensure!(lost <= LOST_MAX, "{:.1} % of the frames were lost on their way: nothing was measured", lost * 100.0);
        let forwarded = self.plane.totals(1)?[0].packets - before;
        if forwarded != 0 && forwarded < arrived {
            bail!("rules took {forwarded} of {arrived} frames: nothing was measured");
        }
        Ok(elapsed.as_nanos() as f64 / arrived as f64)
    }
}
