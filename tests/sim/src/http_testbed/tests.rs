use super::*;

fn nic() -> SmartNicProfile {
    SmartNicProfile::parse(include_str!("../../../../lab/profiles/smart-nics/bluefield-2.toml")).expect("a profile")
}

fn card() -> CardProfile {
    let mut card = CardProfile::parse(include_str!("../../../../lab/profiles/bluefield-2.toml")).expect("a card");
    card.forwarding.gbit_s = 200.0;
    card
}

fn options(size: u32, cores: u16) -> HttpTestbedOptions {
    HttpTestbedOptions {
        nic: nic(),
        card: None,
        offload_bytes_min: u64::MAX,
        cores,
        ports: 2,
        hosts: HostProfile {
            hop_us: 5.0,
            client_us: 5.0,
            server_us: 10.0,
            acknowledge_segments: 44,
            acknowledge_us: 20.0,
            window_bytes: 1 << 20,
            initial_segments: 10,
            retransmit_us: 5000.0,
            buffer_bytes: 12e6,
        },
        clients: 16 * u32::from(cores),
        sizes: [size].into(),
        load: Load::Closed,
        warm_up: Duration::from_millis(5),
        measured: Duration::from_millis(5),
        seed: 7,
    }
}

fn results(options: &HttpTestbedOptions) -> HttpResults {
    let results = run(options, &mut |_| {});
    assert!(results.failures.is_empty(), "{:?}", results.failures);
    assert!(results.body_bytes > 0);
    results
}

#[test]
fn a_core_is_as_busy_as_its_packets_and_requests_cost() {
    let options = options(1024, 1);
    let results = results(&options);
    let nic = &options.nic;
    let worked: f64 = results.work.iter().sum();
    let expected = results.core_packets as f64 * nic.work.packet_ns + results.responses as f64 * nic.work.request_ns;
    assert!((worked / expected - 1.0).abs() < 0.05, "{worked} ns of work, {expected} expected: {results:?}");
    assert!(results.busy > 0.95, "{results:?}");
}

#[test]
fn runs_are_repeated_by_their_seed() {
    let all = |options: &HttpTestbedOptions| {
        let results = results(options);
        (results.body_bytes, results.core_packets, results.latencies.len(), results.lost)
    };
    let once = options(20_000, 2);
    assert_eq!(all(&once), all(&once));
    assert_ne!(all(&once), all(&HttpTestbedOptions { seed: 8, ..once.clone() }));
}

#[test]
fn an_engine_carries_large_bodies_and_waits_for_no_core() {
    let options = HttpTestbedOptions { warm_up: Duration::from_millis(15), ..options(4 << 20, 1) };
    let software = results(&options);
    let offloaded = HttpTestbedOptions { card: Some(card()), offload_bytes_min: 1 << 20, ..options };
    let offloaded = results(&offloaded);
    assert_eq!(software.engine_packets, 0);
    assert!(offloaded.engine_bytes * 2 > offloaded.body_bytes, "{offloaded:?}");
    assert!(offloaded.body_bytes > software.body_bytes, "{offloaded:?}\n{software:?}");
    assert!(offloaded.core_packets < software.core_packets, "{offloaded:?}\n{software:?}");
}

#[test]
fn what_is_lost_is_sent_again() {
    let mut options = options(300_000, 1);
    options.nic.ports.queue = 64;
    let results = results(&options);
    assert!(results.lost[1] > 0 && results.repeated > 0, "{results:?}");
}

#[test]
fn slow_memory_is_waited_for() {
    let usual = options(1 << 20, 2);
    let mut slow = usual.clone();
    slow.nic.memory.gbyte_s = 3.0;
    let (usual, slow) = (results(&usual), results(&slow));
    assert!(slow.memory_busy > 0.95 && slow.work[Work::Memory as usize] > 0.0, "{slow:?}");
    assert!(slow.body_bytes < usual.body_bytes, "{slow:?}\n{usual:?}");
}

#[test]
fn requests_by_the_clock_come_at_their_rate() {
    let rate = 40_000.0;
    let options = HttpTestbedOptions { load: Load::Open { requests_per_s: rate }, ..options(4096, 1) };
    let results = results(&options);
    let came = results.responses as f64 / results.seconds;
    assert!((came / rate - 1.0).abs() < 0.05, "{came} of {rate}");
    assert!(results.latencies.windows(2).all(|pair| pair[0] <= pair[1]));
    // Four hops, a server, a core.
    assert!(results.latencies[0] > 30_000, "{}", results.latencies[0]);
}

#[test]
fn the_profiles_that_come_along_are_right() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/profiles/smart-nics");
    for file in std::fs::read_dir(directory).expect("profiles") {
        let path = file.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a text");
        let profile = SmartNicProfile::parse(&text).unwrap_or_else(|wrong| panic!("{}: {wrong}", path.display()));
        assert_eq!(path.file_stem().and_then(|stem| stem.to_str()), Some(profile.name.as_str()));
    }
    for (from, to, why) in [
        ("packet_ns = 329", "packet_ns = 0", "above 0"),
        ("factor = 1.2", "factor = 0.5", "1 to 10"),
        ("gbit_s = 100", "gbit_s = -1", "ports.gbit_s"),
        ("cores_max = 7", "cores_max = 70", "1 to 32"),
        ("[l2]", "[l3]", "l3"),
    ] {
        let text = include_str!("../../../../lab/profiles/smart-nics/bluefield-2.toml").replacen(from, to, 1);
        let wrong = SmartNicProfile::parse(&text).expect_err(to);
        assert!(wrong.contains(why), "{to}: {wrong}");
    }
}
