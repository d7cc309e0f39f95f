//! `[tracing]`: what it may say, and that nothing tells its secrets.

use super::{good, said, warned, with};
use hairpin::spans::TracingSettings;
use hairpin_core::l7::trace::Parents;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file of headers that is removed in the end.
struct Headers(PathBuf);

impl Headers {
    fn new(name: &str, text: &str, mode: u32) -> Headers {
        let path = std::env::temp_dir().join(format!("hairpin-headers-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Headers(path)
    }

    fn text(&self) -> String {
        tracing(&format!("headers_file = \"{}\"", self.0.display()))
    }
}

impl Drop for Headers {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A file with an endpoint and these lines in `[tracing]`.
fn tracing(lines: &str) -> String {
    with(&format!("[tracing]\nendpoint = \"http://127.0.0.1:4318\"\n{lines}"))
}

fn read(lines: &str) -> TracingSettings {
    good(&tracing(lines)).settings.tracing.unwrap()
}

/// Asserts that these lines are refused so, on line 4.
#[track_caller]
fn refuses(lines: &str, expected: &str) {
    let said = said(&tracing(lines));
    assert!(said.len() == 1 && said[0].starts_with("t.toml:4:") && said[0].contains(expected), "{said:#?}");
}

#[test]
fn there_is_no_tracing_unless_the_file_asks_for_it() {
    assert!(good(super::GOOD).settings.tracing.is_none());
    let said = said(&with("[tracing]"));
    assert!(said.len() == 1 && said[0].contains("`endpoint` is missing in [tracing]"), "{said:?}");
}

#[test]
fn an_endpoint_is_enough() {
    let settings = read("");
    let collector = &settings.collector;
    assert_eq!(collector.endpoint.to_string(), "http://127.0.0.1:4318/v1/traces");
    assert_eq!(collector.roots, Path::new("/etc/ssl/certs/ca-certificates.crt"));
    assert_eq!((collector.headers.len(), &collector.headers_file), (0, &None));
    assert_eq!((collector.timeout, settings.queue), (Duration::from_secs(10), 2048));
    assert_eq!((&*settings.service_name, settings.sample, settings.parents), ("hairpin", 1.0, Parents::Trusted));
}

#[test]
fn everything_is_read() {
    let lines = "endpoint_roots = \"/dev/null\"\ntimeout = \"2s\"\nservice_name = \"edge of the world\"\nsample = 0.01\n\
                 parents = \"all\"\nqueue = 100\n";
    let settings = read(lines);
    let collector = &settings.collector;
    assert_eq!((&*collector.roots, collector.timeout), (Path::new("/dev/null"), Duration::from_secs(2)));
    assert_eq!((&*settings.service_name, settings.sample), ("edge of the world", 0.01));
    assert_eq!((settings.parents, settings.queue), (Parents::All, 100));
    for (written, sample) in [("0", 0.0), ("1", 1.0), ("1e-3", 0.001), ("0.000_1", 0.0001)] {
        assert_eq!(read(&format!("sample = {written}")).sample, sample);
    }
}

#[test]
fn mistakes_are_named() {
    for wrong in ["1.1", "-0.5", "2", "nan", "inf", "\"0.5\"", "true"] {
        refuses(&format!("sample = {wrong}"), "not a number from 0 to 1; write a share, such as sample = 0.01");
    }
    refuses("parents = \"trust\"", "use one of \"trusted\", \"all\", \"none\"");
    refuses("queue = 1", "use 16 to 1000000");
    refuses("timeout = \"2m\"", "use \"100ms\" to \"1m\"");
    refuses("service_name = \"\"", "use 1 to 255 bytes");
    refuses("endpoint_roots = \"ca.pem\"", "start it with `/`");
    refuses("headers_file = \"headers\"", "start it with `/`");
    for wrong in ["127.0.0.1:4318", "grpc://a:4317", "http://a/?key=1", "http://u:p@a", "http://a:0"] {
        let said = said(&with(&format!("[tracing]\nendpoint = \"{wrong}\"")));
        assert!(said.len() == 1 && said[0].starts_with("t.toml:3:12: error: `endpoint`: "), "{said:?}");
        assert!(!said[0].contains("key") && !said[0].contains("u:p"), "{said:?}");
    }
}

#[test]
fn the_port_of_grpc_is_doubtful() {
    let warned = warned(&with("[tracing]\nendpoint = \"http://collector:4317\""));
    assert!(warned.len() == 1 && warned[0].contains("Hairpin speaks OTLP over HTTP"), "{warned:?}");
}

#[test]
fn roots_that_cannot_be_read_are_doubtful() {
    let warned = warned(&tracing("endpoint_roots = \"/nowhere/ca.pem\""));
    assert!(
        warned.len() == 1 && warned[0].contains("`endpoint_roots` \"/nowhere/ca.pem\" cannot be read"),
        "{warned:?}"
    );
}

#[test]
fn headers_of_the_exporter_are_not_for_the_file() {
    for name in ["Accept-Encoding", "Expect", "Upgrade", "Keep-Alive", "Content-Type"] {
        let file = Headers::new(name, &format!("{name}: x\n"), 0o600);
        let said = said(&file.text());
        assert!(said.len() == 1 && said[0].contains("which Hairpin writes itself"), "{said:?}");
    }
}

#[test]
fn headers_come_from_a_file_and_are_not_told() {
    let file = Headers::new("good", "# a token\nAuthorization:  Bearer s3cr3t \n\nx-tenant: edge\n", 0o600);
    let config = good(&file.text());
    let headers = &config.settings.tracing.as_ref().unwrap().collector.headers;
    assert_eq!([&headers["authorization"], &headers["X-Tenant"]], ["Bearer s3cr3t", "edge"]);
    assert!(!format!("{config:?}").contains("s3cr3t"));
    let without = good(&tracing(""));
    let changes = hairpin::diff::changes(&without, &config);
    let [change] = &changes.changes[..] else { panic!("{changes:?}") };
    let expected = format!("[tracing] headers_file: none -> {} (authorization, x-tenant)", file.0.display());
    assert_eq!(change, &expected);
}

#[test]
fn what_is_no_header_is_named_by_its_line() {
    let form = "; write a header a line, as \"Authorization: Bearer TOKEN\"";
    let many: String = (0..17).map(|number| format!("x-{number}: s3cr3t\n")).collect();
    for (name, text, expected) in [
        ("none", "# none\n", format!("it has no header{form}")),
        ("colon", "a: s3cr3t\ns3cr3t\n", format!("line 2 is no header{form}")),
        ("name", "a b: s3cr3t", format!("line 1 is no header{form}")),
        ("value", "a: s3cr3t\x01", format!("line 1 is no header{form}")),
        ("twice", "a: s3cr3t\nA: s3cr3t", "line 2 has `a` again; leave one out".to_owned()),
        (
            "own",
            "Content-Type: s3cr3t",
            "line 1 has `content-type`, which Hairpin writes itself; leave it out".to_owned(),
        ),
        ("many", &many, "it has 17 headers; have 16 at most".to_owned()),
    ] {
        let file = Headers::new(name, text, 0o600);
        let problems = said(&file.text());
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        let start = format!("t.toml:4:16: error: `headers_file` \"{}\": ", file.0.display());
        assert_eq!(problem.strip_prefix(&start), Some(&*expected), "{problem}");
        assert!(!problem.contains("s3cr3t"), "{problem}");
    }
    let file = Headers::new("open", "a: s3cr3t", 0o644);
    let problem = said(&file.text()).concat();
    assert!(problem.contains("others than its owner can read or change the headers; chmod 600"), "{problem}");
}
