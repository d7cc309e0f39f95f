use super::bound::{BoundLimits, saving_bound};
use super::yardstick::Budget;
use super::*;
use hairpin_core::flow::Protocol;
use hairpin_core::offload::{Choice, Combine, FirstN, HeavyHitter};

/// Flows in turn, at a rate; every so many packets of a flow one comes back.
#[derive(Clone)]
struct RoundRobin {
    protocol: Protocol,
    flows: u32,
    rate: f64,
    length: u16,
    left: u64,
    /// One of so many is a backend's; 0: none.
    answers: u64,
    sent: u64,
}

impl RoundRobin {
    fn new(flows: u32, rate: f64, packets: u64) -> RoundRobin {
        RoundRobin { protocol: Protocol::Udp, flows, rate, length: 1000, left: packets, answers: 0, sent: 0 }
    }
}

fn client(flow: u32, protocol: Protocol) -> FlowKey {
    let source = frames::end(0x0a00_0001 + flow / 1000, 1024 + (flow % 1000) as u16);
    FlowKey { source, destination: service(), protocol }
}

impl ModelTraffic for RoundRobin {
    fn next(&mut self) -> Option<OfferedPacket> {
        self.left = self.left.checked_sub(1)?;
        let (round, flow) = (self.sent / u64::from(self.flows), (self.sent % u64::from(self.flows)) as u32);
        let at = Time::from_nanos((self.sent as f64 * 1e9 / self.rate) as u64);
        self.sent += 1;
        let tcp = self.protocol == Protocol::Tcp;
        let back = if tcp && round == 1 { true } else { self.answers > 0 && round > 2 && round % self.answers == 0 };
        let part = if round == 0 || tcp && round == 1 { FlowPart::First } else { FlowPart::Middle };
        let direction = if back { Direction::FromBackend } else { Direction::FromClient };
        Some(OfferedPacket { at, flow, length: self.length, direction, part })
    }
    fn key(&self, flow: u32) -> FlowKey {
        client(flow, self.protocol)
    }
    fn flows(&self) -> u32 {
        self.flows
    }
}

fn profile() -> CoreProfile {
    CoreProfile::parse(include_str!("../../../../lab/profiles/cores/xeon-5217.toml")).expect("a profile")
}

fn card() -> nic::CardProfile {
    nic::CardProfile::parse(include_str!("../../../../lab/profiles/connectx-5.toml")).expect("a card")
}

fn options(cores: u16, device: ModelDevice) -> TestbedOptions {
    let port = ModelPort { gbit_s: 100.0, queue: 1024, latency: Duration::from_micros(2) };
    TestbedOptions { scale: 1.0, cores, core: profile(), port, device, seed: 7, interval: Duration::from_millis(1) }
}

fn balancer(entries: u32, policy: Option<CardPolicy>) -> ModelDevice {
    let offload = policy.map(|policy| CardOffload { card: card(), policy, action: CardAction::Forward, waits: false });
    ModelDevice::Balancer(BalancerSettings {
        table: LookupMethod::DEFAULT,
        entries,
        backends: 8,
        timeouts: Timeouts::default(),
        offload,
    })
}

fn run(options: TestbedOptions, traffic: &RoundRobin) -> RunResults {
    let mut bed = ModelTestbed::new(options).expect("a testbed");
    let results = bed.run(&mut traffic.clone(), &mut |_, _| {});
    assert_eq!(results.failures, Vec::<String>::new());
    results
}

fn lost(results: &RunResults, why: &str) -> u64 {
    results.lost.iter().filter(|(name, _)| *name == why).map(|(_, count)| count).sum()
}

/// Packets per second.
fn rate(results: &RunResults) -> f64 {
    results.received as f64 / results.duration.as_secs_f64()
}

