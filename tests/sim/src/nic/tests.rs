use super::*;
use hairpin_core::engine::Rule;
use hairpin_core::flow::{Address, Endpoint};

fn profile(name: &str) -> CardProfile {
    let path = format!("{}/../../lab/profiles/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    CardProfile::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn key(number: u32) -> FlowKey {
    let end = |address: u32, port| Endpoint { address: Address::from_ipv4(address.to_be_bytes()), port };
    FlowKey { source: end(0x0a00_0000 + number, 1000), destination: end(0x0a64_0001, 80), protocol: Protocol::Tcp }
}

fn rule(number: u32) -> Rule {
    Rule { id: RuleId(u64::from(number)), key: key(number), ..Rule::default() }
}

fn us(microseconds: u64) -> Time {
    Time::from_nanos(microseconds * 1000)
}

#[test]
fn rule_lookup_matches_a_map_for_any_hint() {
    const FLOWS: u32 = 20_000;
    let mut random = Rng::with_seed(5);
    let CardProfile { mut tables, counters, .. } = profile("connectx-5");
    tables.rules_max = 12_000;
    let mut rules = CardRules::new(tables, counters);
    let mut model: std::collections::BTreeMap<u32, (u64, u64)> = Default::default();
    for round in 0..200u32 {
        // Hints are from before what then changes.
        let asked: Vec<u32> = (0..100).map(|_| random.u32(..FLOWS)).collect();
        let keys: Vec<FlowKey> = asked.iter().map(|number| key(*number)).collect();
        let mut hints = vec![rules.no_hint(); keys.len()];
        rules.warm(&keys, &mut hints);
        for (number, hint) in asked.iter().zip(&hints) {
            assert_eq!(hint.is_found(), model.contains_key(number));
        }
        for change in 0..if round % 3 == 0 { 0 } else { 300u32 } {
            // Some of them are those that were asked about.
            let number = if change < 50 { asked[random.usize(..asked.len())] } else { random.u32(..FLOWS) };
            let id = u64::from(round * 1000 + change);
            if random.u8(..10) < 7 {
                let room = model.len() < 12_000 || model.contains_key(&number);
                assert_eq!(rules.insert(Rule { id: RuleId(id), ..rule(number) }), room);
                if room {
                    let packets = model.get(&number).map_or(0, |held| held.1);
                    model.insert(number, (id, packets));
                }
            } else if let Some((id, packets)) = model.remove(&number) {
                let counters = rules.remove(RuleId(id), &key(number)).expect("it is there");
                assert_eq!(counters.packets, packets);
            } else {
                assert!(rules.remove(RuleId(id), &key(number)).is_none());
            }
        }
        for ((number, key), hint) in asked.iter().zip(&keys).zip(&hints) {
            let met = rules.met(key, *hint);
            assert_eq!(met.is_some(), model.contains_key(number));
            if let (Some(met), Some(held)) = (met, model.get_mut(number)) {
                met.counters.packets += 1;
                held.1 += 1;
                assert_eq!(met.counters.packets, held.1, "of another rule");
            }
        }
        assert_eq!(rules.len(), model.len());
    }
    let mut keys: Vec<FlowKey> = model.keys().map(|number| key(*number)).collect();
    keys.sort();
    assert_eq!(rules.keys(), keys);
    assert!(rules.len() > 8192, "the index has grown: {}", rules.len());
}

/// Submits as many as it takes.
fn submit(nic: &mut Nic, now: Time, ops: impl Iterator<Item = RuleOp>) -> usize {
    let taken = ops.take_while(|op| nic.submit(now, *op).is_ok()).count();
    nic.flush(now);
    taken
}

fn answers(nic: &mut Nic, now: Time) -> Vec<Completion> {
    let (mut all, mut some) = (Vec::new(), Completions::new());
    loop {
        nic.poll(now, &mut some);
        if some.is_empty() {
            return all;
        }
        all.extend(some.drain(..));
    }
}

fn installs(numbers: std::ops::Range<u32>) -> impl Iterator<Item = RuleOp> {
    numbers.map(|number| RuleOp::Install(rule(number)))
}

fn removals(numbers: std::ops::Range<u32>) -> impl Iterator<Item = RuleOp> {
    numbers.map(|number| RuleOp::Remove { id: RuleId(u64::from(number)), key: key(number) })
}

#[test]
fn rules_come_and_go_as_fast_as_papers_002_has_measured() {
    for (batch, insert_us, delete_us) in
        [(1u32, 305.40, 57.49), (2, 100.48, 24.48), (8, 38.72, 19.42), (16, 25.39, 18.08)]
    {
        let mut nic = Nic::new(profile("bluefield-2"), Rng::with_seed(1));
        let mut now = Time::ZERO;
        for (ops, each_us) in [(true, insert_us), (false, delete_us)] {
            // So many at a time, the next when the last is in force.
            let began = now;
            for first in (0..160).step_by(batch as usize) {
                let range = first..first + batch;
                match ops {
                    true => submit(&mut nic, now, installs(range)),
                    false => submit(&mut nic, now, removals(range)),
                };
                now = nic.idle_from;
                nic.advance(now);
                assert_eq!(nic.rules() as u32, if ops { first + batch } else { 160 - first - batch });
            }
            let each = now.since(began).as_secs_f64() * 1e6 / 160.0;
            assert!((each - each_us).abs() < 0.01, "{each} us in batches of {batch}, not {each_us}");
        }
        now = now + Duration::from_millis(1);
        assert_eq!(answers(&mut nic, now).len(), 320);
        assert!(nic.is_idle());
        assert_eq!(nic.tally().inserted, 160);
    }
}

#[test]
fn waiting_requests_are_bounded() {
    let mut nic = Nic::new(profile("bluefield-2"), Rng::with_seed(1));
    let taken = submit(&mut nic, Time::ZERO, installs(0..10_000));
    assert_eq!(taken, 4096);
    nic.advance(us(25_390));
    assert_eq!(nic.rules(), 1000, "39 thousand a second");
    assert!(
        nic.submit(us(25_390), RuleOp::Install(rule(5000))).is_err(),
        "answers that have not been fetched count as well"
    );
    let some = answers(&mut nic, us(25_390));
    assert!((900..=1000).contains(&some.len()), "{}", some.len());
    assert!(nic.submit(us(25_390), RuleOp::Install(rule(5000))).is_ok());
}

#[test]
fn answers_come_late_and_overtake_each_other() {
    let mut nic = Nic::new(profile("connectx-5"), Rng::with_seed(7));
    submit(&mut nic, Time::ZERO, installs(0..64));
    let mut order = Vec::new();
    for at in 0..2000 {
        for answer in answers(&mut nic, us(at)) {
            let Completion::Installed(id) = answer else { panic!("{answer:?}") };
            order.push(id.0);
        }
    }
    assert_eq!(order.len(), 64);
    assert!(!order.is_sorted(), "{order:?}");
    order.sort_unstable();
    assert_eq!(order, (0..64).collect::<Vec<_>>());
}

#[test]
fn first_table_is_slower_and_capacity_holds() {
    let mut profile = profile("connectx-5");
    (profile.tables.first_rules_max, profile.tables.rules_max) = (64, 200);
    let mut nic = Nic::new(profile, Rng::with_seed(1));
    submit(&mut nic, Time::ZERO, installs(0..64));
    let first = nic.idle_from;
    nic.advance(first);
    submit(&mut nic, first, installs(64..128));
    let second = nic.idle_from.since(first);
    assert_eq!(first.since(Time::ZERO), second * 4);
    let now = nic.idle_from;
    submit(&mut nic, now, installs(128..228));
    let refused = answers(&mut nic, us(1_000_000))
        .into_iter()
        .filter(|answer| matches!(answer, Completion::Rejected(_, Refusal::Full)));
    assert_eq!((refused.count(), nic.rules(), nic.tally().full), (28, 200, 28));
    submit(&mut nic, us(1_000_000), removals(0..1));
    submit(&mut nic, us(1_000_000), installs(300..301));
    answers(&mut nic, us(2_000_000));
    assert_eq!((nic.rules(), nic.tally().rules_peak), (200, 200));
    assert!(nic.rules.is_first(&key(300)), "in the place that has become free");
}

#[test]
fn card_forwards_at_line_rate_and_drops_beyond() {
    let mut nic = Nic::new(profile("bluefield-2"), Rng::with_seed(1));
    submit(&mut nic, Time::ZERO, installs(0..1));
    let mut now = us(1000);
    assert_eq!(nic.packet(now, &key(1), 1500), Passage::Miss);
    // 1500 bytes and what surrounds them at 100 Gbit/s: 122 ns. At half of that rate nothing waits.
    for _ in 0..10_000 {
        let Passage::Forward(leaves) = nic.packet(now, &key(0), 1500) else { panic!("lost") };
        assert!((3.1e-6..3.2e-6).contains(&leaves.since(now).as_secs_f64()));
        now = now + Duration::from_nanos(244);
    }
    // At twice that rate half is lost, once the buffer is full.
    let (mut sent, mut lost) = (0, 0);
    for _ in 0..100_000 {
        match nic.packet(now, &key(0), 1500) {
            Passage::Forward(_) => sent += 1,
            Passage::Lost => lost += 1,
            other => panic!("{other:?}"),
        }
        now = now + Duration::from_nanos(61);
    }
    assert!((49_000..53_000).contains(&sent), "{sent} of 100,000, {lost} lost");
    assert_eq!((nic.tally().forwarded, nic.tally().lost), (10_000 + sent, lost));
}

#[test]
fn it_is_slower_while_rules_change() {
    let rate = |change: bool| {
        let mut nic = Nic::new(profile("connectx-5"), Rng::with_seed(1));
        submit(&mut nic, Time::ZERO, installs(0..1));
        let (mut now, mut next) = (us(1000), 1);
        nic.advance(now);
        for _ in 0..50_000 {
            if change && nic.waiting.is_empty() {
                answers(&mut nic, now);
                submit(&mut nic, now, installs(next..next + 64));
                next += 64;
            }
            nic.packet(now, &key(0), 1500);
            now = now + Duration::from_nanos(100);
        }
        nic.tally().forwarded as f64 / now.since(us(1000)).as_secs_f64()
    };
    let (quiet, busy) = (rate(false), rate(true));
    assert!((0.68..0.78).contains(&(busy / quiet)), "{busy} of {quiet}");
}

#[test]
fn counters_are_stale_and_final_ones_are_not() {
    let mut nic = Nic::new(profile("bluefield-2"), Rng::with_seed(1));
    submit(&mut nic, Time::ZERO, installs(0..1));
    let seconds = |seconds: u64| us(seconds * 1_000_000);
    let told = |nic: &mut Nic| {
        let mut samples = Samples::new();
        nic.sample(&[(RuleId(0), key(0)), (RuleId(9), key(9))], &mut samples);
        assert_eq!(samples[1], None);
        samples[0].unwrap().packets
    };
    nic.packet(seconds(2), &key(0), 100);
    assert_eq!(told(&mut nic), 1);
    nic.packet(seconds(2) + Duration::from_millis(900), &key(0), 100);
    assert_eq!(told(&mut nic), 1, "of a second ago");
    nic.packet(seconds(4), &key(0), 100);
    assert_eq!(told(&mut nic), 3);
    nic.packet(seconds(4), &key(0), 100);
    submit(&mut nic, seconds(4), removals(0..1));
    let last = answers(&mut nic, seconds(5));
    let [.., Completion::Removed(RuleId(0), Some(counters))] = last[..] else { panic!("{last:?}") };
    assert_eq!((counters.packets, counters.bytes), (4, 4 * 86));
}

#[test]
fn a_rule_that_it_cannot_carry_out_is_refused() {
    let mut nic = Nic::new(profile("connectx-6"), Rng::with_seed(1));
    let mut numbers = rule(0);
    numbers.rewrite.sequence_delta = 1;
    let guarded = Rule { guard: Some(hairpin_core::engine::Guard::default()), ..rule(1) };
    submit(&mut nic, Time::ZERO, [numbers, guarded].map(RuleOp::Install).into_iter());
    for answer in answers(&mut nic, us(10_000)) {
        assert!(matches!(answer, Completion::Rejected(_, Refusal::Unsupported)), "{answer:?}");
    }
    assert_eq!(nic.rules(), 0);
}
