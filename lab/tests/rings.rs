//! Trials over rings: every frame is accounted for, and none is missing from the pool afterwards (the testbed itself
//! refuses to give a measurement otherwise). One test, since DPDK starts once in a process and the threads want
//! processors of their own.
#![allow(missing_docs)]

use hairpin_dpdk::{Eal, EalOptions};
use hairpin_lab::testbed::rings::RingTestbed;
use hairpin_lab::testbed::table::names;
use hairpin_lab::testbed::{
    Arrivals, Device, FrameSize, Measurement, PacketSource, SendRate, Testbed, TransportProtocol, Trial, TrialProgress,
};
use std::time::Duration;

fn measure(testbed: &mut RingTestbed, trial: &Trial) -> Measurement {
    let (mut started, mut running) = (0, 0);
    let measured = testbed.measure(trial, &mut |progress| match progress {
        TrialProgress::Started { device } => started += device.len(),
        TrialProgress::Running { received, sent, .. } => {
            assert!(received <= sent);
            running += 1;
        }
        TrialProgress::Preparing { .. } => {}
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

/// Devices of several cores, whose threads take turns where there are too few processors: what they have in common - one
/// table, for most - is used by all of them at once, and every flow keeps its backend. Nothing is said about speed.
fn several_cores(testbed: &mut RingTestbed, short: &Trial) {
    testbed.set_crowded(true);
    let closed = PacketSource::Synthetic {
        transport: TransportProtocol::Tcp,
        arrivals: Arrivals::Closed,
        sizes: None,
        ipv6: false,
    };
    let mut shared = 0;
    for table in names() {
        let trial = Trial { table: table.to_owned(), cores: 2, flows: 300, ..short.clone() };
        if let Some(obstacle) = testbed.obstacle(&trial) {
            let corrupts = ["rte-hash/none", "rte-hash/multi-writer"].contains(&table);
            assert!(obstacle.contains(if corrupts { "corrupts" } else { "this processor" }), "{obstacle}");
            continue;
        }
        shared += u32::from(table.starts_with("rte-hash/") && !table.contains("transactional"));
        // Flows that are there, and flows that come and go all the time: every core inserts and removes.
        for (cores, run, source) in [(2, 2, PacketSource::default()), (3, 1, closed.clone())] {
            let table_entries = 1 << 18;
            let measured = measure(testbed, &Trial { cores, run, source, table_entries, ..trial.clone() });
            assert!((measured.consistent || measured.lost() > 0) && measured.received > 0, "{table}: {measured:?}");
            assert!(measured.ran.is_some_and(|ran| (0.0..=1.0).contains(&ran.device)), "{:?}", measured.ran);
        }
    }
    assert_eq!(shared, 4, "flag sets that protect readers by locks or without");
    testbed.set_crowded(false);
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
        for transport in [TransportProtocol::Tcp, TransportProtocol::Udp] {
            let source = PacketSource::Synthetic { transport, arrivals: Arrivals::Fixed, sizes: None, ipv6: false };
            let measured = measure(&mut testbed, &Trial { run, source, ..short.clone() });
            // Every flow has one packet a round; on a machine with much else to do there may not be a whole one.
            assert!(measured.consistent && measured.lost() == 0 && measured.flows_seen == measured.sent.min(1000));
        }
    }
    for table in names() {
        let trial = Trial { table: table.to_owned(), ..short.clone() };
        if let Some(obstacle) = testbed.obstacle(&trial) {
            assert!(table.contains("transactional") && obstacle.contains("processor"), "{obstacle}");
            continue;
        }
        let measured = measure(&mut testbed, &trial);
        assert!(measured.consistent && measured.lost() == 0 && measured.received > 0, "{table}");
    }

    // Far more than the device takes: what finds the ring full is lost for that reason, or was never sent.
    let measured = measure(&mut testbed, &Trial { rate: SendRate::Packets(1e9), ..short.clone() });
    assert!(measured.lost_by_reason.iter().all(|(reason, _)| reason == "ring-full"));
    assert!(measured.lost() + measured.behind > 1_000_000);

    // A table too small for the flows: datagrams move, established connections stay and others find no room.
    let measured =
        measure(&mut testbed, &Trial { table_entries: 128, duration: Duration::from_secs(1), ..short.clone() });
    assert!(!measured.consistent || measured.sent < 3000);
    let source = PacketSource::Synthetic {
        transport: TransportProtocol::Tcp,
        arrivals: Arrivals::Fixed,
        sizes: None,
        ipv6: true,
    };
    let measured = measure(
        &mut testbed,
        &Trial { table_entries: 128, run: 2, source, duration: Duration::from_secs(1), ..short.clone() },
    );
    assert!(
        measured.sent < 1000
            || measured.consistent && measured.lost_by_reason.iter().any(|(reason, _)| reason == "table-full"),
        "{measured:?}"
    );

    let measured = measure(&mut testbed, &Trial { packet_size: FrameSize::Fixed(9000), ..short.clone() });
    assert_eq!(measured.rx_bps > 0.0, measured.received > 0);

    several_cores(&mut testbed, &short);
    let wrong = Trial { table: "hash".to_owned(), ..short.clone() };
    assert!(testbed.obstacle(&wrong).unwrap().contains("cuckoo++"));
    assert!(testbed.obstacle(&Trial { cores: 1000, ..short }).unwrap().contains("1001 processors"));
}
