//! `[api]`: by TCP only under TLS, and only for clients that are known.

use super::{good, said, warned, with};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A file of tokens that is removed in the end.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str, mode: u32) -> File {
        let path = std::env::temp_dir().join(format!("hairpin-tokens-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn api(lines: &str) -> String {
    with(&format!("[api]\n{lines}"))
}

#[test]
fn what_serves_the_api_by_tls_is_read() {
    let tokens = File::new("read", &format!("# of the pipeline\ndeploy {TOKEN}\n"), 0o600);
    let file = tokens.0.display();
    let text = api(&format!(
        "listen = \"[::1]:9443\"\ncertificate = \"/a.pem\"\nclient_roots = \"/ca.pem\"\ntokens = \"{file}\""
    ));
    let config = good(&text);
    let remote = config.settings.api.clone().unwrap().remote.unwrap();
    assert_eq!((remote.listen.to_string(), &*remote.certificate), ("[::1]:9443".to_owned(), "/a.pem".as_ref()));
    assert_eq!((remote.client_roots, remote.tokens), (Some("/ca.pem".into()), Some(tokens.0.clone())));
    assert!(!format!("{config:?}").contains(TOKEN));
    assert_eq!(good(&api("")).settings.api.unwrap().remote, None);
    let useless = warned(&api("tokens = \"/t\""));
    assert!(useless[0].contains("`tokens` of [api] means nothing without `listen`"), "{useless:?}");
}

#[test]
fn clear_text_and_unknown_clients_cannot_be_configured() {
    let certificate = "certificate = \"/a.pem\"";
    let roots = "client_roots = \"/ca.pem\"";
    for (lines, expected) in [
        (
            format!("listen = \"127.0.0.1:9443\"\n{roots}"),
            "`certificate` is missing: by TCP the API is served by TLS only",
        ),
        (format!("listen = \"127.0.0.1:9443\"\n{certificate}"), "neither `client_roots` nor `tokens`"),
        (format!("listen = \"127.0.0.1\"\n{certificate}\n{roots}"), "not an address and port"),
        (format!("listen = \"127.0.0.1:0\"\n{certificate}\n{roots}"), "with port 0"),
        (format!("listen = \"127.0.0.1:1\"\ncertificate = \"a.pem\"\n{roots}"), "not an absolute path"),
    ] {
        let problems = said(&api(&lines));
        assert!(problems.len() == 1 && problems[0].contains(expected), "{lines}: {problems:?}");
    }
}

#[test]
fn tokens_that_others_could_read_are_refused() {
    for (name, text, mode, expected) in [
        ("mode", format!("a {TOKEN}"), 0o640, "its mode is 0640: others than its owner can read or change the tokens"),
        ("short", format!("a {}", &TOKEN[1..]), 0o600, "line 1 is no name and token"),
        ("empty", String::new(), 0o600, "it has no token"),
    ] {
        let file = File::new(name, &text, mode);
        let place = file.0.display();
        let problems = said(&api(&format!("listen = \"[::]:9443\"\ncertificate = \"/a\"\ntokens = \"{place}\"")));
        assert!(problems.len() == 1 && problems[0].contains(expected), "{problems:?}");
        assert!(!problems[0].contains(&TOKEN[1..]), "{problems:?}");
    }
}