#[test]
fn the_forwarder_is_as_fast_as_its_cores_and_the_line() {
    let each = 1e9 / profile().forward_ns(32);
    for cores in [1u16, 2, 4] {
        // Small packets, many more than the cores can bear, over a line that has room for all.
        let traffic = RoundRobin { length: 60, ..RoundRobin::new(4096, each * 1.5 * f64::from(cores), 400_000) };
        let mut options = options(cores, ModelDevice::Forwarder);
        options.port.gbit_s = 1000.0;
        let results = run(options, &traffic);
        let right = each * f64::from(cores);
        assert!((rate(&results) / right - 1.0).abs() < 0.05, "{cores} cores: {}, not {right}", rate(&results));
        assert_eq!(results.offered, results.received + lost(&results, "receive-queue"));
        assert!(lost(&results, "receive-queue") > 50_000);
    }
    let line = 100e9 / (1024.0 * 8.0);
    let results = run(options(16, ModelDevice::Forwarder), &RoundRobin::new(4096, line * 1.5, 400_000));
    assert!((rate(&results) / line - 1.0).abs() < 0.01, "the line: {}, not {line}", rate(&results));
}

#[test]
fn the_same_seed_does_the_same_to_the_byte() {
    let policy = CardPolicy::Choice(Choice::FirstN(FirstN { connections: 300 }));
    let traffic = RoundRobin { answers: 3, ..RoundRobin::new(1000, 3e6, 60_000) };
    let results = || run(options(3, balancer(4096, Some(policy.clone()))), &traffic);
    let (one, other) = (results(), results());
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
    assert!(one.offloaded_packets > 10_000 && one.inserted > 0, "{one:?}");
    let other = run(TestbedOptions { seed: 8, ..options(3, balancer(4096, Some(policy))) }, &traffic);
    assert_ne!(one, other);
}

#[test]
fn the_balancer_keeps_each_flow_on_a_backend() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let traffic = RoundRobin { protocol, answers: 4, ..RoundRobin::new(2000, 2e6, 50_000) };
        let results = run(options(2, balancer(8192, None)), &traffic);
        assert_eq!((results.unfaithful, results.received), (0, 50_000), "{:?}", results.lost);
        assert_eq!(results.established, 2000);
        assert!(results.latency.p50 > 2000.0 && results.latency.max < 1e6, "{:?}", results.latency);
    }
}

#[test]
fn what_comes_too_fast_is_lost_in_front_of_the_core() {
    let known = 1e9 / profile().known_ns(LookupMethod::DEFAULT, 2000.0, 32);
    let traffic = RoundRobin { length: 60, ..RoundRobin::new(2000, known * 2.0, 300_000) };
    let results = run(options(1, balancer(8192, None)), &traffic);
    assert_eq!(results.offered, results.received + lost(&results, "receive-queue"));
    let share = rate(&results) / known;
    assert!((0.8..1.05).contains(&share), "{share} of what the core can do");
    assert!(results.busy[0].as_secs_f64() > 0.95 * results.duration.as_secs_f64());
}

#[test]
fn backend_packets_before_the_client_are_not_lost() {
    struct Backwards(RoundRobin);
    impl ModelTraffic for Backwards {
        fn next(&mut self) -> Option<OfferedPacket> {
            let offered = self.0.next()?;
            let direction = if self.0.sent <= 100 { Direction::FromBackend } else { Direction::FromClient };
            Some(OfferedPacket { direction, ..offered })
        }
        fn key(&self, flow: u32) -> FlowKey {
            self.0.key(flow)
        }
        fn flows(&self) -> u32 {
            self.0.flows()
        }
    }
    let mut bed = ModelTestbed::new(options(1, balancer(8192, None))).expect("a testbed");
    let results = bed.run(&mut Backwards(RoundRobin::new(100, 1e5, 1000)), &mut |_, _| {});
    assert_eq!((lost(&results, "no-backend-yet"), results.received), (100, 900));
}

#[test]
fn offloaded_packets_cost_the_core_nothing() {
    let policy = CardPolicy::Choice(Choice::Always);
    let mut traffic = RoundRobin { answers: 3, ..RoundRobin::new(500, 1e6, 50_000) };
    let mut bed = ModelTestbed::new(options(2, balancer(8192, Some(policy)))).expect("a testbed");
    let first = bed.run(&mut traffic.clone(), &mut |_, _| {});
    assert_eq!((&first.failures, first.unfaithful), (&Vec::new(), 0));
    assert_eq!((first.inserted, first.rules_peak, first.received), (1000, 1000, 50_000), "{first:?}");
    // The card forwards all datagrams of known flows.
    traffic.left = 50_000;
    let second = bed.run(&mut traffic, &mut |_, _| {});
    assert_eq!((&second.failures, second.unfaithful), (&Vec::new(), 0));
    assert_eq!((second.inserted, second.offloaded_packets), (0, 50_000), "{second:?}");
    assert!(second.busy.iter().all(Duration::is_zero), "{:?}", second.busy);
    assert!(second.latency.p99 < first.latency.p99);
}

