use super::*;

/// A machine whose costs are known.
struct Made {
    /// Calls so far, by point.
    calls: Vec<DevicePoint>,
    /// The factor on a repetition's costs.
    drift: Vec<f64>,
}

fn costs(point: &DevicePoint) -> FittedLine {
    match point.device {
        Device::Wire => FittedLine { burst_ns: 300.0, packet_ns: 10.0 },
        Device::Forwarder => FittedLine { burst_ns: 350.0, packet_ns: 40.0 },
        Device::Balancer => FittedLine { burst_ns: 500.0, packet_ns: 50.0 + 10.0 * f64::from(point.flows).log10() },
    }
}

impl Bench for Made {
    fn work(&mut self, point: &DevicePoint, _: &mut dyn FnMut(&str)) -> Result<CoreWork> {
        let iteration = self.calls.iter().filter(|other| *other == point).count();
        self.calls.push(point.clone());
        let (line, drift) = (costs(point), self.drift[iteration]);
        let of = |packets: usize| {
            let ns = if packets == 0 { 25.0 } else { line.burst_ns + line.packet_ns * packets as f64 };
            Iterations { packets, count: 500, ns: ns * drift * 500.0 }
        };
        Ok(CoreWork { iterations: [0, 1, 2, 32, 64].map(of).to_vec(), ..CoreWork::default() })
    }

    fn place(&self) -> String {
        "nowhere".to_owned()
    }
}

fn options() -> CalibrationOptions {
    let tables = ["stateless", "cuckoo++", "rte-hash"].map(str::to_owned);
    // Without DPDK there is no rte_hash.
    let tables = tables.into_iter().filter(|table| TableChoice::named(table).is_ok()).collect();
    CalibrationOptions { tables, flows: vec![1000, 20_000], ..CalibrationOptions::default() }
}

#[test]
fn a_machine_s_costs_are_found_and_can_be_read_again() {
    let mut made = Made { calls: Vec::new(), drift: vec![1.0, 3.0, 0.9] };
    let mut said = 0;
    let done = calibrate(&options(), &mut made, &mut |_| said += 1).unwrap();
    assert!(said > 12);
    // Every other repetition goes backwards.
    let points = options().points();
    assert_eq!(made.calls[..points.len()], points);
    assert!(made.calls[points.len()..].iter().take(points.len()).eq(points.iter().rev()));
    let profile = CoreProfile::parse(&done.text()).unwrap();
    // The one in the middle, not the mean.
    assert!((profile.forward_ns(1) - 390.0).abs() < 1e-6 && (profile.poll_ns() - 25.0).abs() < 1e-6);
    assert!((profile.known_ns(LookupMethod::DEFAULT, 1000.0, 2) - (250.0 + 80.0)).abs() < 0.02);
    assert!(
        profile.known_ns(LookupMethod::Stateless, 20_000.0, 1) > profile.known_ns(LookupMethod::Stateless, 1000.0, 1)
    );
    assert_eq!(profile.method.len(), 2);
    assert_eq!(profile.method[0].new.len(), 2);
    assert!(profile.method[1].new.is_empty(), "where nothing is tracked nothing is new");
    let spread = done.found.iter().find(|found| found.what == "forwarder").unwrap().spread;
    assert!((spread - (3.0 - 0.9) / 2.0).abs() < 1e-6);
    let text = done.text();
    assert!(done.found.iter().all(|found| text.contains(&found.what)));
    assert!(text.contains("nowhere"));
}

#[test]
fn changing_pace_does_not_tilt_the_fit() {
    let of = |one: f64, many: f64| {
        let iteration =
            |packets: usize, each: f64| Iterations { packets, count: 500, ns: each * packets as f64 * 500.0 };
        CoreWork { iterations: vec![iteration(1, one), iteration(32, many)], ..CoreWork::default() }
    };
    let mut sampled = Sampled::default();
    // Of the second repetition the large iterations were fast, of the third the small ones.
    for (one, many) in [(400.0, 80.0), (410.0, 30.0), (150.0, 82.0)] {
        sampled.push(&of(one, many));
    }
    let (line, spread) = sampled.line().unwrap();
    assert!((line.each(1.0) - 400.0).abs() < 1e-6 && (line.each(BURST) - 80.0).abs() < 1e-6, "{line:?}");
    assert!((spread - 26.0 / 80.0).abs() < 1e-6, "{spread}");
}

#[test]
fn without_rings_there_is_a_profile_too_and_it_says_so() {
    let options = CalibrationOptions { flows: vec![1000], repetitions: 1, ..CalibrationOptions::quick() };
    let done = calibrate(&options, &mut InMemory, &mut |_| ()).unwrap();
    assert!(done.profile.source.contains("without rings"));
    assert!(done.profile.poll.source.starts_with("not measured"));
    assert_eq!(CoreProfile::parse(&done.text()).unwrap().name, "this-machine");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let measure = |options: CalibrationOptions| calibrate(&options, &mut InMemory, &mut |_| ()).map(drop);
    for options in [
        CalibrationOptions { flows: vec![], ..options() },
        CalibrationOptions { flows: vec![0, 5], ..options() },
        CalibrationOptions { flows: vec![10, 5], ..options() },
        CalibrationOptions { repetitions: 0, ..options() },
        CalibrationOptions { tables: vec!["hash".to_owned()], ..options() },
        CalibrationOptions { name: String::new(), ..options() },
    ] {
        measure(options).unwrap_err();
    }
}
