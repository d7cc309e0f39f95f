//! The messages about mistakes in HTTP services.

use super::super::{refuses, said, warned};
use super::{route, with};

#[test]
fn tables_of_http_are_refused_elsewhere() {
    let tcp =
        |table: &str| with(&[("backends = [\"10.0.0.1:81\"]\n", &format!("backends = [\"10.0.0.1:81\"]\n{table}\n"))]);
    let only = |table: &str, field: &str, at: &str, of: &str| {
        refuses(
            &tcp(table),
            &format!(
                "{at}: error: `{field}` is given, but service \"other\" is tcp; that is for services with protocol = {of}: \
                 write that, or leave it out"
            ),
        );
    };
    let any = "\"http\", \"https\" or \"tls\"";
    only("[[service.route]]\ngroup = \"x\"", "route", "20:1", any);
    only("[[service.group]]\nname = \"x\"\nbackends = [\"10.0.0.9:1\"]", "group", "20:1", any);
    let either = "\"http\" or \"https\"";
    only("[service.http]\nreuse = false", "http", "20:1", either);
    only("[service.https]\ncertificates = \"/c\"", "https", "20:1", "\"https\"");
    only("[service.tls]\nconnect_tries = 1", "tls", "20:1", "\"tls\"");
}

#[test]
fn mistakes_in_conditions_have_their_place() {
    refuses(&route("path = \"x\""), "14:8: error: `path` is \"x\"; a path begins with '/'");
    refuses(
        &route("path_regex = \"(\""),
        "14:14: error: `path_regex` is \"(\"; not a regular expression: unclosed group, at character 1",
    );
    let class = "14:14: error: `path_regex` is \"^/a[z-b]\"; not a regular expression: invalid character class range, the \
                 start must be <= the end, at character 5";
    refuses(&route("path_regex = \"^/a[z-b]\""), class);
    refuses(
        &route("host = [\"a\", \"b:80\"]"),
        "14:14: error: `host` is \"b:80\"; a host without a port (an IPv6 address in brackets)",
    );
    refuses(&route("host = []"), "14:8: error: `host` is an empty list; leave it out, or name something");
    refuses(
        &route("method = \"get\""),
        "14:10: error: `method` is \"get\"; write \"GET\": methods are written in capitals",
    );
    refuses(
        &route("header = { X-A = 5 }"),
        "14:18: error: `header` asks for X-A to be the number 5; write its value as text, { prefix = \"...\" } for what \
         that begins with, true if it must be there, false if it must not",
    );
    refuses(
        &route("header = \"X-A\""),
        "14:10: error: `header` is the text \"X-A\", not a table; write it so: header = { X-Version = \"2\", Cookie = { \
         prefix = \"beta=\" }, X-Old = false }",
    );
    refuses(
        &route("header = { \"X A\" = true }"),
        "14:12: error: `header` names \"X A\"; a field's name is made of letters, digits and !#$%&'*+-.^_`|~",
    );
    refuses(
        &route("query = { \"a=b\" = true }"),
        "14:11: error: `query` names \"a=b\"; write the parameter's name as in a request: visible ASCII without `&`, `=` and \
         `#`",
    );
    refuses(
        &route("client = \"10.0.0.1/8\""),
        "14:10: error: `client` is \"10.0.0.1/8\"; an address beyond its beginning: write \"10.0.0.0/8\"",
    );
    refuses(
        &route("sni = \"a\""),
        "14:7: error: `sni` is given, but the service is http; say `host` for the name asked for",
    );
    refuses(&route("hots = \"a\""), "14:1: error: unknown field `hots` in [[service.route]]; did you mean `host`?");
}

