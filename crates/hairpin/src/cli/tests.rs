//! The description of the command line.

use super::*;
use std::path::Path;

#[test]
fn the_command_line_is_consistent() {
    CommandLine::command().debug_assert();
}

#[test]
fn every_command_shows_an_example() {
    for command in CommandLine::command().get_subcommands() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Example"), "{}", command.get_name());
    }
}

#[test]
fn an_instance_is_found_by_socket_file_or_name() {
    let socket = |arguments: &[&str]| {
        let line = ["hairpin", "status"].iter().chain(arguments);
        match CommandLine::try_parse_from(line).unwrap().action {
            CliCommand::Status { target, .. } => target.socket().unwrap(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(socket(&[]), Path::new("/run/hairpin/default.sock"));
    assert_eq!(socket(&["-i", "edge"]), Path::new("/run/hairpin/edge.sock"));
    assert_eq!(socket(&["--socket", "/x"]), Path::new("/x"));
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/full.toml");
    assert_eq!(socket(&["-c", example]), Path::new("/run/hairpin/edge.sock"));
}

#[test]
fn contradictions_are_refused() {
    for line in [
        "connections --offloaded --software",
        "connections --all --count",
        "connections --all --limit 5",
        "connections --limit 0",
        "offload --offloaded --software",
        "backend weight web web-1",
        "backend weight web web-1 65536",
        "backend drain web",
        "diff",
        "validate -o json",
        "capture --count 0",
        "capture --duration 5",
        "completions tcsh",
        "decapsulate --interface eth0",
        "decapsulate --vip 192.0.2.10",
        "decapsulate --interface eth0 --vip 192.0.2.10/33",
        "decapsulate --interface eth0 --vip 192.0.2.10 --port 0",
        "limits --markdown -o json",
        "top --count 3",
        "top --batch --count 0",
        "top --sort size",
        "top --interval 0",
    ] {
        let words = std::iter::once("hairpin").chain(line.split(' '));
        assert!(CommandLine::try_parse_from(words).is_err(), "{line}");
    }
}
