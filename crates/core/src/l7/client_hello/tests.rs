//! Real hellos, hellos built to order, and everything that is wrong with them.

use super::*;
use crate::l7::config::TlsRoute;
use crate::time::Duration;
use alloc::boxed::Box;
use proptest::prelude::*;
use std::string::String;
use std::vec::Vec;

const BYTES_MAX: usize = 16_384;

/// The parts of an outcome that a test checks.
#[derive(Clone, Debug, PartialEq)]
enum Read {
    Partial,
    Hello { name: Option<String>, protocols: Vec<Vec<u8>>, bytes: usize },
}

fn read_within(stream: &[u8], bytes_max: usize) -> Result<Read, BadHello> {
    let mut scratch = std::vec![0xaa; bytes_max];
    Ok(match parse(stream, &mut scratch, bytes_max)? {
        ParseStatus::Partial => Read::Partial,
        ParseStatus::Complete(hello) => Read::Hello {
            name: hello.name.map(|name| String::from_utf8(name.to_vec()).unwrap()),
            protocols: hello.protocols.map(<[u8]>::to_vec).collect(),
            bytes: hello.bytes,
        },
    })
}

fn read(stream: &[u8]) -> Result<Read, BadHello> {
    read_within(stream, BYTES_MAX)
}

/// A hello to order. What is not said is as usual.
#[derive(Clone, Debug)]
struct Built {
    session: Vec<u8>,
    ciphers: Vec<u8>,
    compressions: Vec<u8>,
    /// `None`: no block of extensions at all.
    extensions: Option<Vec<(u16, Vec<u8>)>>,
}

fn vector8(bytes: &[u8]) -> Vec<u8> {
    [&[bytes.len() as u8], bytes].concat()
}

fn vector16(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

fn server_name(name: &[u8]) -> (u16, Vec<u8>) {
    (0, vector16(&[&[0][..], &vector16(name)].concat()))
}

fn application_protocols(protocols: &[&[u8]]) -> (u16, Vec<u8>) {
    (16, vector16(&protocols.iter().flat_map(|protocol| vector8(protocol)).collect::<Vec<u8>>()))
}

impl Built {
    fn with(extensions: &[(u16, Vec<u8>)]) -> Built {
        Built {
            session: std::vec![7; 32],
            ciphers: std::vec![0x13, 1, 0x13, 2],
            compressions: std::vec![0],
            extensions: Some(extensions.to_vec()),
        }
    }

    fn body(&self) -> Vec<u8> {
        let extension = |(kind, data): &(u16, Vec<u8>)| [&kind.to_be_bytes()[..], &vector16(data)].concat();
        let extensions =
            self.extensions.iter().map(|all| vector16(&all.iter().flat_map(extension).collect::<Vec<u8>>()));
        let mut body = [&[3, 3][..], &[9; 32], &vector8(&self.session), &vector16(&self.ciphers)].concat();
        body.extend(vector8(&self.compressions));
        body.extend(extensions.flatten());
        body
    }

    fn stream(&self) -> Vec<u8> {
        record(&message(&self.body()))
    }
}

fn message(body: &[u8]) -> Vec<u8> {
    [&[1][..], &(body.len() as u32).to_be_bytes()[1..], body].concat()
}

fn record(fragment: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &vector16(fragment)].concat()
}

fn hello(name: Option<&str>, protocols: &[&str], bytes: usize) -> Result<Read, BadHello> {
    let protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Ok(Read::Hello { name: name.map(String::from), protocols, bytes })
}

macro_rules! captured {
    ($name:literal) => {
        &include_bytes!(concat!("../../../../../tests/fuzz/corpus/client_hello/", $name))[..]
    };
}