#[test]
fn mistakes_in_actions_have_their_place() {
    let other = "[[service.route]]\ngroup = \"a\"";
    let target = |text: &str| with(&[("group = \"a\"", text), ("#ROUTE", "path = \"/\""), ("#MORE", other)]);
    refuses(&target("group = \"b\""), "13:9: error: service \"web\" has no group \"b\"; did you mean \"a\"?");
    refuses(&target("group = \"pictures\""), "13:9: error: service \"web\" has no group \"pictures\"; there are \"a\"");
    refuses(
        &target("groups = { a = 0 }"),
        "13:16: error: the share of \"a\" is the number 0; use 1 to 65535, or leave the group out",
    );
    refuses(&target("groups = {}"), "13:10: error: `groups` names none; write it so: groups = { own = 9, canary = 1 }");
    refuses(
        &route("reply.status = 200"),
        "14:1: error: the route has `group` and `reply`; it can lead to one of them: leave the other out",
    );
    refuses(
        &target("redirect = { status = 304, location = \"/\" }"),
        "13:23: error: `status` is 304, which is no redirect; use 301, 302, 303, 307 or 308",
    );
    refuses(
        &target("redirect = { location = \"{client_ip}\" }"),
        "13:25: error: `location` is \"{client_ip}\"; a location may use {scheme}, {host}, {authority}, {path} and {query}",
    );
    refuses(
        &target("redirect = {}"),
        "13:12: error: `location` is missing in [service.route.redirect]; add location = \"https://{host}{path}{query}\"",
    );
    refuses(
        &target("reply = { status = 204, body = \"x\" }"),
        "13:32: error: a response with status 204 has no body; leave `body` out",
    );
    refuses(
        &target(&format!("reply = {{ status = 200, body = \"{}\" }}", "x".repeat(4097))),
        "13:32: error: `body` has 4097 bytes; have 4096 at most",
    );
    refuses(
        &target("reply.status = 200\nresponse_headers.set = { X-A = \"1\" }"),
        "14:1: error: `response_headers` means nothing where Hairpin answers by itself; leave it out",
    );
    refuses(
        &route("replace_prefix = \"/x\""),
        "14:18: error: `replace_prefix` replaces the `path_prefix` or `path` of its route, and there is none; add one, \
         without `path_regex`",
    );
    refuses(
        &route("path = \"/\"\nreplace_prefix = \"x\""),
        "15:18: error: `replace_prefix` is \"x\"; a path begins with '/'",
    );
}

#[test]
fn mistakes_in_edits_have_their_place() {
    refuses(
        &route("request_headers.set = { Connection = \"x\" }"),
        "14:25: error: `set` names \"Connection\"; this field frames messages or belongs to one connection: Hairpin writes it \
         itself",
    );
    refuses(
        &route("request_headers.set = { X-A = \"{unknown}\" }"),
        "14:31: error: `set` gives X-A the value \"{unknown}\"; no such variable; there are {client_ip}, {client_port}, {vip}, \
         {vip_port}, {scheme}, {service}, {backend}, {host}, {authority}, {method}, {path}, {query}, {client_subject}, \
         {client_fingerprint} and {client_verify}, and {{ for a brace",
    );
    refuses(
        &route("response_headers.set = { X-A = \"{client_subject}\" }"),
        "14:32: error: `set` gives X-A the value \"{client_subject}\", but the service is http; {client_subject} is known where \
         TLS ends here: make the service https, or leave it out",
    );
    refuses(
        &route("response_headers.add = { X-A = \"{host}\" }"),
        "14:32: error: `add` gives X-A the value \"{host}\"; {host}, {authority}, {method}, {path} and {query} are known in \
         requests only",
    );
    refuses(
        &route("request_headers.add = { X-A = 1 }"),
        "14:31: error: `add` gives X-A the number 1 for a value; write text: X-A = \"...\"",
    );
    refuses(
        &route("response_headers.ad = { X-A = \"1\" }"),
        "14:18: error: unknown field `ad` in [service.route.response_headers]; did you mean `add`?",
    );
    refuses(
        &route("request_headers.remove = \"Host\""),
        "14:26: error: `remove` is \"Host\"; every request has a host; it can be set, not removed",
    );
}

#[test]
fn mistakes_in_groups_have_their_place() {
    let group = |text: &str| with(&[("#GROUP", text), ("group = \"a\"", "groups = { a = 1, b = 1 }")]);
    let backends = "\nbackends = [\"10.0.0.3:80\"]";
    refuses(
        &with(&[("#GROUP", &format!("[[service.group]]\nname = \"own\"{backends}"))]),
        "12:8: error: `name` is \"own\"; that means the service's own backends: choose another",
    );
    refuses(
        &with(&[("#GROUP", &format!("[[service.group]]\n{backends}"))]),
        "11:1: error: `name` is missing in [[service.group]]; add name = \"static\"",
    );
    refuses(
        &group("[[service.group]]\nname = \"b\""),
        "11:1: error: the group has no backend; add backends = [\"10.0.2.11:8080\"] or a [[service.group.backend]]",
    );
    refuses(
        &with(&[("#GROUP", &format!("[[service.group]]\nname = \"a\"{backends}"))]),
        "12:8: error: two groups are named \"web/a\"; the other one is on line 9: rename one",
    );
    refuses(
        &group("[[service.group]]\nname = \"b\"\nbackends = [\"[fd00::1]:80\"]"),
        "13:13: error: backend [fd00::1]:80 is IPv6, its group \"web/b\" IPv4; packets are not translated between families: \
         use a backend of the same",
    );
    refuses(
        &group("[[service.group]]\nname = \"b\"\nbackends = [\"192.0.2.1:80\"]"),
        "13:13: error: backend 192.0.2.1:80 is what service \"web\" listens on; packets would go round in circles: name the \
         server's own address",
    );
    refuses(
        &group("[[service.group]]\nname = \"b\"\n[[service.group.backend]]\naddress = \"10.0.0.3:80\"\nwieght = 2"),
        "15:1: error: unknown field `wieght` in [[service.group.backend]]; did you mean `weight`?",
    );
    assert_eq!(
        warned(&with(&[("#GROUP", &format!("[[service.group]]\nname = \"b\"{backends}"))])),
        ["t.toml:12:8: warning: no route leads to group \"b\"; add one, or leave the group out"]
    );
}

