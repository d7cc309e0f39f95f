//! The output printed from the reference, and the examples beside it.

use super::good;
use hairpin::config;
use hairpin::config::reference::{self, Fallback, ValueForm};
use std::path::Path;

#[test]
fn examples_are_right() {
    let built_in =
        if cfg!(feature = "dpdk") { &["minimal", "full", "http", "dpdk"][..] } else { &["minimal", "full", "http"] };
    for name in built_in {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../examples/{name}.toml"));
        let config = config::load(&path).unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(config.warnings, []);
    }
}

#[test]
fn the_full_examples_show_every_field() {
    let full = include_str!("../../../../examples/full.toml");
    let http = include_str!("../../../../examples/http.toml");
    let of_full = reference::COMMON.iter().map(|section| (section, full));
    let of_dpdk = reference::PORTS.iter().map(|section| (section, include_str!("../../../../examples/dpdk.toml")));
    let of_http = reference::LAYER7.iter().map(|section| (section, http));
    let of_full = of_full.chain(reference::OBSERVERS.iter().map(|section| (section, full)));
    for (section, text) in of_full.chain(of_http).chain(of_dpdk) {
        for field in section.fields {
            let shown = match field.kind {
                // Of another plane than theirs.
                _ if field.name == "dpdk" => true,
                // Of services without requests, which `full` has.
                _ if field.name == "client_file" => full.contains("# client_file = "),
                // Fields of HTTP and TLS services are in the one example, the rest in the other.
                _ if [
                    "protocol",
                    "routes_of",
                    "group",
                    "route",
                    "access",
                    "http",
                    "https",
                    "tls",
                    "hash_name",
                    "queue",
                    "cors",
                    "error_pages",
                    "basic",
                    "forward_auth",
                    "backend_tls",
                    "acme",
                    "tracing",
                    "backend_protocol",
                    "grpc_service",
                    "passive_status",
                    "request_id",
                    "tracing",
                    "template",
                    "status",
                    "routes",
                ]
                .contains(&field.name) =>
                {
                    let name = field.name;
                    let shown =
                        [format!(".{name}]"), format!("\n[{name}]"), format!("\n{name} = "), format!("\n# {name} = ")];
                    shown.iter().any(|shown| http.contains(shown))
                }
                ValueForm::Tables => {
                    text.contains(&format!("[{}", field.name))
                        || text.contains(&format!(".{}]", field.name))
                        || text.contains(&format!("{} = {{", field.name))
                }
                _ => text.lines().any(|line| {
                    line.split('=').next().is_some_and(|key| key.trim_start_matches("# ").trim() == field.name)
                        || line.contains(&format!("{{ {} = ", field.name))
                        || line.contains(&format!(", {} = ", field.name))
                }),
            };
            assert!(shown, "{} of {}", field.name, section.place());
        }
    }
}

#[test]
fn the_template_is_a_right_file_with_every_default() {
    let config = good(&config::template());
    assert_eq!(config.warnings, []);
    // There is no access log and no API by default.
    let mut template = config::template();
    for (section, next) in [("\n# [api]\n", "\n\n# The program's own log"), ("\n# [access_log]\n", "\n\n# Metrics")] {
        let (before, behind) = template.split_once(section).expect("a section");
        let (_, behind) = behind.split_once(next).expect("the next section");
        template = format!("{before}{next}{behind}");
    }
    let uncommented: String = template
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if is_field(rest) || reference::COMMON.iter().any(|s| s.header == rest) => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let explicit = good(&uncommented);
    assert_eq!(format!("{:?}", config.settings), format!("{:?}", explicit.settings));
    assert_eq!(format!("{:?}", config.snapshot.pool), format!("{:?}", explicit.snapshot.pool));
}