/// Captured from the clients they are named after; what these were asked to connect to is known.
#[test]
fn hellos_of_real_clients() {
    let both = ["h2", "http/1.1"];
    for (stream, name, protocols) in [
        (captured!("openssl-tls13-alpn"), Some("shop.example"), &both[..]),
        (captured!("openssl-tls12-no-name"), None, &[]),
        (captured!("openssl-tls10"), Some("Legacy.Example.ORG"), &[]),
        (captured!("openssl-ipv4-name"), Some("192.0.2.1"), &["mqtt"]),
        (captured!("curl-h2"), Some("www.shop.example"), &both),
        (captured!("curl-three-records"), Some("www.shop.example"), &both),
        (captured!("curl-http11"), Some("api_v2.shop.example"), &["http/1.1"]),
        (captured!("wget-gnutls"), Some("localhost"), &[]),
        (captured!("python-ssl"), Some("xn--bcher-kva.example"), &[]),
        (captured!("node-https"), Some("node.shop.example"), &["http/1.1"]),
        (captured!("java-tls13"), Some("java.shop.example"), &[]),
        (captured!("go-post-quantum"), Some("go.shop.example"), &both),
        (captured!("built-grease-ech"), Some("public.example"), &["ZZ", "h2", "http/1.1"]),
    ] {
        assert_eq!(read(stream), hello(name, protocols, stream.len()));
        for end in 0..stream.len() {
            assert_eq!(read(&stream[..end]), Ok(Read::Partial), "{name:?}: first {end} bytes");
        }
    }
    let early = captured!("built-then-early-data");
    let whole = captured!("built-grease-ech");
    assert!(early.len() > whole.len());
    assert_eq!(read(early), read(whole), "what follows is not looked at");
}

#[test]
fn what_is_not_tls_is_refused_from_its_first_bytes() {
    assert_eq!(read(captured!("bad-http")), Err(BadHello::NotTls));
    assert_eq!(read(b"G"), Err(BadHello::NotTls));
    assert_eq!(read(captured!("bad-ssl2")), Err(BadHello::NotTls));
    assert_eq!(read(&captured!("bad-ssl2")[..1]), Err(BadHello::NotTls));
    assert_eq!(read(&[22, 2]), Err(BadHello::NotTls), "version");
    assert_eq!(read(&[22, 0xfe, 0xfd]), Err(BadHello::NotTls), "DTLS");
    assert_eq!(read(&[21, 3, 1, 0, 2, 1, 0]), Err(BadHello::NotTls), "an alert");
    assert_eq!(read(&[22, 3, 1, 0, 1, 2]), Err(BadHello::NotHello), "a ServerHello");
    assert_eq!(read(&[]), Ok(Read::Partial));
}

#[test]
fn records_are_of_handshake_and_hold_the_hello_only() {
    let whole = message(&Built::with(&[server_name(b"shop.example")]).body());
    let (first, second) = whole.split_at(50);
    let good = [record(first), record(second)].concat();
    assert_eq!(read(&good), hello(Some("shop.example"), &[], good.len()));
    let alert = [21, 3, 1, 0, 2, 1, 0];
    assert_eq!(read(&[&record(first)[..], &alert].concat()), Err(BadHello::Record), "an alert between");
    assert_eq!(read(&[&record(first)[..], &record(&[])].concat()), Err(BadHello::Record), "an empty record");
    assert_eq!(read(&record(&[])), Err(BadHello::Record));
    assert_eq!(read(&record(&[&whole[..], &[0]].concat())), Err(BadHello::Record), "something behind the hello");
    assert_eq!(read(&[22, 3, 1, 0x40, 1]), Err(BadHello::Record), "2^14 + 1 bytes");
    assert_eq!(read(&[22, 3, 1, 0x40, 0]), Ok(Read::Partial), "2^14 bytes");

    let cut = |records: usize| {
        let (ones, rest) = whole.split_at(records - 1);
        ones.chunks(1).chain([rest]).flat_map(record).collect::<Vec<u8>>()
    };
    let most = cut(RECORDS_MAX);
    assert_eq!(read(&most), hello(Some("shop.example"), &[], most.len()));
    let more = cut(RECORDS_MAX + 1);
    assert_eq!(read(&more), Err(BadHello::Record));
    assert_eq!(read(&more[..6 * RECORDS_MAX]), Ok(Read::Partial));
    assert_eq!(read(&more[..=6 * RECORDS_MAX]), Err(BadHello::Record));
}

