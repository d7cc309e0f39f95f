//! How backends are chosen, where that goes by requests; backups; outliers; limits and queues.

use super::http::with;
use super::{GOOD, good, refuses, warned};
use hairpin_core::config::Algorithm;
use hairpin_core::l7::config::{Kind, Mirror};
use std::time::Duration;

#[test]
fn parts_of_requests_are_named() {
    let chosen = |edits: &[(&str, &str)]| {
        let config = good(&with(edits));
        assert_eq!(config.warnings, []);
        let name = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
        [0, 1].map(|at| (config.snapshot.services[at].algorithm, name(&config.snapshot.services[at].hash_name)))
    };
    let plain = |algorithm| (algorithm, String::new());
    let header = (Algorithm::HeaderHash, "x-tenant".to_string());
    let text = "balance = \"header-hash\"\nhash_name = \"X-Tenant\"";
    assert_eq!(chosen(&[("#WEB", text)]), [header.clone(), header.clone()], "a group has its service's");
    let cookie = (Algorithm::CookieHash, "Who".to_string());
    let own = [("#WEB", text), ("#GROUP", "balance = \"cookie-hash\"\nhash_name = \"Who\"")];
    assert_eq!(chosen(&own), [header.clone(), cookie]);
    let other = (Algorithm::HeaderHash, "x-user".to_string());
    assert_eq!(chosen(&[("#WEB", text), ("#GROUP", "hash_name = \"x-user\"")]), [header.clone(), other]);
    let group = [("#WEB", text), ("#GROUP", "balance = \"round-robin\"")];
    assert_eq!(chosen(&group), [header, plain(Algorithm::RoundRobin)]);
    assert_eq!(chosen(&[("#WEB", "balance = \"path-hash\"")]), [(); 2].map(|()| plain(Algorithm::PathHash)));
    assert_eq!(
        chosen(&[("#GROUP", "balance = \"least-latency\"")]),
        [Algorithm::RoundRobin, Algorithm::LeastLatency].map(plain)
    );
}

#[test]
fn parts_of_requests_are_asked_for() {
    let missing = "error: `hash_name` is missing in [[service]]; add hash_name = \"X-Tenant\"";
    refuses(&with(&[("#WEB", "balance = \"header-hash\"")]), &format!("3:1: {missing}"));
    let group = [("#WEB", "balance = \"header-hash\"\nhash_name = \"a\""), ("#GROUP", "balance = \"cookie-hash\"")];
    refuses(&with(&group), &format!("9:1: {}", missing.replace("[[service]]", "[[service.group]]")));
    refuses(
        &with(&[("#WEB", "balance = \"cookie-hash\"\nhash_name = \"a b\"")]),
        "8:13: error: `hash_name` is \"a b\"; a name is made of 1 to 64 letters, digits and !#$%&'*+-.^_`|~",
    );
    refuses(
        &with(&[("#WEB", "hash_name = \"a\"")]),
        "7:13: error: `hash_name` is given, but `balance` is \"round-robin\"; leave it out, or use balance = \
         \"header-hash\" or \"cookie-hash\"",
    );
    for (word, instead) in [("path-hash", "source-hash"), ("least-latency", "least-connections")] {
        refuses(
            &format!("{GOOD}balance = \"{word}\"\n"),
            &format!(
                "5:11: error: `balance` is \"{word}\", but the service has no requests; use \"{instead}\", or make the \
                 service http or https"
            ),
        );
    }
}

#[test]
fn backups_are_read() {
    let spare = "[[service.backend]]\naddress = \"10.0.0.9:80\"\nbackup = true\n[[service.backend]]\naddress = \
                 \"spare.internal:80\"\nbackup = true";
    let config = good(&with(&[("#GROUP", &spare.replace("service.", "service.group."))]));
    assert_eq!(config.warnings, []);
    let backups: Vec<bool> = config.snapshot.services[1].backends.iter().map(|backend| backend.is_backup).collect();
    assert_eq!(backups, [false, true]);
    assert_eq!(config.services[1].named[0].to_string(), "spare.internal:80 (all, weight 1, enabled, backup)");
    let only = GOOD.replace("backends = [\"10.0.0.1:80\"]\n", spare);
    let expected = "t.toml:3:10: warning: all backends of service \"192.0.2.1:80/tcp\" are backups, so that they are always \
                    used; leave `backup` out, or add other backends";
    assert_eq!(warned(&only), [expected]);
}

