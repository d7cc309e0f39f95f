use super::*;

const FILE: &str = "interfaces = [\"eth0\"]\n\
    [[service]]\nname = \"a\"\nlisten = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.1:80\"]\n\
    [[service]]\nname = \"b\"\nlisten = \"192.0.2.1:53/udp\"\nbackends = [\"10.0.0.1:53\", \"10.0.0.2:53\"]\n";

pub(super) fn reading(snapshot: &Snapshot, uptime_s: u64, workers: usize) -> Reading {
    let worker = WorkerReading {
        cpu: 0,
        busy: Duration::ZERO,
        statistics: Statistics::new(snapshot, 100),
        device_drops: vec![("queue-full", 0)],
        device_events: Vec::new(),
    };
    Reading {
        https: HttpsReading::default(),
        uptime: Duration::from_secs(uptime_s),
        workers: vec![worker; workers],
        totals: vec![Volume::default(); snapshot.backends() as usize * 2],
        access: Vec::new(),
        events: vec![("sent", 0, false), ("policed-client", 0, true)],
    }
}

#[test]
fn worker_and_kernel_counts_add_up() {
    let config = crate::config::parse("t", FILE).unwrap();
    let before = reading(&config.snapshot, 10, 2);
    let mut now = reading(&config.snapshot, 12, 2);
    for (index, worker) in now.workers.iter_mut().enumerate() {
        worker.busy = Duration::from_millis(500);
        let statistics = &mut worker.statistics;
        statistics.services[1].created = 10;
        statistics.services[1].refused = 1;
        statistics.backends[2].connections = 10;
        // Some more are over.
        statistics.backends[2].connections_now = 10;
        statistics.backends[2].open_now = 3 + index as u64;
        statistics.backends[2].software[0].add(100, 1000);
        statistics.backends[2].software[1].add(50, 500);
        statistics.drops[Drop::Unknown as usize] = 4;
        statistics.offload.installed = 7;
        statistics.offload.refused_full = 2;
        worker.device_drops[0].1 = 5;
    }
    now.totals[4].add(600, 6000);
    now.totals[5].add(100, 1000);
    now.events = vec![("sent", 40, false), ("policed-client", 6, true)];

    let status = status(&config.settings, &config.snapshot, &before, &now);
    assert_eq!(status.workers[0].busy_share, 0.25);
    let [a, b] = &status.services[..] else { panic!("{:?}", status.services) };
    assert_eq!((a.connections, a.software, a.offloaded_share), (0, Traffic::default(), 0.0));
    assert_eq!((b.connections, b.connections_total, b.connections_per_s, b.refused_total), (7, 20, 10.0, 2));
    let software = Traffic { packets: 300, bytes: 3000, packets_per_s: 150.0, bits_per_s: 12_000.0 };
    let offloaded = Traffic { packets: 700, bytes: 7000, packets_per_s: 350.0, bits_per_s: 28_000.0 };
    assert_eq!((b.software, b.offloaded, b.offloaded_share), (software, offloaded, 0.7));
    assert_eq!((b.backends[0].software, b.backends[1].software), (Traffic::default(), software));
    assert_eq!((status.offload.installed_total, status.offload.installed_per_s), (14, 7.0));
    assert_eq!(status.offload.not_offloaded, BTreeMap::from([("engine-full".to_string(), 4)]));
    let named = |name: &str, total, per_s| (name.to_string(), Count { total, per_s });
    let drops =
        [named("worker.unknown", 8, 4.0), named("device.queue-full", 10, 5.0), named("kernel.policed-client", 6, 3.0)];
    assert_eq!(status.drops, BTreeMap::from(drops));
    assert_eq!(status.events, BTreeMap::from([named("kernel.sent", 40, 20.0)]));
}

#[test]
fn a_reading_beside_itself_has_no_rates() {
    let config = crate::config::parse("t", FILE).unwrap();
    let now = reading(&config.snapshot, 1, 1);
    let status = status(&config.settings, &config.snapshot, &now, &now);
    assert_eq!(status.workers[0].busy_share, 0.0);
    assert_eq!(status.services[0].connections_per_s, 0.0);
}

#[test]
fn groups_stand_behind_their_service() {
    let file = "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.1\"]\n\
        [[service]]\nlisten = \"192.0.2.1:80/http\"\n\
        [[service.group]]\nname = \"a\"\nbackends = [\"10.0.0.1:80\"]\n\
        [[service.group]]\nname = \"b\"\nbackends = [\"10.0.0.2:80\"]\n\
        [[service.route]]\ngroups = { a = 1, b = 1 }\n\
        [[service]]\nname = \"s\"\nlisten = \"192.0.2.1:443/tls\"\nbackends = [\"10.0.0.1:80\"]\n";
    let mut config = crate::config::parse("t", file).unwrap();
    // As after a reload that has added a group.
    config.snapshot.services.swap(2, 3);
    let now = reading(&config.snapshot, 1, 1);
    let status = status(&config.settings, &config.snapshot, &now, &now);
    let lines: Vec<_> = status
        .services
        .iter()
        .map(|s| {
            (&*s.name, &*s.listen, &*s.protocol, s.group_of.as_deref(), s.backends.first().map_or("", |b| &b.name))
        })
        .collect();
    let web = "192.0.2.1:80/http";
    assert_eq!(
        lines,
        [
            (web, web, "http", None, ""),
            ("192.0.2.1:80/http/a", "", "group", Some(web), "10.0.0.1:80"),
            ("192.0.2.1:80/http/b", "", "group", Some(web), "10.0.0.2:80"),
            ("s", "192.0.2.1:443/tls", "tls", None, "10.0.0.1:80"),
        ]
    );
}

#[test]
fn access_rules_have_what_engine_and_workers_have_counted() {
    let rules = "[[service.access]]\naction = \"allow\"\nclient = \"10.0.0.1\"\n\
        [[service.access]]\naction = \"count\"\n[[service.access]]\naction = \"deny\"\nclient = \"10.0.0.0/8\"\n";
    let config = crate::config::parse("t", &format!("{FILE}{rules}")).unwrap();
    let mut registry = crate::registry::Registry::default();
    let snapshot = registry.merge(&config, &|_| 1, 0).unwrap().snapshot;
    let mut now = reading(&snapshot, 10, 2);
    for worker in &mut now.workers {
        worker.statistics.services[1].access[1] = 2;
        worker.statistics.services[1].access[2] = 1;
    }
    now.access = vec![0; 2 * RULES_MAX];
    (now.access[RULES_MAX + 1], now.access[RULES_MAX + 2]) = (100, 50);
    let status = status(&config.settings, &snapshot, &now, &now);
    let said: Vec<_> = status.services[1].access.iter().map(|r| (r.rule, &*r.action, r.packets_total)).collect();
    assert_eq!(said, [(2, "count", 104), (3, "deny", 52)]);
    assert_eq!((status.services[1].refused_total, status.services[0].access.len()), (52, 0));
}
