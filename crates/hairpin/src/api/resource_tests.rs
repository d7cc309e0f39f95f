//! What paths mean, and what is done to the objects that they name.

use super::*;

fn tree() -> Value {
    json!({"interfaces": ["eth0"], "service": [
        {"name": "web", "listen": "192.0.2.1:80/http", "backends": ["10.0.0.1:80", "10.0.0.2:80"],
         "backend": [{"name": "c", "address": "10.0.0.3:80", "weight": 2}],
         "group": [{"name": "static", "backends": ["10.0.0.4:80"]}],
         "route": [{"path": "/a", "group": "static"}, {"path": "/b"}]},
        {"listen": "192.0.2.1:25/tcp", "backends": ["10.0.0.5:25"]},
        {"listen": "192.0.2.1:53", "protocol": "udp", "backends": ["10.0.0.6:53"]}]})
}

fn target(path: &str) -> Target {
    Target::parse(path).unwrap_or_else(|| panic!("{path}"))
}

fn changed(path: &str, action: Action, body: Value) -> Result<Value, Refused> {
    let mut tree = tree();
    target(path).change(&mut tree, action, body)?;
    Ok(tree)
}

#[test]
fn paths_name_objects_as_messages_do() {
    let read = |path: &str| target(path).read(&tree());
    for (path, expected) in [
        ("/config", tree()),
        ("/services", tree()["service"].clone()),
        ("/services/web", tree()["service"][0].clone()),
        ("/services/192.0.2.1%3A25%2Ftcp", tree()["service"][1].clone()),
        ("/services/192.0.2.1:53%2Fudp", tree()["service"][2].clone()),
        ("/services/web/backends/c", json!({"name": "c", "address": "10.0.0.3:80", "weight": 2})),
        ("/services/web/backends/10.0.0.3:80", json!({"name": "c", "address": "10.0.0.3:80", "weight": 2})),
        ("/services/web/backends/10.0.0.2:80", json!({"address": "10.0.0.2:80"})),
        ("/services/web/groups", json!([{"name": "static", "backends": ["10.0.0.4:80"]}])),
        ("/services/web/groups/static/backends", json!([{"address": "10.0.0.4:80"}])),
        ("/services/web/groups/static/backends/10.0.0.4:80", json!({"address": "10.0.0.4:80"})),
        ("/services/web/routes/2", json!({"path": "/b"})),
        ("/services/web/certificates", json!([])),
    ] {
        assert_eq!(read(path).unwrap_or_else(|why| panic!("{path}: {why:?}")), expected, "{path}");
    }
    let backends = read("/services/web/backends").unwrap();
    assert_eq!(backends.as_array().map(Vec::len), Some(3));
    for absent in
        ["/services/wob", "/services/web/backends/d", "/services/web/groups/x/backends", "/services/web/routes/3"]
    {
        assert!(matches!(read(absent), Err(Refused::Absent(_))), "{absent}");
    }
    let long = format!("/services/{}", "x".repeat(NAME_BYTES_MAX + 1));
    for none in [
        "",
        "/",
        "config",
        "/config/",
        "/services//backends",
        "/services/web/routes/0",
        "/services/web/routes/x",
        "/x",
        "/services/%ff",
        "/services/web/groups/a/backends/b/c",
        &long,
    ] {
        assert_eq!(Target::parse(none), None, "{none}");
    }
}

#[test]
fn put_replaces_or_adds() {
    let other = changed("/services/web/backends/c", Action::Put, json!({"address": "10.0.0.9:80"})).unwrap();
    assert_eq!(other["service"][0]["backend"], json!([{"name": "c", "address": "10.0.0.9:80"}]));
    let added = changed("/services/web/backends/10.0.0.9:80", Action::Put, json!({"address": "10.0.0.9:80"})).unwrap();
    assert_eq!(added["service"][0]["backend"][1], json!({"address": "10.0.0.9:80"}));
    let added = changed("/services/new", Action::Put, json!({"listen": "192.0.2.1:81/tcp"})).unwrap();
    assert_eq!(added["service"][3], json!({"name": "new", "listen": "192.0.2.1:81/tcp"}));
    let added = changed("/services/web/routes/3", Action::Put, json!({"path": "/c"})).unwrap();
    assert_eq!(added["service"][0]["route"][2], json!({"path": "/c"}));
    let added = changed("/services/web/groups/more", Action::Put, json!({"backends": ["10.0.0.7:80"]})).unwrap();
    assert_eq!(added["service"][0]["group"][1], json!({"name": "more", "backends": ["10.0.0.7:80"]}));
    let certificates = changed("/services/web/certificates", Action::Put, json!(["/c"])).unwrap();
    assert_eq!(certificates["service"][0]["https"], json!({"certificates": ["/c"]}));
    // One that was an address alone.
    let heavy = changed("/services/web/backends/10.0.0.1:80", Action::Patch, json!({"weight": 5})).unwrap();
    assert_eq!(heavy["service"][0]["backends"], json!(["10.0.0.2:80"]));
    assert_eq!(heavy["service"][0]["backend"][1], json!({"address": "10.0.0.1:80", "weight": 5}));
}

#[test]
fn patch_changes_fields_and_delete_removes() {
    let patched =
        changed("/services/web/backends/c", Action::Patch, json!({"weight": null, "state": "drain"})).unwrap();
    assert_eq!(patched["service"][0]["backend"][0], json!({"name": "c", "address": "10.0.0.3:80", "state": "drain"}));
    let gone = changed("/services/web/backends/c", Action::Delete, Value::Null).unwrap();
    assert_eq!(gone["service"][0].get("backend"), None);
    let gone = changed("/services/192.0.2.1:25%2Ftcp", Action::Delete, Value::Null).unwrap();
    assert_eq!(gone["service"].as_array().map(Vec::len), Some(2));
}

#[test]
fn what_does_not_fit_is_refused() {
    for (path, action, body) in [
        ("/services/web/backends/c", Action::Put, json!({"name": "d", "address": "10.0.0.9:80"})),
        ("/services/web", Action::Patch, json!({"name": "wob"})),
        ("/services/web", Action::Put, json!([])),
        ("/services/web/routes", Action::Put, json!({})),
        ("/services/web/groups/static", Action::Put, json!("x")),
    ] {
        assert!(matches!(changed(path, action, body), Err(Refused::Form(_))), "{path}");
    }
    for (path, action) in [
        ("/services/wob", Action::Patch),
        ("/services/wob", Action::Delete),
        ("/services/wob/backends/a", Action::Put),
        ("/services/web/routes/4", Action::Put),
    ] {
        assert!(matches!(changed(path, action, json!({})), Err(Refused::Absent(_))), "{path}");
    }
}
