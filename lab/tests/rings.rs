//! Trials over rings: every frame is accounted for, and none is missing from the pool afterwards (the testbed itself
//! refuses to give a measurement otherwise). One test, since DPDK starts once in a process and the threads want
//! processors of their own.
#![allow(missing_docs)]

use hairpin_dpdk::{Eal, EalOptions};
use hairpin_lab::testbed::rings::RingTestbed;
use hairpin_lab::testbed::table::names;
use hairpin_lab::testbed::{Arrivals, Device, Measurement, Progress, Rate, Size, Source, Testbed, Transport, Trial};
use std::time::Duration;

fn measure(testbed: &mut RingTestbed, trial: &Trial) -> Measurement {
    let (mut started, mut running) = (0, 0);
    let measured = testbed.measure(trial, &mut |progress| match progress {
        Progress::Started { device } => started += device.len(),
        Progress::Running { received, sent, .. } => {
            assert!(received <= sent);
            running += 1;
        }
        Progress::Preparing { .. } => {}
    });
    let measured = measured.unwrap_or_else(|error| panic!("{trial:?}: {error:#}"));
    assert_eq!(started, usize::from(trial.cores));
    assert!(running > 0);
    assert_eq!(measured.sent, measured.received + measured.lost());
    assert_eq!((measured.reordered, measured.duplicates, measured.corrupted), (0, 0, 0));
    eprintln!(
        "{} {} {}: {:.2} Mpps in, {:.2} Mpps back, {:.3} % lost, p50 {} ns, p99 {} ns",
        trial.device,
        trial.table,
        trial.rate,
        measured.tx_pps / 1e6,
        measured.rx_pps / 1e6,
        measured.loss() * 100.0,
        measured.latency.p50,
        measured.latency.p99
    );
    measured
}

#[test]
fn every_frame_is_accounted_for() {
    let eal = Eal::start(EalOptions { memory_mib: 256, ..EalOptions::default() }).unwrap();
    let mut testbed = RingTestbed::new(eal);
    let short = Trial { duration: Duration::from_millis(200), table_entries: 1 << 16, ..Trial::default() };
    if let Some(obstacle) = testbed.obstacle(&short) {
        return eprintln!("skipped: {obstacle}");
    }
    let trial = Trial { duration: Duration::from_secs(1), device: Device::Forwarder, ..short.clone() };
    let measured = measure(&mut testbed, &trial);
    assert!(measured.received > 0 && measured.lost() == 0);
    assert_eq!(measured.over_time.len(), 10);

    for run in [1, 2] {
        for transport in [Transport::Tcp, Transport::Udp] {
            let source = Source::Synthetic { transport, arrivals: Arrivals::Fixed, sizes: None, ipv6: false };
            let measured = measure(&mut testbed, &Trial { run, source, ..short.clone() });
            // Every flow has one packet a round; on a machine with much else to do there may not be a whole one.
            assert!(measured.consistent && measured.lost() == 0 && measured.flows_seen == measured.sent.min(1000));
        }
    }
    for table in names() {
        let measured = measure(&mut testbed, &Trial { table: table.to_owned(), ..short.clone() });
        assert!(measured.consistent && measured.lost() == 0 && measured.received > 0, "{table}");
    }

    // Far more than the device takes: what finds the ring full is lost for that reason, or was never sent.
    let measured = measure(&mut testbed, &Trial { rate: Rate::Packets(1e9), ..short.clone() });
    assert!(measured.lost_by_reason.iter().all(|(reason, _)| reason == "ring-full"));
    assert!(measured.lost() + measured.behind > 1_000_000);

    // A table too small for the flows: datagrams move, established connections stay and others find no room.
    let measured =
        measure(&mut testbed, &Trial { table_entries: 128, duration: Duration::from_secs(1), ..short.clone() });
    assert!(!measured.consistent || measured.sent < 3000);
    let source = Source::Synthetic { transport: Transport::Tcp, arrivals: Arrivals::Fixed, sizes: None, ipv6: true };
    let measured = measure(
        &mut testbed,
        &Trial { table_entries: 128, run: 2, source, duration: Duration::from_secs(1), ..short.clone() },
    );
    assert!(
        measured.sent < 1000
            || measured.consistent && measured.lost_by_reason.iter().any(|(reason, _)| reason == "table-full"),
        "{measured:?}"
    );

    let measured = measure(&mut testbed, &Trial { packet_size: Size::Fixed(9000), ..short.clone() });
    assert_eq!(measured.rx_bps > 0.0, measured.received > 0);

    let wrong = Trial { table: "hash".to_owned(), ..short.clone() };
    assert!(testbed.obstacle(&wrong).unwrap().contains("cuckoo++"));
    assert!(testbed.obstacle(&Trial { cores: 1000, ..short }).unwrap().contains("1001 processors"));
}