#[test]
fn a_hello_has_a_bound() {
    let long = Built::with(&[(21, std::vec![0; 2000]), server_name(b"shop.example")]).stream();
    assert_eq!(read_within(&long, long.len()), hello(Some("shop.example"), &[], long.len()));
    assert_eq!(read_within(&long[..long.len() - 1], long.len()), Ok(Read::Partial));
    assert_eq!(read_within(&long[..9], long.len() - 1), Err(BadHello::TooLong), "as soon as its length is known");
    assert_eq!(read_within(&long[..8], long.len() - 1), Ok(Read::Partial));
    let cut: Vec<u8> = long[5..].chunks(100).flat_map(record).collect();
    assert_eq!(read_within(&cut, cut.len()), hello(Some("shop.example"), &[], cut.len()));
    assert_eq!(read_within(&cut, cut.len() - 1), Err(BadHello::TooLong));
    assert_eq!(read_within(&cut[..cut.len() - 1], cut.len() - 1), Err(BadHello::TooLong), "never partial at the bound");
    assert_eq!(read_within(&[], 0), Err(BadHello::TooLong));
    let mut scratch = std::vec![0; long.len() - 6];
    assert_eq!(parse(&cut, &mut scratch, BYTES_MAX).unwrap_err(), BadHello::TooLong, "scratch too short");
    assert!(parse(&long, &mut [], BYTES_MAX).is_ok(), "and not needed");
}

#[test]
fn lengths_add_up() {
    let usual = Built::with(&[server_name(b"shop.example")]);
    let outcome = |built: &Built| read(&built.stream()).map(|_| ());
    assert_eq!(outcome(&usual), Ok(()));
    assert_eq!(outcome(&Built { extensions: None, ..usual.clone() }), Ok(()), "no extensions");
    assert_eq!(outcome(&Built { session: Vec::new(), ..usual.clone() }), Ok(()));
    for (what, built) in [
        ("session of 33", Built { session: std::vec![0; 33], ..usual.clone() }),
        ("no cipher", Built { ciphers: Vec::new(), ..usual.clone() }),
        ("half a cipher", Built { ciphers: std::vec![0; 3], ..usual.clone() }),
        ("no compression", Built { compressions: Vec::new(), ..usual.clone() }),
    ] {
        assert_eq!(outcome(&built), Err(BadHello::Malformed), "{what}");
    }
    let body = usual.body();
    for end in 0..body.len() {
        let outcome = read(&record(&message(&body[..end])));
        let is_whole = end == 2 + 32 + 33 + 6 + 2;
        assert_eq!(
            outcome.err(),
            if is_whole { None } else { Some(BadHello::Malformed) },
            "{end} bytes of the message"
        );
    }
    assert_eq!(read(&record(&message(&[&body[..], &[0]].concat()))), Err(BadHello::Malformed), "one byte more");
    let mut version = body;
    version[0] = 0xfe;
    assert_eq!(read(&record(&message(&version))), Err(BadHello::Malformed), "DTLS");
}

#[test]
fn extensions_come_once() {
    let outcome = |extensions: &[(u16, Vec<u8>)]| read(&Built::with(extensions).stream()).map(|_| ());
    let name = server_name(b"shop.example");
    assert_eq!(outcome(&[name.clone(), (0xa0a, Vec::new()), name]), Err(BadHello::Extensions));
    assert_eq!(read(captured!("bad-two-names")), Err(BadHello::Extensions));
    assert_eq!(outcome(&[(0xa0a, Vec::new()), (0xa0a, Vec::new())]), Err(BadHello::Extensions), "GREASE too");
    let many = |count: u16| (100..100 + count).map(|kind| (kind, Vec::new())).collect::<Vec<_>>();
    assert_eq!(outcome(&many(128)), Ok(()));
    assert_eq!(outcome(&many(129)), Err(BadHello::Extensions));
}

