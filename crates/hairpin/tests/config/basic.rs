//! Who may ask: users of services and routes.

use super::{good, refuses, said};
use hairpin::config::Config;
use hairpin_core::l7::config::{Kind, Route};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A user whose password is `open sesame`.
pub(crate) const ANN: &str = "ann:$2y$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n";

/// A file of users, which only its owner can read.
pub(crate) fn users_file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("hairpin-users-{}-{name}", std::process::id()));
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn with(protocol: &str, rest: &str) -> String {
    let https = if protocol == "https" { "https.certificates = \"/c\"\n" } else { "" };
    let pool = if protocol == "http" { "pool.addresses = [\"10.0.9.1\"]\n" } else { "" };
    format!(
        "interfaces = [\"eth0\"]\n{pool}[[service]]\nname = \"shop\"\nlisten = \"192.0.2.1:443/{protocol}\"\nbackends = \
         [\"10.0.0.1:80\"]\n{https}{rest}"
    )
}

fn routes(config: &Config) -> &[Route] {
    let Kind::Terminated(terminated) = &config.snapshot.services[0].kind else { panic!() };
    &terminated.http.routes
}

/// Whether each route asks for a password, and whether it removes that.
fn asked(config: &Config) -> Vec<(bool, bool)> {
    let users = &config.services[0].said.basic;
    let removes = |route: &Route| route.edits.request.remove.iter().any(|name| **name == *b"authorization");
    users.iter().zip(routes(config)).map(|(users, route)| (users.is_some(), removes(route))).collect()
}

#[test]
fn routes_have_the_users_of_their_service_or_their_own() {
    let file = users_file("own", ANN);
    let config = good(&with(
        "https",
        &format!(
            "basic.users_file = {file:?}\n[[service.route]]\npath = \"/a\"\n[[service.route]]\npath = \
             \"/b\"\nbasic.enabled = false\n[[service.route]]\npath = \"/c\"\nbasic = {{ users_file = {file:?}, forward = \
             true }}\n[[service.route]]\npath = \"/d\"\nreply.status = 200\n"
        ),
    ));
    assert_eq!(asked(&config), [(true, true), (false, false), (true, false), (true, false), (true, true)]);
    assert_eq!(asked(&good(&with("https", ""))), []);
    let said = &config.services[0].said;
    assert!(said.routes[2].contains("(1 users, ") && !format!("{:?}", config.services).contains("$2y$"));
}

#[test]
fn another_content_of_the_file_is_another_configuration() {
    let file = users_file("content", ANN);
    let text = with("https", &format!("basic.users_file = {file:?}\n"));
    let before = good(&text);
    fs::write(&file, ANN.replace("ann", "bob")).unwrap();
    let after = good(&text);
    assert_ne!(before.services[0].said, after.services[0].said);
}

#[test]
fn wrong_files_are_told_with_their_line() {
    let file = users_file("wrong", &format!("{ANN}bob:$apr1$12345678$abc\n"));
    let text = with("https", &format!("basic.users_file = {file:?}\n"));
    let shown = file.display();
    refuses(
        &text,
        &format!(
            "7:20: error: `users_file` \"{shown}\": line 2 has a password that is not hashed with bcrypt ($2y$ or $2b$); \
             hash the password with bcrypt: htpasswd -B FILE USER"
        ),
    );
    fs::write(&file, ANN).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let told = said(&text);
    assert!(told.len() == 1 && told[0].contains("its mode is 0644"), "{told:?}");
}

#[test]
fn other_services_and_incomplete_tables_are_refused() {
    let http = said(&with("http", "basic.users_file = \"/u\"\n"));
    assert!(http.len() == 1 && http[0].contains("that is for services with protocol = \"https\""), "{http:?}");
    let route = said(&with("http", "[[service.route]]\npath = \"/a\"\nbasic.users_file = \"/u\"\n"));
    assert!(route.len() == 1 && route[0].contains("passwords go over TLS only"), "{route:?}");
    let empty = said(&with("https", "[service.basic]\n"));
    assert!(empty.len() == 1 && empty[0].contains("there is no `users_file`"), "{empty:?}");
    let file = users_file("edits", ANN);
    let set = "[service.http]\nrequest_headers.set = { Authorization = \"Bearer x\" }\n";
    let edits = said(&with("https", &format!("basic.users_file = {file:?}\n{set}")));
    assert!(edits.len() == 1 && edits[0].contains("which is removed where `basic` holds"), "{edits:?}");
    let realm = said(&with("https", &format!("basic = {{ users_file = {file:?}, realm = 'a\"b' }}\n")));
    assert!(realm.len() == 1 && realm[0].contains("`realm` is"), "{realm:?}");
}

#[test]
fn routes_ask_whom_their_service_asks_or_their_own() {
    let group = "[[service.group]]\nname = \"gate\"\nbackends = [\"10.0.0.2:80\"]\n";
    let config = good(&with(
        "https",
        &format!(
            "forward_auth = {{ group = \"gate\", path = \"/check?a=b\", copy_headers = [\"X-User\"] }}\n{group}\
             [[service.route]]\npath = \"/open\"\nforward_auth.enabled = false\n[[service.route]]\npath = \"/own\"\n\
             forward_auth = {{ group = \"gate\", timeout = \"1s\" }}\n[[service.route]]\npath = \"/reply\"\nreply.status = 200\n"
        ),
    ));
    assert_eq!(config.warnings, []);
    let asked = |route: &Route| {
        let asks = route.terms.asks.as_ref()?;
        Some((asks.group, String::from_utf8(asks.path.to_vec()).unwrap(), asks.timeout.as_millis(), asks.copied.len()))
    };
    let of_all = Some((1, "/check?a=b".to_string(), 5000, 1));
    let own = Some((1, "/".to_string(), 1000, 0));
    assert_eq!(routes(&config).iter().map(asked).collect::<Vec<_>>(), [None, own, None, of_all]);
    let removed = |route: &Route| route.edits.request.remove.iter().any(|name| **name == *b"x-user");
    assert!(removed(&routes(&config)[3]) && !removed(&routes(&config)[0]));
    for (table, told) in [
        ("forward_auth = {}", "there is no `group` in [service.forward_auth]"),
        ("forward_auth = { group = \"gat\" }", "has no group \"gat\"; did you mean \"gate\"?"),
        ("forward_auth = { group = \"gate\", path = \"check\" }", "`path` is \"check\"; write what follows the host"),
        (
            "forward_auth = { group = \"gate\", copy_headers = [\"Host\"] }",
            "`copy_headers` has \"Host\"; fields that say",
        ),
    ] {
        let both = "[[service.route]]\nmirror.group = \"gate\"\n";
        let found = said(&with("https", &format!("forward_auth.group = \"gate\"\n{group}{both}")));
        assert!(found.len() == 1 && found[0].contains("`mirror` is given, but a server is asked"), "{found:?}");
        let found = said(&with("https", &format!("{table}\n{group}[[service.route]]\ngroup = \"gate\"\n")));
        assert!(found.len() == 1 && found[0].contains(told), "{table}: {found:?}");
    }
    let found =
        said(&with("http", &format!("forward_auth.group = \"gate\"\n{group}[[service.route]]\ngroup = \"gate\"\n")));
    assert!(found.len() == 1 && found[0].contains("are spliced, where no request can wait"), "{found:?}");
}