#[test]
fn template_http_and_tls_sections_match_defaults() {
    let template = config::template();
    // [acme] is for the names of a service, and without [tracing] there is none.
    let is_of_services = |section: &&reference::ReferenceSection| !["[acme]", "[tracing]"].contains(&section.header);
    let users = format!("users_file = \"{}\"\n", crate::basic::users_file("template", crate::basic::ANN).display());
    for section in reference::LAYER7.into_iter().filter(is_of_services) {
        let begins = format!("\n#{}\n", section.header);
        let (_, rest) = template.split_once(&begins).unwrap_or_else(|| panic!("{}", section.header));
        let own = rest.split("\n#[").next().unwrap();
        // Fields with a default, and those that must be given; the others exclude each other.
        let fields = own.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| !line.starts_with(' '));
        let fields: Vec<&str> = fields.filter(|line| !line.contains("    # default: ")).collect();
        let before = match section.header {
            "[service.backend_tls]"
            | "[service.queue]"
            | "[service.cors]"
            | "[service.basic]"
            | "[service.forward_auth]" => "https.certificates = \"/c\"\n",
            "[service.route.mirror]" => {
                "https.certificates = \"/c\"\ngroup = [{ name = \"shadow\", backends = [\"10.0.0.3:80\"] }]\n[[service.route]]\n"
            }
            header if header.starts_with("[service.route.") => "[[service.route]]\n",
            _ => "",
        };
        let backend = match section.header {
            "[[service.group]]" => {
                "[[service.group.backend]]\naddress = \"10.0.0.2:1\"\n[[service.route]]\ngroup = \"static\"\n"
            }
            "[service.https]" => "certificates = \"/c\"\n",
            "[[service.limit]]" => "requests = 100\n",
            "[service.basic]" => &users,
            "[service.forward_auth]" => {
                "group = \"auth\"\n[[service.group]]\nname = \"auth\"\nbackends = [\"10.0.0.3:80\"]\n"
            }
            "[service.queue]" => "[[service.backend]]\naddress = \"10.0.0.2:1\"\nconnections_max = 1\n",
            _ => "",
        };
        let protocol = match section.header {
            "[service.https]"
            | "[service.backend_tls]"
            | "[service.queue]"
            | "[service.cors]"
            | "[service.basic]"
            | "[service.forward_auth]"
            | "[service.route.mirror]" => "https",
            "[service.tls]" => "tls",
            _ => "http",
        };
        let text = format!(
            "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.1\"]\n[[service]]\nlisten = \
             \"192.0.2.1:80/{protocol}\"\nbackends = [\"10.0.0.1:80\"]\n{before}{}\n{}\n{backend}",
            section.header,
            fields.join("\n"),
        );
        let text = text.replace("backends = []\n[[service.group.backend]]", "[[service.group.backend]]");
        assert_eq!(good(&text).warnings, [], "{text}");
    }
}

/// Compares a file of docs/reference with what the program prints, or writes it.
fn compare(name: &str, right: String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    let file = std::fs::read_to_string(&path).unwrap_or_default();
    if file != right && std::env::var_os("HAIRPIN_WRITE_DOCS").is_some() {
        std::fs::write(&path, right).unwrap();
        return;
    }
    assert!(file == right, "{name}: run: HAIRPIN_WRITE_DOCS=1 cargo test -p hairpin --test config");
}

#[test]
fn the_page_is_up_to_date() {
    compare("configuration.md", config::markdown());
}

#[test]
fn the_schema_is_up_to_date_and_refers_to_what_it_defines() {
    let schema = config::schema();
    let parsed: serde_json::Value = serde_json::from_str(&schema).unwrap();
    for reference in schema.split("\"$ref\": \"#/definitions/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(parsed["definitions"][reference].is_object(), "{reference}");
    }
    compare("hairpin.schema.json", schema);
}

/// Pages whose blocks of TOML are whole files.
const PAGES: [(&str, &str); 7] = [
    ("first-steps", include_str!("../../../../docs/guide/first-steps.md")),
    ("from-nginx", include_str!("../../../../docs/guide/from-nginx.md")),
    ("from-haproxy", include_str!("../../../../docs/guide/from-haproxy.md")),
    ("direct-server-return", include_str!("../../../../docs/guide/direct-server-return.md")),
    ("from-ipvs", include_str!("../../../../docs/guide/from-ipvs.md")),
    ("names", include_str!("../../../../docs/guide/names.md")),
    ("backends", include_str!("../../../../docs/guide/backends.md")),
];

#[test]
fn files_in_the_guide_are_right() {
    for (name, page) in PAGES {
        let blocks: Vec<&str> = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
        assert!(!blocks.is_empty(), "{name}");
        for block in blocks {
            assert_eq!(good(block).warnings, [], "{name}: {block}");
        }
    }
}

#[test]
fn defaults_and_examples_of_the_reference_are_readable() {
    for section in reference::SECTIONS {
        for field in section.fields {
            assert!(!field.doc.is_empty());
            if let (ValueForm::Choice(words), Fallback::Value(default)) = (field.kind, field.fallback) {
                assert!(words.iter().any(|(word, _)| *word == default), "{}", field.name);
            }
        }
    }
}

/// Whether the line sets a field to a default that could stand in the file (not one that merely shows an example).
fn is_field(line: &str) -> bool {
    let name = line.split(" = ").next().unwrap_or("");
    let fields = || reference::COMMON.iter().flat_map(|section| section.fields);
    line.contains(" = ") && fields().any(|f| f.name == name && matches!(f.fallback, Fallback::Value(_)))
}