#[test]
fn a_name_is_one_name_of_a_host() {
    let name_in = |data: Vec<u8>| match read(&Built::with(&[(0, data)]).stream()) {
        Ok(Read::Hello { name, .. }) => Ok(name.unwrap()),
        Ok(Read::Partial) => panic!("partial"),
        Err(bad) => Err(bad),
    };
    let named = |name: &str| name_in(server_name(name.as_bytes()).1);
    let label = "x".repeat(63);
    let longest = std::format!("{label}.{label}.{label}.{}", &label[..61]);
    for name in
        ["a", "shop.example", "SHOP.Example", "_acme.shop-1.example", "192.0.2.1", "-x-.r3---sn.example", &longest]
    {
        assert_eq!(named(name).as_deref(), Ok(name));
    }
    assert_eq!(named("shop.example.").as_deref(), Ok("shop.example"), "a dot at the end is dropped");
    let long_label = std::format!("{label}x.example");
    let too_long = std::format!("{longest}x");
    for name in [
        "",
        ".",
        "..",
        "a..b",
        ".a",
        "a..",
        "a b",
        "a/b",
        "a:443",
        "[2001:db8::1]",
        "b\u{fc}cher.example",
        "a\0b",
        "*.example",
        "a\r\nb",
        &long_label,
        &too_long,
    ] {
        assert_eq!(named(name), Err(BadHello::Name), "{name:?}");
    }
    let host = [&[0][..], &vector16(b"shop.example")].concat();
    let other = [&[1][..], &vector16(b"shop.example")].concat();
    for (what, data) in [
        ("empty", Vec::new()),
        ("an empty list", vector16(&[])),
        ("two names", vector16(&[&host[..], &host].concat())),
        ("another kind", vector16(&other)),
        ("another kind behind", vector16(&[&host[..], &other].concat())),
        ("bytes behind the list", [&vector16(&host)[..], &[0]].concat()),
        ("bytes behind the name", vector16(&[&host[..], &[0]].concat())),
        ("a list longer than the extension", vector16(&host)[..10].to_vec()),
    ] {
        assert_eq!(name_in(data), Err(BadHello::Name), "{what}");
    }
}

#[test]
fn protocols_are_a_list_of_names() {
    let outcome = |data: Vec<u8>| read(&Built::with(&[(16, data)]).stream()).map(|_| ());
    assert_eq!(outcome(application_protocols(&[b"h2", b"\x0a\x0a", &[0xff; 255]]).1), Ok(()));
    for (what, data) in [
        ("empty", Vec::new()),
        ("an empty list", vector16(&[])),
        ("an empty name", application_protocols(&[b"h2", b""]).1),
        ("a name beyond the list", vector16(&[3, b'h', b'2'])),
        ("bytes behind the list", [&application_protocols(&[b"h2"]).1[..], &[0]].concat()),
        ("too many", application_protocols(&[&b"x"[..]; 65]).1),
    ] {
        assert_eq!(outcome(data), Err(BadHello::Protocols), "{what}");
    }
    assert_eq!(outcome(application_protocols(&[&b"x"[..]; 64]).1), Ok(()));
}

#[test]
fn kinds_of_refusal_have_names_of_their_own() {
    for (index, bad) in BadHello::ALL.into_iter().enumerate() {
        assert_eq!(bad as usize, index);
        assert!(BadHello::ALL[..index].iter().all(|other| other.name() != bad.name()));
    }
}