/// A balancer of two cores with all flows offloaded, as [`CardOffload`] says.
fn offloading(core: CoreProfile, change: impl Fn(&mut CardOffload)) -> ModelTestbed {
    let device = balancer(8192, Some(CardPolicy::Choice(Choice::Always)));
    let mut options = TestbedOptions { core, ..options(2, device) };
    if let ModelDevice::Balancer(BalancerSettings { offload: Some(offload), .. }) = &mut options.device {
        change(offload);
    }
    ModelTestbed::new(options).expect("a testbed")
}

#[test]
fn worker_that_waits_is_busy_until_the_card_is_done() {
    let traffic = RoundRobin { answers: 3, ..RoundRobin::new(500, 1e6, 50_000) };
    let run = |waits, insert_us: f64| {
        let mut bed = offloading(profile(), |offload| {
            offload.waits = waits;
            offload.card.updates.insert_us = vec![nic::ByBatch { batch: 1, us: insert_us }];
            offload.card.tables.first_rules_max = 0;
            offload.card.updates.confirmed_us = (0.0, 0.0);
        });
        let results = bed.run(&mut traffic.clone(), &mut |_, _| {});
        assert_eq!((&results.failures, results.unfaithful, results.inserted), (&Vec::new(), 0, 1000));
        (results.busy.iter().sum::<Duration>().as_secs_f64(), results)
    };
    // Two cores wait for one card: each of its 1000 insertions of 10 us keeps at least the core busy that asked for it.
    let (asks, _) = run(false, 0.01);
    let (fast, _) = run(true, 0.01);
    let (slow, waited) = run(true, 10.0);
    assert!((fast / asks - 1.0).abs() < 0.05, "what is done at once is not waited for: {fast} s and {asks} s");
    assert!(slow - fast > 0.95 * 0.010, "{slow} s and {fast} s");
    assert!(slow - fast < 2.2 * 0.010, "{slow} s and {fast} s");
    // The first packets are kept until their rules are in force.
    assert!(waited.latency.max > 300_000.0, "{:?}", waited.latency);
}

#[test]
fn marked_packets_go_to_a_core_that_need_not_look_them_up() {
    let traffic = RoundRobin { answers: 3, ..RoundRobin::new(500, 1e6, 50_000) };
    // A look-up that costs enough to see it.
    let mut core = profile();
    let points = core.method.iter_mut().filter(|cost| cost.table == LookupMethod::DEFAULT);
    points.flat_map(|cost| &mut cost.known).for_each(|point| point.packet_ns += 200.0);
    let second = |action| {
        let mut bed = offloading(core.clone(), |offload| offload.action = action);
        let first = bed.run(&mut traffic.clone(), &mut |_, _| {});
        assert_eq!((&first.failures, first.inserted, first.received), (&Vec::new(), 1000, 50_000));
        let second = bed.run(&mut traffic.clone(), &mut |_, _| {});
        assert_eq!((&second.failures, second.unfaithful, second.received), (&Vec::new(), 0, 50_000));
        second
    };
    let (marks, forwards) = (second(CardAction::Mark), second(CardAction::Forward));
    assert_eq!((marks.marked_packets, marks.offloaded_packets), (50_000, 0));
    assert_eq!((forwards.marked_packets, forwards.offloaded_packets), (0, 50_000));
    let alone = TestbedOptions { core: core.clone(), ..options(2, balancer(8192, None)) };
    let mut bed = ModelTestbed::new(alone).expect("a testbed");
    bed.run(&mut traffic.clone(), &mut |_, _| {});
    let alone = bed.run(&mut traffic.clone(), &mut |_, _| {});
    let busy = |results: &RunResults| results.busy.iter().sum::<Duration>().as_secs_f64();
    // It saves its part of the look-up of each packet.
    let saves = core.marked_saves_ns(LookupMethod::DEFAULT, 250.0) * 50_000.0 / 1e9;
    assert!(saves > 0.0 && busy(&forwards) == 0.0);
    let saved = busy(&alone) - busy(&marks);
    assert!((saved / saves - 1.0).abs() < 0.2, "{saved} s, not {saves} s");
}

