//! Which scripts of other origins may read responses.

use super::{good, refuses};

/// An https service with `service` in it, from line 6 on, and `route` in its first of two routes.
fn with(service: &str, route: &str) -> String {
    format!(
        "interfaces = [\"eth0\"]\n[[service]]\nlisten = \"192.0.2.1:443/https\"\nbackends = [\"10.0.0.1:80\"]\n\
         https.certificates = \"/c\"\n{service}\n[[service.route]]\npath = \"/a\"\n{route}\n[[service.route]]\npath = \"/b\"\n"
    )
}

/// The origins of each route, and of what takes none.
fn origins(text: &str) -> Vec<Option<String>> {
    let config = good(text);
    assert_eq!(config.warnings, []);
    let cors = &config.services[0].said.cors;
    let text = |origins: &Option<Box<[Box<str>]>>| origins.as_ref().map_or("*".to_string(), |list| list.join(" "));
    cors.iter().map(|cors| cors.as_ref().map(|cors| text(&cors.origins))).collect()
}

#[test]
fn routes_have_that_of_their_service_or_their_own() {
    let shop = Some("https://shop.example".to_string());
    let service = "cors.origins = [\"https://shop.example\"]";
    assert_eq!(origins(&with("", "")), [None, None, None]);
    assert_eq!(origins(&with(service, "")), [shop.clone(), shop.clone(), shop.clone()]);
    let any = Some("*".to_string());
    assert_eq!(origins(&with(service, "cors.origins = [\"*\"]")), [any, shop.clone(), shop.clone()]);
    assert_eq!(origins(&with(service, "cors.origins = []")), [None, shop.clone(), shop.clone()]);
    assert_eq!(origins(&with("", service)), [shop.clone(), None, None]);
    assert_eq!(origins(&with(service, "reply = { status = 200 }")), [None, shop.clone(), shop]);
}

#[test]
fn defaults_are_those_of_the_reference() {
    let config = good(&with("cors.origins = [\"*\"]", ""));
    let cors = config.services[0].said.cors[0].clone().unwrap();
    assert_eq!((&*cors.methods, &*cors.headers, &*cors.expose), ("GET, HEAD, POST", "", ""));
    assert_eq!((cors.credentials, cors.max_age_s), (false, 600));
}

#[test]
fn mistakes_are_reported() {
    refuses(
        &with("cors = { origins = [\"*\"], credentials = true }", ""),
        "6:20: error: `credentials` cannot be with \"*\" in `origins`; browsers refuse it: name what may, or leave \
         `credentials` out",
    );
    refuses(
        &with("cors.origins = [\"null\"]", ""),
        "6:17: error: `origins` is \"null\"; it is the origin of every sandboxed page, of any site: leave it out",
    );
    refuses(
        &with("", "reply = { status = 200 }\ncors.origins = []"),
        "10:1: error: `cors` means nothing where Hairpin answers by itself; leave it out",
    );
    let spliced =
        with("cors.origins = [\"*\"]", "").replace("https.certificates = \"/c\"\n", "").replace("443/https", "80/http");
    refuses(
        &format!("pool.addresses = [\"10.0.9.1\"]\n{spliced}"),
        "6:1: error: `cors` is given, but connections of the service are spliced: preflights go to backends; make it an \
         https service, or leave it out and let backends say the fields",
    );
}
