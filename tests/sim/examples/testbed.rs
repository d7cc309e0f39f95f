//! How fast the virtual testbed is, in simulated packets per second of processor time: forwarder, balancer, balancer with
//! offload, over a million flows that come in no order; `testbed [FLOWS [PACKETS [CASE]]]`.

use fastrand::Rng;
use hairpin_core::config::Timeouts;
use hairpin_core::flow::{Address, Direction, Endpoint, FlowKey, Protocol};
use hairpin_core::offload::{Choice, HeavyHitter};
use hairpin_core::table::LookupMethod;
use hairpin_core::time::{Duration, Time};
use hairpin_sim::nic::CardProfile;
use hairpin_sim::testbed::cores::CoreProfile;
use hairpin_sim::testbed::{
    BalancerSettings, CardAction, CardOffload, CardPolicy, FlowPart, ModelDevice, ModelPort, ModelTestbed,
    ModelTraffic, OfferedPacket, TestbedOptions, service,
};

/// All flows once, in turn, then any of them, 1000 bytes each, one packet in four from a backend.
struct ExampleMix {
    flows: u32,
    left: u64,
    sent: u64,
    rate: f64,
    random: Rng,
}

impl ModelTraffic for ExampleMix {
    fn next(&mut self) -> Option<OfferedPacket> {
        self.left = self.left.checked_sub(1)?;
        let at = Time::from_nanos((self.sent as f64 * 1e9 / self.rate) as u64);
        let is_first = self.sent < u64::from(self.flows);
        let flow = if is_first { self.sent as u32 } else { self.random.u32(..self.flows) };
        self.sent += 1;
        let from_backend = !is_first && self.random.u8(..4) == 0;
        let direction = if from_backend { Direction::FromBackend } else { Direction::FromClient };
        let part = if is_first { FlowPart::First } else { FlowPart::Middle };
        Some(OfferedPacket { at, flow, length: 1000, direction, part })
    }
    fn key(&self, flow: u32) -> FlowKey {
        let address = Address::from_ipv4((0x0a00_0001 + flow % 65_521).to_be_bytes());
        let source = Endpoint { address, port: 1024 + (flow / 65_521) as u16 };
        FlowKey { source, destination: service(), protocol: Protocol::Udp }
    }
    fn flows(&self) -> u32 {
        self.flows
    }
}

/// Seconds that this thread has been on a processor: others may be busy beside it.
fn on_processor() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    told.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e9
}

fn balancer(flows: u32, offload: Option<Choice>) -> ModelDevice {
    let card = CardProfile::parse(include_str!("../../../lab/profiles/connectx-5.toml")).expect("a card");
    ModelDevice::Balancer(BalancerSettings {
        table: LookupMethod::DEFAULT,
        entries: flows + flows / 4,
        backends: 16,
        timeouts: Timeouts::default(),
        offload: offload.map(|choice| CardOffload {
            card,
            policy: CardPolicy::Choice(choice),
            action: CardAction::Forward,
            waits: false,
        }),
    })
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let flows = arguments.next().and_then(|flows| flows.parse().ok()).unwrap_or(1_000_000u32);
    let packets = arguments.next().and_then(|packets| packets.parse().ok()).unwrap_or(20_000_000u64);
    let only = arguments.next();
    let heavy = HeavyHitter { packets: Some(8), ..HeavyHitter::default() };
    let cases = [
        ("forwarder", ModelDevice::Forwarder),
        ("balancer", balancer(flows, None)),
        ("always", balancer(flows, Some(Choice::Always))),
        ("heavy-hitter", balancer(flows, Some(Choice::HeavyHitter(heavy)))),
        ("auto", balancer(flows, Some(Choice::Auto))),
    ];
    let core = CoreProfile::parse(include_str!("../../../lab/profiles/cores/xeon-5217.toml")).expect("a core");
    for (name, device) in cases.into_iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name)) {
        let port = ModelPort { gbit_s: 100.0, queue: 1024, latency: Duration::from_micros(2) };
        let interval = Duration::from_millis(100);
        let options = TestbedOptions { scale: 1.0, cores: 8, core: core.clone(), port, device, seed: 1, interval };
        let mut bed = ModelTestbed::new(options).expect("a testbed");
        let mut traffic = ExampleMix { flows, left: packets, sent: 0, rate: 8e6, random: Rng::with_seed(1) };
        let began = on_processor();
        let results = bed.run(&mut traffic, &mut |_, _| {});
        let took = on_processor() - began;
        assert_eq!(results.failures, Vec::<String>::new());
        println!(
            "{name:14} {:6.2} M packets/s; {:.1}% received, {:.1}% by the card, {} rules, lost {:?}, p99 {:.1} us",
            results.offered as f64 / took / 1e6,
            100.0 * results.received as f64 / results.offered as f64,
            100.0 * results.offloaded_packets as f64 / results.offered as f64,
            results.rules_peak,
            results.lost,
            results.latency.p99 / 1000.0,
        );
    }
}