#[test]
fn a_policy_that_waits_asks_for_less() {
    let heavy = HeavyHitter { bytes: Some(30_000), packets: None, duration: None, combine: Combine::All };
    let traffic = RoundRobin { answers: 3, ..RoundRobin::new(500, 1e6, 50_000) };
    let results = run(options(2, balancer(8192, Some(CardPolicy::Choice(Choice::HeavyHitter(heavy))))), &traffic);
    assert_eq!(results.inserted, 1000);
    // 30 packets of each flow, and a few more while rules are on their way.
    let software = results.received - results.offloaded_packets;
    assert!((14_500..30_000).contains(&software), "{software}");
    assert!(results.kept.iter().any(|&(why, count)| why == "small" && count > 10_000), "{:?}", results.kept);
}

#[test]
fn cores_share_a_small_card_within_its_capacity() {
    let traffic = RoundRobin { answers: 3, ..RoundRobin::new(500, 1e6, 50_000) };
    let mut options = options(2, balancer(8192, Some(CardPolicy::Choice(Choice::Always))));
    if let ModelDevice::Balancer(BalancerSettings { offload: Some(offload), .. }) = &mut options.device {
        offload.card.tables.rules_max = 200;
    }
    let results = run(options, &traffic);
    assert_eq!((results.rules_peak, results.refused), (200, 0), "{results:?}");
    assert!(results.kept.iter().any(|&(why, count)| why == "no-room" && count > 10_000), "{:?}", results.kept);
}

#[test]
fn planted_mistakes_are_seen() {
    let traffic = RoundRobin { answers: 3, ..RoundRobin::new(500, 1e6, 50_000) };
    let planted = |mistake, timeouts| {
        let mut options = options(2, balancer(8192, Some(CardPolicy::Choice(Choice::Always))));
        if let ModelDevice::Balancer(balancer) = &mut options.device {
            balancer.timeouts = timeouts;
        }
        let mut bed = ModelTestbed::new(options).expect("a testbed");
        bed.plant(mistake);
        bed.run(&mut traffic.clone(), &mut |_, _| {})
    };
    let results = planted(Mistake::OtherBackend, Timeouts::default());
    assert!(results.unfaithful >= 30, "{}", results.unfaithful);
    let results = planted(Mistake::Vanishes, Timeouts::default());
    assert!(results.failures.iter().any(|why| why.contains("offered")), "{:?}", results.failures);
    // Flows that are silent from round to round end all the time, and their rules stay.
    let short = Duration::from_micros(100);
    let timeouts = Timeouts { udp_new: short, udp_established: short, ..Timeouts::default() };
    let results = planted(Mistake::KeepsRules, timeouts);
    assert!(results.failures.iter().any(|why| why.contains("rules")), "{:?}", results.failures);
}

/// Flows of very different sizes that come and go.
#[derive(Clone)]
struct Sizes {
    packets: std::rc::Rc<Vec<(u64, u32)>>,
    next: usize,
    flows: u32,
}

impl Sizes {
    fn new(flows: u32, seconds: f64, seed: u64) -> Sizes {
        let mut random = Rng::with_seed(seed);
        let mut packets = Vec::new();
        for flow in 0..flows {
            // Pareto: few flows have most of the packets, and some take their time.
            let count = (6.0 / random.f64().max(1e-3).powf(0.9)) as u64;
            let gap = seconds * 1e9 * 0.5 * random.f64() / (count + 10) as f64;
            let begins = seconds * 1e9 * 0.5 * random.f64();
            packets.extend((0..count).map(|number| ((begins + gap * number as f64) as u64, flow)));
        }
        packets.sort();
        Sizes { packets: packets.into(), next: 0, flows }
    }
}

impl ModelTraffic for Sizes {
    fn next(&mut self) -> Option<OfferedPacket> {
        let &(at, flow) = self.packets.get(self.next)?;
        self.next += 1;
        let (direction, part) = (Direction::FromClient, FlowPart::Middle);
        Some(OfferedPacket { at: Time::from_nanos(at), flow, length: 1000, direction, part })
    }
    fn key(&self, flow: u32) -> FlowKey {
        client(flow, Protocol::Tcp)
    }
    fn flows(&self) -> u32 {
        self.flows
    }
}

