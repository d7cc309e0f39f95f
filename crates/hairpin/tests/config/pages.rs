//! Error pages of services and routes.

use super::{good, refuses};
use hairpin::config::Config;
use hairpin_https::ErrorPages;
use std::fs;
use std::path::PathBuf;

fn file(name: &str, body: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("hairpin-pages-{}-{name}", std::process::id()));
    fs::write(&path, body).unwrap();
    path
}

/// An https service with `service` in it, on line 6, and `route` in its only route, on line 9.
fn with(service: &str, route: &str) -> String {
    format!(
        "interfaces = [\"eth0\"]\n[[service]]\nlisten = \"192.0.2.1:443/https\"\nbackends = [\"10.0.0.1:80\"]\n\
         https.certificates = \"/c\"\n{service}\n[[service.route]]\npath = \"/a\"\n{route}\n"
    )
}

/// The keys and bodies of pages.
fn bodies(pages: &ErrorPages) -> Vec<(u16, String)> {
    pages.0.iter().map(|(key, page)| (*key, String::from_utf8(page.body.to_vec()).unwrap())).collect()
}

/// What a change of is told.
fn said(config: &Config) -> (&[(String, String)], &[String]) {
    let said = &config.services[0].said;
    (&said.fields, &said.routes)
}

fn of_route(config: &Config) -> Vec<(u16, String)> {
    bodies(&config.services[0].said.pages.routes[0])
}

#[test]
fn a_route_has_those_of_its_service_and_its_own() {
    let [a, b] = [file("a.html", b"a"), file("b.json", b"{}")];
    let service = format!("error_pages = {{ 404 = {a:?}, \"5xx\" = {a:?} }}");
    let config = good(&with(&service, &format!("error_pages = {{ 404 = {b:?}, 400 = {b:?} }}")));
    let pages = |keys: &[(u16, &str)]| -> Vec<(u16, String)> {
        keys.iter().map(|(key, body)| (*key, body.to_string())).collect()
    };
    assert_eq!(bodies(&config.services[0].said.pages.own), pages(&[(5, "a"), (404, "a")]));
    assert_eq!(of_route(&config), pages(&[(5, "a"), (400, "{}"), (404, "{}")]));
    assert_eq!(config.services[0].said.pages.routes[0].0[&404].content_type, "application/json");
    assert_eq!(of_route(&good(&with("", ""))), []);
    assert_eq!(config.warnings, []);
}

#[test]
fn another_content_of_a_file_is_another_configuration() {
    let path = file("changed.html", b"a");
    for text in [with(&format!("error_pages.404 = {path:?}"), ""), with("", &format!("error_pages.404 = {path:?}"))] {
        fs::write(&path, b"a").unwrap();
        let before = good(&text);
        fs::write(&path, b"b").unwrap();
        assert_ne!(said(&before), said(&good(&text)));
        fs::write(&path, b"a").unwrap();
        assert_eq!(said(&before), said(&good(&text)));
    }
}

#[test]
fn mistakes_are_reported() {
    let right = file("right.html", b"a");
    let service = |entry: &str| with(&format!("error_pages = {{ {entry} }}"), "");
    for (wrong, at) in [("3xx", "3xx"), ("200", "200"), ("4", "4"), ("600", "600")] {
        refuses(
            &service(&format!("{wrong} = {right:?}")),
            &format!(
                "6:17: error: `error_pages` names \"{at}\"; write a status from \"400\" to \"599\", or \"4xx\" or \"5xx\" \
                 for the others"
            ),
        );
    }
    refuses(
        &service("404 = 1"),
        "6:23: error: `error_pages` gives \"404\" the number 1; name a file: \"404\" = \"/etc/hairpin/error.html\"",
    );
    refuses(
        &service("404 = \"404.html\""),
        "6:23: error: `error_pages` is \"404.html\", not an absolute path; write an absolute path: start it with `/`",
    );
    let user = rustix::process::geteuid().as_raw();
    refuses(
        &service("404 = \"/nowhere/404.html\""),
        &format!(
            "6:23: error: `error_pages` \"/nowhere/404.html\": cannot read it: No such file or directory (os error 2); \
             user {user}, as which this process runs, must have the right to read it"
        ),
    );
    let long = file("long.html", &[b'a'; 65537]);
    refuses(
        &with("", &format!("error_pages.5xx = {long:?}")),
        &format!(
            "9:19: error: `error_pages` {long:?}: it has more than 65536 bytes; write the page with fewer bytes, without \
             pictures"
        ),
    );
    let spliced = with(&format!("error_pages.404 = {right:?}"), "");
    let spliced = spliced.replace("https.certificates = \"/c\"\n", "").replace("443/https", "80/http");
    refuses(
        &format!("pool.addresses = [\"10.0.9.1\"]\n{spliced}"),
        "6:1: error: `error_pages` is given, but connections of the service are spliced, whose responses have none; make \
         it an https service, or leave it out",
    );
}

#[test]
fn pages_that_are_equal_count_once() {
    let page = |at: u16, same: bool| file(&format!("{at}-{same}.html"), &[if same { b'a' } else { at as u8 }; 65536]);
    let text = |same| {
        let entries: Vec<String> = (400..417).map(|at| format!("{at} = {:?}", page(at, same))).collect();
        with(&format!("error_pages = {{ {} }}", entries.join(", ")), "")
    };
    assert_eq!(good(&text(true)).services[0].said.pages.own.0.len(), 17);
    refuses(
        &text(false),
        "2:1: error: with this service, error pages of all services have 1114112 bytes; have 1048576 at most; equal pages \
         count once",
    );
}

#[test]
fn a_service_that_follows_another_one_has_its_pages() {
    let path = file("followed.html", b"a");
    let owner = with(&format!("name = \"web\"\nerror_pages.404 = {path:?}"), "");
    let other = |protocol: &str, https: &str| {
        format!(
            "pool.addresses = [\"10.0.9.1\"]\n{owner}[[service]]\nname = \"other\"\nlisten = \
             \"192.0.2.1:8443/{protocol}\"\n{https}routes_of = \"web\"\n"
        )
    };
    let config = good(&other("https", "https.certificates = \"/c\"\n"));
    assert_eq!(bodies(&config.services[1].said.pages.own), [(404, "a".to_string())]);
    good(&other("http", "http.http2 = true\n"));
    refuses(
        &other("http", ""),
        "15:13: error: `routes_of` names service \"web\", which has error pages; responses of connections that are spliced \
         have none: leave `error_pages` out there, or make this one https",
    );
}