#[test]
fn the_first_route_that_fits_is_taken() {
    let texts = |texts: &[&str]| texts.iter().map(|text| Box::from(text.as_bytes())).collect::<Box<[Box<[u8]>]>>();
    let route = |group, names: &[&str], protocols: &[&str]| TlsRoute {
        names: texts(names),
        protocols: texts(protocols),
        groups: Box::new([(group, 1)]),
    };
    let tls = |routes: Vec<TlsRoute>| Tls {
        routes: routes.into(),
        proxy_protocol: None,
        is_plain: false,
        hello_bytes_max: 16_384,
        hello_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
        connect_tries: 1,
        offload_bytes_min: None,
        timestamps: true,
    };
    let taken = |tls: &Tls, name: Option<&str>, protocols: &[&[u8]]| {
        let mut extensions: Vec<_> = name.map(|name| server_name(name.as_bytes())).into_iter().collect();
        extensions.extend((!protocols.is_empty()).then(|| application_protocols(protocols)));
        let stream = Built::with(&extensions).stream();
        match parse(&stream, &mut [], BYTES_MAX) {
            Ok(ParseStatus::Complete(hello)) => tls_route(tls, &hello).map(|route| route.groups[0].0),
            other => panic!("{other:?}"),
        }
    };
    let exact = tls(std::vec![
        route(1, &["shop.example"], &["h2"]),
        route(2, &["other.example", "shop.example"], &[]),
        route(3, &["*.shop.example"], &["http/1.1", "h2"]),
        route(4, &["*.example"], &[]),
    ]);
    for (name, protocols, group) in [
        (Some("shop.example"), &[&b"http/1.1"[..], b"h2"][..], Some(1)),
        (Some("SHOP.example"), &[b"H2"], Some(2)),
        (Some("shop.example"), &[], Some(2)),
        (Some("a.shop.example"), &[b"h2"], Some(3)),
        (Some("a.b.SHOP.example"), &[b"http/1.1"], Some(3)),
        (Some("a.shop.example"), &[b"mqtt"], Some(4)),
        (Some("workshop.example"), &[b"h2"], Some(4)),
        (Some("example"), &[b"h2"], None),
        (Some("shop.example.org"), &[b"h2"], None),
        (None, &[b"h2"], None),
    ] {
        assert_eq!(taken(&exact, name, protocols), group, "{name:?} {protocols:?}");
    }
    let any = tls(std::vec![route(1, &[], &["acme-tls/1"]), route(2, &[], &[])]);
    assert_eq!(taken(&any, None, &[]), Some(2));
    assert_eq!(taken(&any, Some("shop.example"), &[b"acme-tls/1"]), Some(1));
    assert_eq!(taken(&tls(Vec::new()), Some("shop.example"), &[]), None);
}

proptest! {
    /// However it is cut into records, and wherever the stream so far ends.
    #[test]
    fn what_was_built_is_read(
        name in prop::option::of("[a-zA-Z0-9_-]{1,20}(\\.[a-z0-9-]{1,20}){0,5}"),
        protocols in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 0..5),
        others in prop::collection::btree_map(17..u16::MAX, prop::collection::vec(any::<u8>(), 0..60), 0..10),
        order in any::<u64>(),
        cuts in prop::collection::vec(1..300_usize, 1..10),
        behind in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut extensions: Vec<(u16, Vec<u8>)> = others.into_iter().collect();
        let names: Vec<&[u8]> = protocols.iter().map(Vec::as_slice).collect();
        let asked = [name.as_ref().map(|name| server_name(name.as_bytes())), (!names.is_empty()).then(|| application_protocols(&names))];
        for (turn, extension) in asked.into_iter().flatten().enumerate() {
            let place = (order >> (8 * turn)) as usize % (extensions.len() + 1);
            extensions.insert(place, extension);
        }
        let whole = message(&Built::with(&extensions).body());
        let mut stream = Vec::new();
        let mut rest = &whole[..];
        for cut in cuts.iter().copied().chain([usize::MAX]) {
            let (fragment, left) = rest.split_at(cut.min(rest.len()));
            if !fragment.is_empty() {
                stream.extend(record(fragment));
            }
            rest = left;
        }
        let bytes = stream.len();
        for end in 0..bytes {
            prop_assert_eq!(read(&stream[..end]), Ok(Read::Partial));
        }
        stream.extend(behind);
        prop_assert_eq!(read(&stream), Ok(Read::Hello { name, protocols, bytes }));
    }

    /// Changed anywhere: never a name that is none, and what is refused is not accepted with fewer bytes.
    #[test]
    fn changed_hellos_are_refused_or_well_formed(
        seed in 0..4_usize, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let seeds =
            [captured!("curl-h2"), captured!("curl-three-records"), captured!("openssl-tls10"), captured!("built-grease-ech")];
        let mut stream = seeds[seed].to_vec();
        for (at, value) in changes {
            let at = at.index(stream.len());
            stream[at] = value;
        }
        let outcome = read(&stream);
        for end in 0..stream.len() {
            match (read(&stream[..end]), &outcome) {
                (Ok(Read::Partial), _) => {}
                (Err(bad), outcome) => prop_assert_eq!(&Err(bad), outcome),
                (earlier, outcome) => prop_assert_eq!(&earlier, outcome),
            }
        }
        if let Ok(Read::Hello { name: Some(name), .. }) = outcome {
            prop_assert!(!name.is_empty() && name.len() <= 253);
            prop_assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)));
        }
    }
}