#[test]
fn the_yardstick_saves_most_where_room_is_short() {
    let traffic = Sizes::new(3000, 4.0, 5);
    let saved = |policy: CardPolicy, room: u32| {
        let mut options = options(1, balancer(8192, Some(policy)));
        if let ModelDevice::Balancer(BalancerSettings { offload: Some(offload), .. }) = &mut options.device {
            offload.card.tables.rules_max = room;
        }
        let mut bed = ModelTestbed::new(options).expect("a testbed");
        let results = bed.run(&mut traffic.clone(), &mut |_, _| {});
        assert_eq!((&results.failures, results.unfaithful), (&Vec::new(), 0));
        assert!(results.rules_peak <= room);
        results.offloaded_packets
    };
    for room in [40, 200, 1000, 100_000] {
        let limits = BoundLimits {
            pairs: room / 2,
            insert_ns: 2.0 * 2100.0,
            delete_ns: 2.0 * 1800.0,
            packets_before: 1,
            pair_packets: 0.0,
        };
        let bound = saving_bound(&mut traffic.clone(), limits);
        let budget = Budget { pairs: room / 2, pairs_per_s: 100_000.0, packets_before: 1, worth: 1 };
        let plan = OffloadPlan::greedy(&mut traffic.clone(), budget);
        let (planned, yardstick) = (plan.saves(), saved(CardPolicy::Yardstick(plan), room));
        assert!(yardstick as f64 > 0.8 * planned as f64, "room {room}: {yardstick} of {planned} planned");
        assert!(yardstick as f64 <= bound.packets, "room {room}: {yardstick}, {bound:?}");
        assert!(yardstick as f64 > 0.6 * bound.packets, "room {room}: {yardstick}, {bound:?}");
        let heavy = |packets| HeavyHitter { packets: Some(packets), ..HeavyHitter::default() };
        let choices = [
            Choice::Always,
            Choice::FirstN(FirstN { connections: room / 2 }),
            Choice::HeavyHitter(heavy(20)),
            Choice::HeavyHitter(heavy(200)),
            Choice::FastestFlow { packets_per_s: 10 },
            Choice::Auto,
        ];
        for choice in choices {
            let other = saved(CardPolicy::Choice(choice.clone()), room);
            // If there is room for all of them, it is a matter of a few packets at their beginnings.
            assert!(other as f64 <= bound.packets, "room {room}: {choice:?} {other}, {bound:?}");
            assert!(yardstick as f64 >= 0.999 * other as f64, "room {room}: {yardstick}, and {choice:?} {other}");
        }
    }
}

#[test]
fn at_a_tenth_of_the_scale_everything_takes_ten_times_as_long() {
    let whole = RoundRobin { answers: 3, ..RoundRobin::new(5000, 2e6, 400_000) };
    let tenth = RoundRobin { answers: 3, ..RoundRobin::new(500, 2e5, 40_000) };
    // Flows that all begin at once are a burst, which does not scale: what counts is the second run.
    let run = |options: TestbedOptions, traffic: &RoundRobin| {
        let mut bed = ModelTestbed::new(options).expect("a testbed");
        bed.run(&mut traffic.clone(), &mut |_, _| {});
        bed.run(&mut traffic.clone(), &mut |_, _| {})
    };
    for policy in [None, Some(CardPolicy::Choice(Choice::FirstN(FirstN { connections: 1000 })))] {
        let fewer = policy.as_ref().map(|_| CardPolicy::Choice(Choice::FirstN(FirstN { connections: 100 })));
        let whole = run(options(1, balancer(80_000, policy)), &whole);
        let tenth = run(TestbedOptions { scale: 0.1, ..options(1, balancer(8000, fewer)) }, &tenth);
        let share = |results: &RunResults| results.offloaded_packets as f64 / results.offered as f64;
        assert!((share(&whole) - share(&tenth)).abs() < 0.01, "{} and {}", share(&whole), share(&tenth));
        let slower = tenth.latency.mean / whole.latency.mean;
        assert!((9.5..10.5).contains(&slower), "{slower}");
        let busy = |results: &RunResults| results.busy[0].as_secs_f64() / results.duration.as_secs_f64();
        assert!((busy(&whole) / busy(&tenth) - 1.0).abs() < 0.05, "{} and {}", busy(&whole), busy(&tenth));
    }
}

