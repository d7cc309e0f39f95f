//! Services, backends and pool addresses that get in each other's way.

use super::{GOOD, good, refuses, said, with};

#[test]
fn services_do_not_clash() {
    let twice =
        GOOD.to_string() + "[[service]]\nname = \"b\"\nlisten = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.2:80\"]\n";
    refuses(
        &twice,
        "7:10: error: two services listen on 192.0.2.1:80; the other one is on line 3: merge them or change one",
    );
    good(&twice.replace("name = \"b\"\nlisten = \"192.0.2.1:80/tcp\"", "listen = \"192.0.2.1:80/udp\""));
    let names = "interfaces = [\"a\"]\n\
                 [[service]]\nname = \"x\"\nlisten = \"192.0.2.1:1/tcp\"\nbackends = [\"10.0.0.1:1\"]\n\
                 [[service]]\nname = \"x\"\nlisten = \"192.0.2.1:2/tcp\"\nbackends = [\"10.0.0.1:1\"]\n";
    refuses(names, "7:8: error: two services are named \"x\"; the other one is on line 3: rename one");
}

#[test]
fn services_do_not_clash_with_what_hairpin_serves_itself() {
    let api = "[api]\nlisten = \"192.0.2.1:80\"\ncertificate = \"/a.pem\"\nclient_roots = \"/ca.pem\"\n";
    let complaint = |what| {
        format!(
            "3:10: error: service \"192.0.2.1:80/tcp\" listens on 192.0.2.1:80, the address of `listen` of {what}; the \
             service would get its clients: give one of the two another address or port"
        )
    };
    refuses(&(GOOD.to_string() + api), &complaint("[api]"));
    refuses(&(GOOD.to_string() + &api.replace("192.0.2.1", "[::ffff:192.0.2.1]")), &complaint("[api]"));
    // That metrics are not served at a loopback address is said as well.
    let problems = said(&(GOOD.to_string() + "[metrics]\nlisten = \"192.0.2.1:80\"\n"));
    assert_eq!(problems[0], format!("t.toml:{}", complaint("[metrics]")));
    good(&(GOOD.to_string() + &api.replace(":80", ":81")));
    good(&(GOOD.to_string() + &api.replace("192.0.2.1", "192.0.2.2")));
    good(&(GOOD.replace("80/tcp", "80/udp") + api));
}

#[test]
fn backends_do_not_clash() {
    let backends = |list: &str| GOOD.replace("[\"10.0.0.1:80\"]", list);
    refuses(
        &backends("[\"10.0.0.1:80\", \"10.0.0.1:80\"]"),
        "4:28: error: backend 10.0.0.1:80 is in service \"192.0.2.1:80/tcp\" twice; the other one is on line 4: use \
         `weight` for a larger share",
    );
    refuses(
        &backends("[\"[fd00::1]:80\"]"),
        "4:13: error: backend [fd00::1]:80 is IPv6, its service \"192.0.2.1:80/tcp\" IPv4; packets are not translated \
         between families: use a backend of the same",
    );
    refuses(
        &backends("[\"192.0.2.1:80\"]"),
        "4:13: error: backend 192.0.2.1:80 is what service \"192.0.2.1:80/tcp\" listens on; packets would go round in \
         circles: name the server's own address",
    );
    refuses(
        &backends("[]"),
        "2:1: error: the service has no backend; add backends = [\"10.0.2.11:8080\"] or a [[service.backend]]",
    );
    refuses(
        &backends("7"),
        "4:12: error: `backends` is the number 7, not a list; write a list of texts, such as backends = \
         [\"10.0.2.11:8080\", \"10.0.2.12:8080\"]",
    );
    let named = GOOD.to_string()
        + "[[service.backend]]\naddress = \"10.0.0.2:80\"\nname = \"a\"\n"
        + "[[service.backend]]\naddress = \"10.0.0.3:80\"\nname = \"a\"\n";
    refuses(
        &named,
        "9:11: error: two backends of service \"192.0.2.1:80/tcp\" are named \"a\"; the other one is on line \
         6: rename one",
    );
}

#[test]
fn full_nat_needs_a_pool_of_its_family() {
    let full = GOOD.to_string() + "mode = \"full-nat\"\n";
    let complaint = "error: service \"192.0.2.1:80/tcp\" is full-nat, and [pool] has no IPv4 address; give it one: \
                     [pool] addresses = [\"10.0.2.1\"]";
    refuses(&full, &format!("5:8: {complaint}"));
    let (head, service) = full.split_at(full.find("[[").unwrap());
    refuses(&format!("{head}[pool]\naddresses = [\"fd00::9\"]\n{service}"), &format!("7:8: {complaint}"));
    good(&format!("{head}[pool]\naddresses = [\"10.0.0.9\"]\n{service}"));
}

#[test]
fn the_pool_is_its_own() {
    refuses(
        &with("[pool]\naddresses = [\"192.0.2.1\"]\nports = \"1024-9000\"").replace(":80/tcp", ":8000/tcp"),
        "6:10: error: service \"192.0.2.1:8000/tcp\" listens on 192.0.2.1:8000, which is in the pool; take another \
         pool address or range of `ports`",
    );
    refuses(
        &with("[pool]\naddresses = [\"10.0.0.1\"]"),
        "6:13: error: backend 10.0.0.1:80 has a pool address; pool addresses are Hairpin's own: take another one",
    );
    refuses(
        &with("[pool]\naddresses = [\"10.0.0.9\", \"10.0.0.9\"]"),
        "3:26: error: pool address 10.0.0.9 is named twice; leave one out",
    );
    refuses(
        &with("[pool]\naddresses = [\"10.0.0.0/24\"]"),
        "3:14: error: pool address \"10.0.0.0/24\" is not an IP address; write \"10.0.2.1\" or \"fd00::1\", without \
         port or prefix",
    );
    refuses(
        &with("[pool]\nports = \"9000-8000\""),
        "3:9: error: `ports` is \"9000-8000\"; the first port comes first: \"8000-9000\"",
    );
    refuses(
        &with("[pool]\nports = \"80-8000\""),
        "3:9: error: `ports` is \"80-8000\"; use ports from 1024 on: those below belong to services",
    );
    refuses(
        &with("[pool]\nports = \"9000\""),
        "3:9: error: `ports` is \"9000\"; write first and last port, such as \"16384-28671\"",
    );
}
