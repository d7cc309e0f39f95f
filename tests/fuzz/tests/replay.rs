//! Replays the corpora, as they are and changed in many small ways, and the traces where they are.

use hairpin_fuzz::{adoption, client_hello, http, http2, link, model, proxy_protocol, splice, tables, wire, worker};
use pcap_parser::{PcapBlockOwned, PcapError, create_reader};
use std::path::{Path, PathBuf};

/// Small changes in the manner of a fuzzer: every prefix, and every byte set to values at which code tends to break.
fn variants(input: &[u8], mut each: impl FnMut(&[u8])) {
    for length in 0..input.len() {
        each(&input[..length]);
    }
    let mut changed = input.to_vec();
    for at in 0..input.len() {
        let old = changed[at];
        for new in [0, 1, 0x7f, 0x80, 0xff, old.wrapping_add(1), old.wrapping_sub(1), old ^ 0x10, old ^ 0x40] {
            changed[at] = new;
            each(&changed);
        }
        changed[at] = old;
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

/// Most of a corpus must reach what it is for: otherwise it has gone stale, and the replay shows nothing.
fn replay(name: &str, target: fn(&[u8]) -> bool) {
    let paths = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name));
    assert!(paths.len() >= 5, "corpus/{name} has {} inputs", paths.len());
    let mut reached = 0;
    for path in &paths {
        let input = std::fs::read(path).unwrap();
        reached += usize::from(target(&input));
        // A fuzzer's findings may be long and many; the seeds are short.
        if input.len() < 400 {
            variants(&input, |input| {
                target(input);
            });
        }
    }
    // A fuzzer names by hash what it finds; what is to be refused says so.
    let seeds = paths.iter().filter_map(|path| path.file_name()?.to_str());
    let is_hash = |name: &str| name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let seeds = seeds.filter(|name| !is_hash(name) && !name.starts_with("bad-")).count();
    assert!(seeds >= 5 && reached * 10 >= seeds * 8, "{reached} of {seeds} seeds of corpus/{name} reach it");
}

#[test]
fn parse() {
    replay("parse", wire::parse);
}

#[test]
fn rewrite() {
    replay("rewrite", wire::rewrite);
}

#[test]
fn answer() {
    replay("answer", wire::answer);
}

#[test]
fn icmp_translate() {
    replay("icmp_translate", wire::icmp_translate);
}

#[test]
fn conversations() {
    replay("worker", worker::worker);
}

#[test]
fn spliced_conversations() {
    replay("splice", splice::splice);
}

#[test]
fn adopted_memory() {
    replay("adoption", adoption::adoption);
}

#[test]
fn links() {
    replay("link", link::link);
}

#[test]
fn models() {
    replay("model", model::model);
}

#[test]
fn table_operations() {
    replay("tables", tables::tables);
}

#[test]
fn client_hello() {
    replay("client_hello", client_hello::client_hello);
}

#[test]
fn proxy_headers() {
    replay("proxy_protocol", proxy_protocol::proxy_protocol);
}

#[test]
fn http_heads() {
    replay("http_head", http::head);
}

#[test]
fn http_bodies() {
    replay("http_body", http::body);
}

#[test]
fn http2_requests() {
    replay("http2", http2::request);
}

#[test]
fn traces() {
    let Some(folder) = std::env::var_os("HAIRPIN_TRACES") else {
        println!("skipped: HAIRPIN_TRACES names no directory of recordings");
        return;
    };
    let paths = files(Path::new(&folder));
    assert!(!paths.is_empty(), "no recordings in {folder:?}");
    let mut reached = [0; 2];
    for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "pcap")) {
        let mut reader = create_reader(1 << 20, std::io::Cursor::new(std::fs::read(path).unwrap())).unwrap();
        loop {
            match reader.next() {
                Ok((offset, block)) => {
                    if let PcapBlockOwned::Legacy(packet) = block {
                        wire::parse(packet.data);
                        let parameters = [0xa5; wire::REWRITE_PARAMETERS - 9];
                        let numbers = [0xff, 0xff, 0, 0, 0, 1, 0, 0, 0];
                        let mut input = [&parameters[..], &numbers, packet.data].concat();
                        input[0] = 1;
                        input[17] = 1;
                        reached[0] += u32::from(wire::rewrite(&input));
                        reached[1] += u32::from(wire::answer(&[&[1, 0, 0, 0], packet.data].concat()));
                    }
                    reader.consume(offset);
                }
                Err(PcapError::Eof) => break,
                Err(PcapError::Incomplete(_)) => reader.refill().unwrap(),
                Err(error) => panic!("{}: {error:?}", path.display()),
            }
        }
    }
    assert!(reached.iter().all(|count| *count > 1000), "{reached:?}");
}
