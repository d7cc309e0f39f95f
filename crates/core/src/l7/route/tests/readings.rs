//! Paths that backends read in more than one way.

use super::super::normal::behind;
use super::*;

#[test]
fn parameters_can_be_removed_before_dots_are_resolved() {
    let bare = |path: &str| {
        let mut scratch = PathScratch::new();
        let reading = PathReading { drops_parameters: true, ..PathReading::WRITTEN };
        normalise(path.as_bytes(), reading, &mut scratch).map(|path| String::from_utf8(path.to_vec()).unwrap())
    };
    for (written, expected) in [
        ("/a;x/b", "/a/b"),
        ("/a;x=y;z/b;", "/a/b"),
        ("/;a/b", "/b"),
        ("/a/;x", "/a/"),
        ("/a%3Bx/b", "/a/b"),
        ("/a/b", "/a/b"),
        ("/a;%2f/b", "/a/b"),
    ] {
        assert_eq!(bare(written), Ok(expected.into()), "{written}");
    }
    assert_eq!(bare("/a/b/.;x/c"), Ok("/a/b/c".into()));
    assert_eq!(bare("/;/../a"), Err(Odd::Ambiguous));
}

#[test]
fn what_is_behind_a_prefix_keeps_its_empty_segments() {
    let rest = |path: &str, bytes| {
        let mut scratch = PathScratch::new();
        let whole = normalise(path.as_bytes(), PathReading::WHOLE, &mut scratch).unwrap();
        String::from_utf8(behind(whole, bytes).to_vec()).unwrap()
    };
    assert_eq!(rest("/api//admin", 4), "//admin");
    assert_eq!(rest("//api//admin", 4), "//admin");
    assert_eq!(rest("/a/.///b", 2), "///b");
    assert_eq!(rest("/%61//", 2), "//");
}

#[test]
fn a_guarded_path_cannot_be_reached_by_parameters() {
    let http = service(vec![deny(prefix("/admin/"))], vec![prefix("/")]);
    for path in [
        "/admin;x/y",
        "/admin;a=b/x",
        "/;a/admin/x",
        "/admin;/x",
        "/admin%3bx/y",
        "/a/.;/../;x/admin/",
        "/a/..;/admin/x",
        "/a/..%3B/admin/x",
        "/admin;x%2fy",
        "/;x%5Cadmin/y",
    ] {
        assert!(matches!(get(&http, path), Err(400 | 403)), "{path}");
    }
    for path in ["/admin;x", "/public;x/admin/y", "/public/admin;/y", "/a;b"] {
        assert_eq!(get(&http, path), Ok(0), "{path}");
    }
    let open = service(vec![], vec![prefix("/")]);
    assert_eq!(get(&open, "/admin;x/y"), Ok(0));
    // An allowed path is allowed in every reading, unless its own rule names the parameters.
    let allowed = |path| service(vec![allow(prefix(path)), deny(prefix("/"))], vec![prefix("/")]);
    assert_eq!(get(&allowed("/maps/"), "/maps;v=2/x"), Err(403));
    assert_eq!(get(&allowed("/maps/"), "/maps/x;v=2/y"), Ok(0));
    assert_eq!(get(&allowed("/maps;v=2/"), "/maps;v=2/x"), Ok(0));
    assert_eq!(get(&allowed("/maps;v=2/"), "/maps;v=2/%2e./x"), Err(403));
}

#[test]
fn strict_rule_refuses_ambiguous_paths() {
    let strict = |rule: Access| Access { strict: true, ..rule };
    let http = service(vec![strict(allow(prefix("/maps/"))), deny(prefix("/no/"))], vec![prefix("/")]);
    for path in ["/maps;v=2/x", "/maps%2Fx", "/;/maps/x"] {
        assert_eq!(get(&http, path), Err(400), "{path}");
    }
    for path in ["/maps/x;v=2", "/maps/a%2Fb", "/x;y/z"] {
        assert_eq!(get(&http, path), Ok(0), "{path}");
    }
    assert_eq!(get(&http, "/no;x/y"), Err(403));
    let named = service(vec![strict(allow(prefix("/maps;v=2/")))], vec![prefix("/")]);
    assert_eq!(get(&named, "/maps;v=2/x"), Err(400));
}