/// Connections one after the other, from SYN to FIN, and one packet long after.
struct Lives {
    packets: Vec<OfferedPacket>,
    next: usize,
}

impl Lives {
    fn new(flows: u32, data: u64) -> Lives {
        use Direction::{FromBackend, FromClient};
        let mut packets = Vec::new();
        let mut at = 0;
        let mut add = |flow, direction, part, after| {
            at += after;
            packets.push(OfferedPacket { at: Time::from_nanos(at), flow, length: 200, direction, part });
        };
        for flow in 0..flows {
            add(flow, FromClient, FlowPart::First, 1000);
            add(flow, FromBackend, FlowPart::First, 50_000);
            for number in 0..data {
                add(flow, if number % 4 == 0 { FromClient } else { FromBackend }, FlowPart::Middle, 50_000);
            }
            add(flow, FromClient, FlowPart::Last, 50_000);
            add(flow, FromBackend, FlowPart::Last, 50_000);
        }
        add(0, FromClient, FlowPart::First, 20_000_000_000);
        Lives { packets, next: 0 }
    }
}

impl ModelTraffic for Lives {
    fn next(&mut self) -> Option<OfferedPacket> {
        self.next += 1;
        self.packets.get(self.next - 1).copied()
    }
    fn key(&self, flow: u32) -> FlowKey {
        client(flow, Protocol::Tcp)
    }
    fn flows(&self) -> u32 {
        1000
    }
}

#[test]
fn connections_begin_and_end_and_take_their_rules_along() {
    let options = options(2, balancer(8192, Some(CardPolicy::Choice(Choice::Always))));
    let mut bed = ModelTestbed::new(TestbedOptions { interval: Duration::from_secs(1), ..options }).expect("a testbed");
    let results = bed.run(&mut Lives::new(200, 20), &mut |_, _| {});
    assert_eq!((&results.failures, results.unfaithful), (&Vec::new(), 0));
    assert_eq!((results.established, results.received), (200, results.offered), "{:?}", results.lost);
    assert_eq!((results.inserted, results.deleted, results.rules_peak), (400, 400, 400));
    assert!(results.rows.first().is_some_and(|row| row.rules == 400), "{:?}", results.rows.first());
    assert!(results.rows.last().is_some_and(|row| row.rules == 0), "{:?}", results.rows.last());
    // SYN, SYN-ACK, ACK and two FINs are software's, and what came while the rules were on their way.
    assert!((15 * 200..=19 * 200).contains(&results.offloaded_packets), "{}", results.offloaded_packets);
}

#[test]
fn rows_add_up_to_the_whole() {
    let traffic = RoundRobin { length: 60, ..RoundRobin::new(2000, 2e7, 100_000) };
    let results = run(options(1, balancer(8192, None)), &traffic);
    let sum = |of: fn(&IntervalRow) -> u64| results.rows.iter().map(of).sum::<u64>();
    assert_eq!((sum(|row| row.offered), sum(|row| row.received)), (results.offered, results.received));
    assert_eq!(sum(|row| row.lost), results.offered - results.received);
    assert_eq!(sum(|row| row.received_bytes), results.received_bytes);
    assert!(results.rows.len() >= 5 && results.rows[1].latency_p99 > results.rows[1].latency_mean);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let refused = |options: TestbedOptions| ModelTestbed::new(options).map(|_| ()).expect_err("nonsense");
    let good = || options(1, balancer(100, Some(CardPolicy::Choice(Choice::Always))));
    assert!(refused(TestbedOptions { scale: 0.0, ..good() }).contains("scale"));
    assert!(refused(TestbedOptions { cores: 0, ..good() }).contains("cores"));
    assert!(refused(TestbedOptions { interval: Duration::ZERO, ..good() }).contains("interval"));
    let mut maglev = good();
    if let ModelDevice::Balancer(balancer) = &mut maglev.device {
        balancer.table = LookupMethod::Maglev;
    }
    assert!(refused(maglev).contains("knows no connections"));
}
