//! Packets of connections, files, and distances from what was published.

use super::capture::{CaptureFile, frame_length};
use super::statistics::{SeenPacket, TraceStatistics};
use super::*;
use crate::traffic::recording::{Recording, frames};
use hairpin_core::flow::Protocol;
use hairpin_core::wire::tcp::{ACK, FIN, RST, SYN};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A trace of one kind of connections, with this size and more lines of the kind.
fn model(size: &str, kind: &str, arrivals: &str) -> TraceModel {
    let text = format!(
        r#"
        name = "x"
        title = "X"
        source = "none"
        connections = 1000
        connections_per_s = 1000
        clients = 100
        servers = 10
        zipf = 0.8
        arrivals = {{ {arrivals} }}
        [path]
        round_trip_ms = {{ constant = 10 }}
        mbit_s = {{ constant = 100 }}
        server_part = 0.25
        window_bytes = 1_000_000
        [[kind]]
        name = "x"
        share = 1
        port = 443
        request = {{ constant = 400 }}
        payload = {{ constant = 1000 }}
        size = {{ {size} }}
        {kind}
        "#
    );
    let path = directory().join(format!("model-{}.toml", fastrand::u64(..)));
    std::fs::write(&path, text).unwrap();
    let model = TraceModel::read(&path);
    std::fs::remove_file(&path).unwrap();
    model.unwrap()
}

const TCP: &str = "transport = \"tcp\"\nunit = \"bytes\"";
const POISSON: &str = "kind = \"poisson\"";