#[test]
fn mistakes_in_http_settings_have_their_place() {
    let http = |fields: &str| with(&[("#MORE", &format!("[service.http]\n{fields}"))]);
    refuses(
        &http("proxy_protocol = \"v1\"\nreuse = true"),
        "17:9: error: `reuse` cannot be with `proxy_protocol`, which gives every connection to a backend to one client; leave \
         one of them out",
    );
    refuses(
        &http("sticky.path = \"/\""),
        "16:1: error: `cookie` is missing in [service.http.sticky]; add cookie = \"backend\"",
    );
    refuses(
        &http("sticky.cookie = \"a b\""),
        "16:17: error: `cookie` is \"a b\"; a cookie's name is made of 1 to 64 letters, digits and !#$%&'*+-.^_`|~",
    );
    refuses(
        &http("sticky = { cookie = \"__Host-a\", secure = true, domain = \"a.example\" }"),
        "16:21: error: browsers refuse a cookie named \"__Host-a\", which needs secure = true, path = \"/\" and no `domain`; \
         add that, or choose another name",
    );
    refuses(
        &http("sticky = { cookie = \"a\", same_site = \"none\" }"),
        "16:38: error: `same_site = \"none\"` is ignored by browsers without `secure`; add secure = true, or choose \"lax\"",
    );
    refuses(
        &http("sticky = { cookie = \"a\", path = \"/;x\" }"),
        "16:33: error: `path` is \"/;x\"; write a path of up to 128 visible ASCII characters, without `;`",
    );
    refuses(
        &http("sticky = { cookie = \"a\", domain = \"*.a.example\" }"),
        "16:35: error: `domain` is \"*.a.example\"; write it without `*.`: a domain stands for all below it",
    );
    refuses(
        &http("limits.head_bytes_max = 100"),
        "16:25: error: `head_bytes_max` is 100, out of range; use 256 to 16384",
    );
    refuses(
        &http("limits.idle_timeout = \"1ms\""),
        "16:23: error: `idle_timeout` is \"1ms\", out of range; use \"100ms\" to \"1day\"",
    );
    assert_eq!(
        warned(&http("limits = { head_bytes_max = 1024, target_bytes_max = 2048 }")),
        ["t.toml:16:54: warning: `target_bytes_max` (2048) is more than a head may have (1024); lower it, or raise \
          `head_bytes_max`"]
    );
    refuses(
        &http("upgrade = \"yes\""),
        "16:11: error: `upgrade` is the text \"yes\", neither true nor false; write upgrade = true or upgrade = false, \
         without quotes",
    );
}

#[test]
fn routes_behind_one_that_takes_all_are_warned_of() {
    assert_eq!(
        warned(&with(&[("#MORE", "[[service.route]]\nhost = \"a\"")])),
        ["t.toml:15:1: warning: the route is never taken; the one on line 12 takes all: put it last"]
    );
    // A mistake in what it asks for does not make it one that takes all.
    let [one] = &said(&with(&[("#ROUTE", "path = \"x\""), ("#MORE", "[[service.route]]\nhost = \"a\"")]))[..] else {
        panic!()
    };
    assert!(one.contains("a path begins with '/'"), "{one}");
}

#[test]
fn counts_are_bounded() {
    let hosts: Vec<String> = (0..257).map(|n| format!("\"h{n}\"")).collect();
    refuses(&route(&format!("host = [{}]", hosts.join(","))), "14:8: error: 257 entries in `host`; have 256 at most");
    let mut text = with(&[("#MORE", "")]);
    let more: String = (0..1024).map(|n| format!("[[service.route]]\npath = \"/{n}\"\n")).collect();
    text = text.replace("[[service.route]]\ngroup", &format!("{more}[[service.route]]\ngroup"));
    let said = said(&text);
    assert!(said.len() == 1 && said[0].ends_with("error: 1025 entries in `route`; have 1024 at most"), "{said:?}");
    let mut text = with(&[]);
    for n in 0..1022 {
        text += &format!("[[service]]\nlisten = \"192.0.2.2:{}/tcp\"\nbackends = [\"10.0.0.1:1\"]\n", n + 1);
    }
    refuses(&text, "3083:1: error: 1025 services and groups; have 1024 at most");
}