#[test]
fn outliers_are_ejected_where_the_table_is() {
    let of = |edits: &[(&str, &str)]| {
        let config = good(&with(edits));
        assert_eq!(config.warnings, []);
        [0, 1].map(|at| config.services[at].outlier)
    };
    assert_eq!(of(&[]), [None, None]);
    let [service, group] = of(&[("#WEB", "[service.outlier]")]);
    assert_eq!(group, service, "a group has its service's");
    let default = service.unwrap();
    assert_eq!((default.consecutive, default.error_percent, default.latency_factor), (5, 50, 0));
    assert_eq!((default.requests_min, default.max_ejected_percent), (20, 50));
    let times = [default.interval, default.ejection_time, default.ejection_time_max, default.latency_min];
    assert_eq!(times, [10_000, 30_000, 300_000, 10].map(Duration::from_millis));
    let own = "[service.group.outlier]\nlatency_factor = 4\nconsecutive = 0\nejection_time = \"5m\"";
    let [service, group] = of(&[("#GROUP", own)]);
    let group = group.unwrap();
    assert_eq!((service, group.latency_factor, group.consecutive), (None, 4, 0));
    assert_eq!(group.ejection_time, Duration::from_secs(300));
    let off = [("#WEB", "[service.outlier]"), ("#GROUP", "[service.group.outlier]\nenabled = false")];
    assert_eq!(of(&off), [Some(default), None]);
}

#[test]
fn outliers_that_cannot_be_are_refused() {
    refuses(
        &with(&[("#WEB", "[service.outlier]\nejection_time = \"6m\"")]),
        "8:17: error: `ejection_time_max` is shorter than `ejection_time`; name a longer one, or a shorter `ejection_time`",
    );
    refuses(
        &format!("{GOOD}outlier.latency_factor = 3\n"),
        "5:26: error: `latency_factor` is given, but the service has no requests; leave it out, or make the service http or \
         https",
    );
    refuses(
        &format!("{GOOD}mode = \"dsr\"\noutlier.consecutive = 3\n"),
        "3:10: error: service \"192.0.2.1:80/tcp\" ejects outliers, but it is dsr, and what backends answer does not pass \
         here; leave `outlier` out, and use `check` of [service.health]",
    );
}

#[test]
fn limits_and_queues_are_read() {
    let limited = "[[service.backend]]\naddress = \"10.0.0.9:80\"\nconnections_max = 7\n";
    let config = good(&with(&[("#WEB", limited)]));
    let most: Vec<u32> = config.snapshot.services[0].backends.iter().map(|backend| backend.connections_max).collect();
    assert_eq!((most, config.services[0].queue), (vec![0, 7], None));
    assert!(matches!(config.snapshot.services[0].kind, Kind::Http(_)));
    let queue = "[service.queue]\nrequests_max = 9\n";
    let edits = [("#WEB", &*format!("{limited}{queue}")), ("#ROUTE", "priority = 8")];
    let config = good(&with(&edits));
    let [service, group] = [0, 1].map(|at| config.services[at].queue.unwrap());
    assert_eq!((service.requests_max, service.timeout, group), (9, Duration::from_secs(1), service));
    let Kind::Terminated(terminated) = &config.snapshot.services[0].kind else { panic!("its requests can wait") };
    assert_eq!(terminated.http.routes[0].terms.priority, 8);
    let [warning] = &config.warnings[..] else { panic!("{:?}", config.warnings) };
    assert!(warning.to_string().contains("`queue` has bodies copied in user space"), "{warning}");
    refuses(
        &with(&[("#ROUTE", "priority = 8")]),
        "14:12: error: `priority` is given, but connections of the service are spliced, which keeps no request; leave it \
         out: it is for HTTPS services, and for those with `http2`",
    );
    refuses(
        &format!("{GOOD}queue.requests_max = 3\n"),
        "5:1: error: `queue` is given, but service \"192.0.2.1:80/tcp\" is tcp; that is for services with protocol = \
         \"http\" or \"https\": write that, or leave it out",
    );
}

#[test]
fn copies_of_requests_go_to_a_group() {
    let with = |protocol: &str, mirror: &str| {
        format!(
            "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.1\"]\n[[service]]\nname = \"web\"\n\
             listen = \"192.0.2.1:80/{protocol}\"\nbackends = [\"10.0.0.1:80\"]\n[[service.group]]\nname = \"shadow\"\n\
             backends = [\"10.0.0.2:80\"]\n[[service.route]]\nmirror = {{ {mirror} }}\n"
        )
    };
    let https = |mirror: &str| format!("{}[service.https]\ncertificates = \"/c\"\n", with("https", mirror));
    let mirror = |text: &str| {
        let config = good(text);
        // That a group gets nothing but copies is no oversight.
        assert_eq!(config.warnings, []);
        config.snapshot.services[0].kind.http().unwrap().routes[0].terms.mirror.unwrap()
    };
    assert_eq!(mirror(&https("group = \"shadow\"")), Mirror { group: 1, percent: 100, concurrent: 64 });
    let some = "group = \"shadow\", percent = 5, concurrent = 3";
    assert_eq!(mirror(&https(some)), Mirror { group: 1, percent: 5, concurrent: 3 });
    refuses(
        &https("group = \"shadw\""),
        "11:20: error: service \"web\" has no group \"shadw\"; did you mean \"shadow\"?",
    );
    refuses(
        &with("http", "group = \"shadow\""),
        "11:10: error: `mirror` is given, but connections of the service are spliced, which keeps no request; leave it out: it is \
         for HTTPS services, and for those with `http2`",
    );
    refuses(
        &https("group = \"shadow\"").replace("mirror", "redirect.location = \"/\"\nmirror"),
        "12:10: error: `mirror` means nothing where Hairpin answers by itself; leave it out",
    );
}