fn directory() -> PathBuf {
    let directory = std::env::temp_dir().join(format!("hairpin-trace-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

fn packets(model: &TraceModel, connections: u32) -> Vec<TracePacket> {
    // Far more arrive than are looked at, so that those have time to end.
    let all = Generator::new(model, Bounds::connections(connections * 20 + 1000), 7);
    all.filter(|packet| packet.connection < connections).collect()
}

#[test]
fn download_is_opened_sent_in_windows_and_closed() {
    let all = packets(&model("constant = 25_500", TCP, POISSON), 1);
    let flags: Vec<(bool, u8)> = all.iter().map(|packet| (packet.from_client, packet.flags & !8)).collect();
    assert_eq!(flags[..4], [(true, SYN), (false, SYN | ACK), (true, ACK), (true, ACK)]);
    assert_eq!(flags[flags.len() - 3..], [(false, FIN | ACK), (true, FIN | ACK), (false, ACK)]);
    let data: Vec<&TracePacket> = all.iter().filter(|packet| !packet.from_client && packet.payload > 0).collect();
    assert_eq!(data.len(), 26);
    assert_eq!(data.iter().map(|packet| u32::from(packet.payload)).sum::<u32>(), 25_500);
    assert_eq!((data[0].payload, data[25].payload), (1000, 500));
    // Ten packets, a round trip later the next ones, at the connection's rate within a window.
    let gap = 1514 * 80;
    assert_eq!(data[1].at - data[0].at, gap);
    assert_eq!(data[10].at - data[0].at, 10_000_000);
    assert_eq!(data[11].at - data[10].at, gap);
    let acks = all.iter().filter(|packet| packet.from_client && packet.flags == ACK && packet.payload == 0).count();
    assert_eq!(acks, 1 + 13, "the handshake's, and one for every second packet");
}

#[test]
fn sequence_numbers_fit_together() {
    for kind in ["", "upload = 1.0", "reset = 1.0", "upload = 1.0\nreset = 1.0"] {
        let model = model("lognormal = [20_000, 1.5]", &format!("{TCP}\n{kind}"), POISSON);
        // What each side has sent, by connection: the next sequence number.
        let mut next: BTreeMap<(u32, bool), u32> = BTreeMap::new();
        let mut ended = 0;
        for packet in packets(&model, 200) {
            let mine = (packet.connection, packet.from_client);
            let other = (packet.connection, !packet.from_client);
            if packet.flags & SYN != 0 {
                next.insert(mine, packet.numbers.0);
            }
            assert_eq!(next.get(&mine), Some(&packet.numbers.0), "{kind}: {packet:?}");
            if packet.flags & ACK != 0 {
                let unacknowledged = next[&other].wrapping_sub(packet.numbers.1);
                assert!(unacknowledged < 10_000_000, "{kind}: what was not sent is acknowledged: {packet:?}");
            }
            let consumed = u32::from(packet.payload) + u32::from(packet.flags & (SYN | FIN) != 0);
            *next.get_mut(&mine).unwrap() = packet.numbers.0.wrapping_add(consumed);
            ended += u32::from(packet.flags & FIN != 0 || packet.flags & RST != 0);
        }
        assert!(ended >= 200, "{kind}: every connection ends");
    }
}

#[test]
fn packets_of_a_flow_are_as_many_as_drawn() {
    for (transport, upload, reset) in [("tcp", 0, 0), ("tcp", 0, 1), ("tcp", 1, 0), ("tcp", 1, 1), ("udp", 0, 0)] {
        for size in 1..=30 {
            let kind = format!(
                "transport = \"{transport}\"\nunit = \"packets\"\nacknowledged = true\nupload = {upload}.0\nreset = {reset}.0"
            );
            let all = packets(&model(&format!("constant = {size}"), &kind, POISSON), 1);
            let from_client = all.iter().filter(|packet| packet.from_client).count();
            let drawn = if upload == 1 { from_client } else { all.len() - from_client };
            assert_eq!(drawn, size, "{transport}, upload {upload}, reset {reset}: {all:?}");
        }
    }
}

#[test]
fn times_never_descend_and_connections_never_share_ends() {
    for name in built_in() {
        let model = TraceModel::find(name).unwrap();
        let mut before = 0;
        let mut ends = BTreeMap::new();
        for packet in Generator::new(&model, Bounds::packets(200_000), 3) {
            assert!(packet.at >= before, "{name}");
            before = packet.at;
            let key = (packet.protocol == Protocol::Udp, packet.from_client, packet.ends);
            assert_eq!(*ends.entry(key).or_insert(packet.connection), packet.connection, "{name}: {packet:?}");
        }
    }
}

#[test]
fn file_is_the_same_for_the_same_seed_only() {
    let model = TraceModel::find("internet").unwrap();
    let written = |name: &str, seed: u64| {
        let path = directory().join(name);
        let mut file = CaptureFile::create(&path).unwrap();
        for packet in Generator::new(&model, Bounds::connections(500), seed) {
            file.write(&packet).unwrap();
        }
        file.finish().unwrap();
        std::fs::read(&path).unwrap()
    };
    let (one, again, other) = (written("one.pcap", 5), written("again.pcap", 5), written("other.pcap", 6));
    assert!(one == again, "the same seed");
    assert!(one != other, "another seed");
}

#[test]
fn file_has_every_packet_with_right_checksums() {
    let model = TraceModel::find("campus").unwrap();
    let path = directory().join("campus.pcap");
    let mut file = CaptureFile::create(&path).unwrap();
    let all: Vec<TracePacket> = Generator::new(&model, Bounds::connections(2000), 1).collect();
    all.iter().for_each(|packet| file.write(packet).unwrap());
    file.finish().unwrap();
    let mut read = 0;
    let skipped = frames(&path, &mut |time, frame, at| {
        let packet = all[read];
        read += 1;
        assert_eq!(time.as_nanos() as u64, packet.at);
        assert_eq!((at.key.source.port, at.end - at.payload), (packet.ends.source_port, packet.payload.into()));
        let field = at.checksum_offset();
        let there = u16::from_be_bytes([frame[field], frame[field + 1]]);
        let right = at.transport_checksum(frame).unwrap();
        assert!(there == right || (there, right) == (0, 0xffff) || (there, right) == (0xffff, 0), "{packet:?}");
        None
    });
    assert!(skipped.unwrap().is_empty());
    assert_eq!(read, all.len());
    // What is counted of the file is what is counted of the packets.
    let recording = Recording::read(&path, false).unwrap();
    assert_eq!(recording.packets.len(), all.len());
    let lengths = recording.packets.iter().zip(&all);
    assert!(lengths.into_iter().all(|(recorded, packet)| recorded.length.max(60) == frame_length(packet)));
}

/// Every distance is within what is exceeded once in a thousand times: fourteen of them by one seed.
#[test]
fn sizes_drawn_follow_what_was_published() {
    for name in built_in() {
        let model = TraceModel::find(name).unwrap();
        let mut generator = Generator::new(&model, Bounds { packets: 3_000_000, ..Bounds::connections(60_000) }, 11);
        generator.by_ref().for_each(drop);
        for drawn in generator.drawn() {
            assert!(drawn.sizes.len() > 500, "{name}, {}: {} drawn", drawn.kind, drawn.sizes.len());
            let allowed = drawn.distance_allowed();
            assert!(drawn.distance <= allowed, "{name}, {}: {} above {allowed}", drawn.kind, drawn.distance);
        }
    }
}

/// A twentieth more makes a difference that is seen.
#[test]
fn distance_of_another_distribution_is_too_large() {
    let drawn_from = |median: u32| {
        let model = model(&format!("lognormal = [{median}, 1.0]"), TCP, POISSON);
        let mut generator = Generator::new(&model, Bounds { packets: 1_000_000, ..Bounds::connections(50_000) }, 1);
        generator.by_ref().for_each(drop);
        generator.drawn()[0].sizes.clone()
    };
    let mut other = Generator::new(&model("lognormal = [2000, 1.0]", TCP, POISSON), Bounds::connections(1), 1);
    let mut distance = |sizes: Vec<u64>| {
        other.replace_drawn(sizes);
        let drawn = &other.drawn()[0];
        drawn.distance / drawn.distance_allowed()
    };
    assert!(distance(drawn_from(2000)) < 1.0);
    assert!(distance(drawn_from(2100)) > 1.0);
}

/// The two mixtures together, weighted by their flows, are what the paper's table says of all flows, but for the 3 % that are
/// neither TCP nor UDP.
#[test]
fn campus_mixtures_give_the_published_shares() {
    let model = TraceModel::find("campus").unwrap();
    let below = |packets: f64| {
        let all: f64 = model.kinds.iter().map(|kind| kind.share).sum();
        model.kinds.iter().map(|kind| kind.share / all * kind.size.below(packets)).sum::<f64>()
    };
    for (packets, published) in [(1.0, 0.478), (2.0, 0.653), (10.0, 0.865), (100.0, 0.9735), (1000.0, 0.99454)] {
        let here = below(packets);
        assert!((here - published).abs() < 0.02, "up to {packets} packets: {here} here, {published} published");
    }
}

#[test]
fn arrivals_vary_as_the_process_says() {
    let statistics = |arrivals: &str| {
        let model = model("constant = 100", "transport = \"udp\"\nunit = \"bytes\"", arrivals);
        let packets = Generator::new(&model, Bounds::connections(100_000), 5);
        TraceStatistics::of(packets.map(|packet| SeenPacket::from(&packet)))
    };
    let poisson = statistics(POISSON);
    assert!((poisson.gap_variation() - 1.0).abs() < 0.02, "{}", poisson.gap_variation());
    assert!((0.6..1.5).contains(&poisson.dispersion()), "{}", poisson.dispersion());
    let lognormal = statistics("kind = \"lognormal\", sigma = 1.0");
    // sqrt(e - 1) = 1.31.
    assert!((lognormal.gap_variation() - 1.31).abs() < 0.05, "{}", lognormal.gap_variation());
    let switching = statistics("kind = \"on-off\", sources = 50, shape = 1.4, on_s = 1, off_s = 3");
    assert!(switching.dispersion() > 10.0, "{}", switching.dispersion());
}

#[test]
fn statistics_count_flows_of_both_directions() {
    let model = model("constant = 25_500", TCP, POISSON);
    let statistics = TraceStatistics::of(packets(&model, 10).iter().map(SeenPacket::from));
    assert_eq!(statistics.flows(), 20);
    // SYN-ACK, 26 packets, FIN and ACK of the server; of the client 1 + 1 + 1 + 13 + 1.
    assert_eq!((statistics.packets_at(0.0), statistics.packets_at(1.0)), (17, 29));
    assert_eq!(statistics.packets(), 10 * (17 + 29));
    assert!((statistics.share_of_top(0.05) - 29.0 / 460.0).abs() < 1e-9);
}

#[test]
fn model_files_with_mistakes_are_refused() {
    let text = include_str!("../../traces/enterprise.toml");
    for (from, to, says) in [
        ("share = 1\n", "", "share"),
        ("points = \"enterprise\"", "points = \"../enterprise\"", "no curve"),
        ("points = \"enterprise\"", "points = \"enterprise\", constant = 1", "one of"),
        ("servers = 500", "servers = 0", "servers"),
        ("sigma = 1.5", "sigma = 9", "arrivals"),
        ("unit = \"bytes\"", "unit = \"words\"", "words"),
    ] {
        let path = directory().join("mistake.toml");
        assert!(text.contains(from), "{from}");
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let error = format!("{:#}", TraceModel::read(&path).unwrap_err());
        assert!(error.contains(says), "{to}: {error}");
    }
    assert!(TraceModel::find("nowhere").is_err());
}
