//! Files of nginx's in `crates/hairpin/tests/nginx`, each beside what is made of it (`NAME.toml`) and what is told (`NAME.notes`).

use super::*;
use std::net::Ipv4Addr;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nginx")
}

fn options(file: PathBuf) -> ImportArgs {
    let v4 = |a, b, c, d| IpAddr::from(Ipv4Addr::new(a, b, c, d));
    ImportArgs { file, local: Some(v4(10, 0, 2, 9)), pool: vec![v4(10, 0, 2, 1)], ..ImportArgs::default() }
}

/// The text without the directory that the files of this test lie in.
fn bare(text: &str) -> String {
    text.replace(&format!("{}/", directory().display()), "")
}

#[test]
fn files_of_nginx_become_files_of_ours() {
    let mut names: Vec<PathBuf> = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
    names.sort();
    assert!(names.len() >= 10, "{names:?}");
    let is_written = std::env::var_os("HAIRPIN_WRITE_DOCS").is_some();
    for path in names {
        // What is made passes `hairpin validate`: it would not be given else.
        let (text, notes) =
            nginx(&options(path.clone())).unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
        let notes: String = notes.iter().map(|note| format!("{note}\n")).collect();
        for (extension, made) in [("toml", bare(&text)), ("notes", bare(&notes))] {
            let expected = path.with_extension(extension);
            let there = std::fs::read_to_string(&expected).unwrap_or_default();
            if there != made && is_written {
                std::fs::write(&expected, &made).unwrap();
                continue;
            }
            let how = "HAIRPIN_WRITE_DOCS=1 cargo test -p hairpin --lib files_of_nginx";
            assert!(there == made, "{}: run {how}, and look at what it changes\n{made}", expected.display());
        }
    }
}

/// What is made of a text, and what is told.
fn made(text: &str) -> anyhow::Result<(String, Vec<Note>)> {
    let file = std::env::temp_dir().join(format!("hairpin-import-{:?}.conf", std::thread::current().id()));
    std::fs::write(&file, text).unwrap();
    let made = nginx(&options(file.clone()));
    std::fs::remove_file(&file).unwrap();
    made
}

#[test]
fn what_was_closed_stays_closed() {
    for guard in
        ["auth_basic secret;", "auth_request /auth;", "satisfy any;", "limit_except GET { deny all; }", "auth_jwt a;"]
    {
        for (server, location) in [(guard, ""), ("", guard)] {
            let text = format!(
                "http {{ server {{ listen 80; {server} location /a {{ {location} proxy_pass http://10.0.0.1; }} }} }}"
            );
            let (text, notes) = made(&text).unwrap();
            assert!(text.contains("reply = { status = 403 }") && !text.contains("group ="), "{guard}: {text}");
            assert!(notes.iter().any(|note| guard.contains(note.directive.split(' ').next().unwrap())), "{notes:?}");
        }
    }
}

#[test]
fn a_file_without_anything_to_balance_is_refused() {
    let error = made("http { server { listen unix:/run/nginx.sock; location / { root /srv; } } }").unwrap_err();
    assert!(error.to_string().contains("has nothing that Hairpin could balance"), "{error:#}");
    assert!(made("http {").is_err());
    assert!(nginx(&options(directory().join("absent.conf"))).is_err());
}

#[test]
fn names_and_texts_cannot_break_out_of_their_quotes() {
    let text = "http { server { listen 80; server_name 'a\"b.example'; location /a { return 200 'x\" }\n[evil]\n'; } \
                location /b\\\"c { proxy_pass http://10.0.0.1; add_header X-A 'q\"\\'; } } }";
    let outcome = made(text);
    // It is refused, since a host has no such letters, or it is right.
    assert!(outcome.is_err() || !outcome.unwrap().0.contains("\n[evil]"));
}
