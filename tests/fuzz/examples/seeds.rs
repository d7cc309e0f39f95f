//! Writes the seed corpora: packets of every kind Hairpin reads, made by etherparse, and operations on tables. Run it in
//! `tests/fuzz/` after a target's parameters have changed: `cargo run --example seeds`.

use etherparse::{Ipv6Header, PacketBuilder, TcpOptionElement, UdpHeader};
use hairpin_core::frame::VecFrame;
use hairpin_core::l4::answer::{Notice, notice};
use hairpin_core::wire::{Parsed, parse};
use hairpin_fuzz::adoption::CHANGE;
use hairpin_fuzz::http2::NAMES;
use hairpin_fuzz::wire::{ANSWER_PARAMETERS, REWRITE_PARAMETERS, TRANSLATE_PARAMETERS};
use std::path::Path;

const CLIENT_4: [u8; 4] = [192, 0, 2, 1];
const SERVER_4: [u8; 4] = [198, 51, 100, 2];
const CLIENT_6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const SERVER_6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 2];
const PAYLOAD: &[u8] = b"GET / HTTP/1.1\r\nHost: hairpin.example\r\n\r\n";

fn ethernet() -> etherparse::PacketBuilderStep<etherparse::Ethernet2Header> {
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
}

macro_rules! written {
    ($builder:expr, $payload:expr) => {{
        let mut bytes = Vec::new();
        $builder.write(&mut bytes, $payload).expect("a packet of valid parts");
        bytes
    }};
}

/// The two ways IPv6 extension headers matter: skipped, and a fragment.
fn with_extension_header(kind: u8) -> Vec<u8> {
    let source = std::net::SocketAddrV6::new(CLIENT_6.into(), 5000, 0, 0);
    let udp = UdpHeader::with_ipv6_checksum(source.port(), 53, &ipv6(17, 0), PAYLOAD).expect("a short payload");
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
    bytes.extend(ipv6(kind, 8 + 8 + PAYLOAD.len()).to_bytes());
    // PadN for options; as a fragment header: offset 0, more to come.
    bytes.extend([17, 0, 1, if kind == 44 { 1 } else { 4 }, 0, 0, 0, 0]);
    bytes.extend(udp.to_bytes());
    bytes.extend(PAYLOAD);
    bytes
}

fn ipv6(next: u8, payload: usize) -> Ipv6Header {
    Ipv6Header {
        payload_length: payload as u16,
        next_header: next.into(),
        hop_limit: 64,
        source: CLIENT_6,
        destination: SERVER_6,
        ..Ipv6Header::default()
    }
}

fn transports() -> Vec<(&'static str, Vec<u8>)> {
    use TcpOptionElement::{MaximumSegmentSize, Noop, SelectiveAcknowledgement, SelectiveAcknowledgementPermitted};
    use TcpOptionElement::{Timestamp, WindowScale};
    let syn = [MaximumSegmentSize(1460), SelectiveAcknowledgementPermitted, Timestamp(1, 0), Noop, WindowScale(7)];
    let sack = [Noop, Noop, SelectiveAcknowledgement((0xffff_fff0, 5), [Some((100, 200)), None, None])];
    let ipv4 = || ethernet().ipv4(CLIENT_4, SERVER_4, 64);
    let ipv6 = || ethernet().ipv6(CLIENT_6, SERVER_6, 64);
    let outer = etherparse::VlanId::try_new(10).expect("below 4096");
    let tagged = || ethernet().single_vlan(outer);
    vec![
        ("ipv4-tcp-syn", written!(ipv4().tcp(40_000, 80, 7, 65_535).syn().options(&syn).expect("room"), &[])),
        (
            "ipv4-tcp-sack",
            written!(ipv4().tcp(40_000, 80, u32::MAX, 500).ack(3).options(&sack).expect("room"), PAYLOAD),
        ),
        ("ipv4-tcp-fin", written!(ipv4().tcp(40_000, 80, 7, 500).ack(9).fin(), &[])),
        ("ipv4-udp", written!(ipv4().udp(5000, 53), PAYLOAD)),
        ("ipv4-vlan-udp", written!(tagged().ipv4(CLIENT_4, SERVER_4, 2).udp(5000, 53), PAYLOAD)),
        (
            "ipv4-qinq-tcp",
            written!(ethernet().double_vlan(outer, outer).ipv4(CLIENT_4, SERVER_4, 2).tcp(1, 2, 3, 4).ack(5), PAYLOAD),
        ),
        ("ipv6-tcp-sack", written!(ipv6().tcp(40_000, 80, 1, 500).ack(3).options(&sack).expect("room"), PAYLOAD)),
        ("ipv6-vlan-udp", written!(tagged().ipv6(CLIENT_6, SERVER_6, 9).udp(5000, 53), PAYLOAD)),
        ("ipv6-destination-options-udp", with_extension_header(60)),
    ]
}

fn icmp_errors() -> Vec<(String, Vec<u8>)> {
    let mut errors = Vec::new();
    for (name, packet) in transports() {
        let told = if name.contains("tcp") { Notice::TooBig { mtu: 1400 } } else { Notice::PortUnreachable };
        let Ok(Parsed::Transport(at)) = parse(&packet) else { panic!("{name} is not read") };
        let mut frame = VecFrame::new(&packet);
        assert!(notice(&mut frame, &at, told, at.key.destination.address));
        errors.push((format!("icmp-about-{name}"), frame.data));
    }
    errors
}

fn write(target: &str, name: &str, parts: &[&[u8]]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    std::fs::create_dir_all(&folder).expect("a writable corpus");
    std::fs::write(folder.join(name), parts.concat()).expect("a writable corpus");
}

/// Conversations with the services of `hairpin_fuzz::worker`, as lists of its records with at least this tag. Everybody's
/// sequence number is 7.
fn conversations(plain: u8, suffix: &str) {
    let write = |name: &str, parts: &[&[u8]]| write("worker", &format!("{name}{suffix}"), parts);
    let (client, vip, backend, pool) = ([10, 0, 9, 1], [10, 0, 0, 1], [10, 0, 0, 100], [10, 0, 0, 50]);
    let record = |tag: u8, frame: &[u8]| [&[tag], &(frame.len() as u16).to_le_bytes()[..], frame].concat();
    let to = |from, to, a, b| ethernet().ipv4(from, to, 64).tcp(a, b, 7, 500);
    let syn = |port| record(plain, &written!(to(client, vip, 5000, port).syn(), &[]));
    let ack = |port| record(plain, &written!(to(client, vip, 5000, port).ack(8), PAYLOAD));
    let fin = |port| record(plain, &written!(to(client, vip, 5000, port).fin().ack(8), &[]));
    let answer = record(plain, &written!(to(backend, client, 8080, 5000).syn().ack(8), &[]));
    let data = |tag| record(tag, &written!(to(backend, client, 8080, 5000).ack(8), PAYLOAD));
    let end = record(plain, &written!(to(backend, client, 8080, 5000).fin().ack(8), &[]));
    let reset = record(plain, &written!(to(backend, client, 8080, 5000).rst(), &[]));
    let query = |port| record(plain, &written!(ethernet().ipv4(client, vip, 64).udp(5000, port), PAYLOAD));
    let reply = |to| record(plain, &written!(ethernet().ipv4(backend, to, 64).udp(8080, 5000), PAYLOAD));
    let sent = written!(to(client, backend, 5000, 8080).ack(8), PAYLOAD);
    let bounced = [record(plain | 1, &sent), record(plain | 7, &sent)].concat();
    let Ok(Parsed::Transport(at)) = parse(&sent) else { panic!("not read") };
    let mut about = VecFrame::new(&sent);
    assert!(notice(&mut about, &at, Notice::PortUnreachable, at.key.destination.address));
    let open = [syn(80), answer.clone(), ack(80), vec![0]].concat();
    write("ipv4-tcp-nat", &[&open, &data(plain), &fin(80), &end, &[60]]);
    write("ipv4-tcp-reset", &[&open, &reset, &[60], &data(plain), &[60], &syn(80), &answer]);
    write("ipv4-too-big", &[&open, &bounced, &record(plain, &about.data)]);
    write("ipv4-full-nat", &[&syn(81), &ack(81), &[1], &fin(81), &[120]]);
    write("ipv4-pick-up", &[&ack(82), &[1], &data(plain | 2), &syn(82), &fin(82)]);
    write("ipv4-udp", &[&query(83), &reply(client), &[1], &query(84), &reply(pool), &[2]]);
    write("ipv4-pass", &[&data(plain), &[1], &syn(80), &data(plain), &syn(82), &[3]]);
}

/// Operations on connection tables: filling, coming and going, bursts, walks; by one worker and by several.
fn table_operations() {
    // The upper half of the first byte says whose; where there is one worker, it does not matter.
    let fill = [[0x03, 0, 0, 60], [0x14, 60, 200, 60]].concat();
    let burst = [[0x0d, 0, 1, 70], [0x1e, 3, 255, 99], [0x07, 2, 0, 40], [0x2d, 9, 0, 33]].concat();
    let single = [
        [0x00, 9, 255],
        [0x11, 9, 0],
        [0x2c, 9, 0],
        [0x09, 1, 130],
        [0x18, 9, 1],
        [0x0b, 9, 254],
        [0x05, 0, 0],
        [0x1c, 0, 0],
    ]
    .concat();
    let sweeps = [[0x0f, 0, 3], [0x1f, 0, 0], [0x2f, 0, 1]].concat();
    let different: [u8; 16] = core::array::from_fn(|i| (i * 0x1d) as u8);
    let write = |name: &str, capacity: u8, kind: u8, chosen: [u8; 16], ops: &[&[u8]]| {
        write("tables", name, &[&[capacity, kind], &chosen, &ops.concat()]);
    };
    write("ipv4-full", 30, 0, [0; 16], &[&fill, &single, &burst, &sweeps, &fill, &burst]);
    write("ipv6-full", 90, 8, [0; 16], &[&single, &fill, &burst, &single, &sweeps, &single]);
    write("ipv4-shared", 60, 2, [0; 16], &[&fill, &single, &burst, &sweeps]);
    write("ipv6-shared", 120, 9, [0; 16], &[&single, &fill, &sweeps, &burst]);
    write("ipv4-like-hashes", 100, 4, [0; 16], &[&fill, &single, &burst, &sweeps, &fill]);
    write("ipv4-hashes", 100, 4, different, &[&single, &fill, &burst, &sweeps, &fill]);
    write("ipv4-shared-hashes", 100, 7, different, &[&fill, &burst, &sweeps, &single]);
}

/// Heads and chunked bodies, each with a byte of parameters.
fn http() {
    const LARGE: &[u8] = &[0x10];
    let heads: [(&str, &[u8], &[u8]); 12] = [
        ("seed-get", &[0], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (
            "seed-post",
            LARGE,
            b"POST /a?b=c HTTP/1.1\r\nHost: a:80\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
        ),
        ("seed-chunked", LARGE, b"PUT / HTTP/1.1\r\nHost: [::1]:80\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("seed-absolute", LARGE, b"GET https://a.b:443/c?d HTTP/1.1\r\nHost: a.b\r\nCookie:\te=\xe9; f \r\nX:\r\n\r\n"),
        ("seed-connect", LARGE, b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nProxy-Connection: keep-alive\r\n\r\n"),
        ("seed-options", LARGE, b"\r\nOPTIONS * HTTP/1.1\r\nhost: %41\r\n\r\n"),
        ("seed-old", LARGE, b"HEAD / HTTP/1.0\r\nConnection: Keep-Alive, x-y\r\nX-Y: z\r\n\r\n"),
        ("seed-upgrade", LARGE, b"GET /s HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"),
        ("seed-response", &[0x15], b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer: a\r\n\r\nhello"),
        ("seed-response-chunked", &[0x11], b"HTTP/1.1 404\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("seed-response-connect", &[0x13], b"HTTP/1.0 200 \xfc\r\nConnection: keep-alive\r\n\r\n"),
        ("seed-response-none", &[0x05], b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n"),
    ];
    for (name, parameters, head) in heads {
        write("http_head", name, &[parameters, head]);
    }
    let bodies: [(&str, &[u8]); 6] = [
        ("seed-empty", b"0\r\n\r\n"),
        ("seed-one", b"5\r\nhello\r\n0\r\n\r\nGET /"),
        ("seed-extensions", b"0A;a;b=\"c;\"\r\n0123456789\r\n000;d\r\n\r\n"),
        ("seed-trailers", b"2\r\n\r\n\r\n0\r\nSum: 5\r\nEmpty:\r\n\r\n"),
        ("seed-many", b"1\r\na\r\n1\r\nb\r\n1\r\nc\r\n2\r\nde\r\n0\r\nX-Forwarded: a\r\n\r\n"),
        ("seed-zeros", b"0000000000000001\r\n\0\r\n0000000000000000\r\n\r\n\r\n"),
    ];
    for (at, (name, body)) in bodies.into_iter().enumerate() {
        write("http_body", name, &[&[at as u8], body]);
    }
}

/// Headers of both versions, as proxies send them.
fn proxy_headers() {
    let binary = |command: u8, family: u8, said: &[u8]| {
        [b"\r\n\r\n\0\r\nQUIT\n", &[command, family][..], &(said.len() as u16).to_be_bytes(), said].concat()
    };
    let ports = [0x12, 0x34, 1, 0xbb];
    let ipv4 = [&CLIENT_4[..], &SERVER_4, &ports].concat();
    let ipv6 = [&CLIENT_6[..], &SERVER_6, &ports].concat();
    // The name asked for, and a checksum.
    let additions = [&ipv4[..], &[2, 0, 3], b"a.b", &[3, 0, 4, 1, 2, 3, 4]].concat();
    let all: [(&str, Vec<u8>); 11] = [
        ("v1-ipv4", b"PROXY TCP4 192.0.2.1 198.51.100.2 4660 443\r\n\x16\x03\x01".to_vec()),
        ("v1-ipv6", b"PROXY TCP6 2001:db8::1 2001:db8:9::2 4660 443\r\n".to_vec()),
        ("v1-unknown", b"PROXY UNKNOWN\r\n".to_vec()),
        ("v1-unknown-with-more", b"PROXY UNKNOWN 1 2 3\r\nGET /".to_vec()),
        ("v2-ipv4", binary(0x21, 0x11, &ipv4)),
        ("v2-ipv6", binary(0x21, 0x21, &ipv6)),
        ("v2-additions", binary(0x21, 0x11, &additions)),
        ("v2-local", binary(0x20, 0, &[])),
        ("v2-unspecified", binary(0x21, 0, &[4, 0, 1, 0])),
        ("bad-udp", binary(0x21, 0x12, &ipv4)),
        ("bad-tls", vec![22, 3, 1, 2, 0, 1, 0, 1, 252]),
    ];
    for (name, header) in all {
        write("proxy_protocol", name, &[&header]);
    }
}

/// Header blocks of requests by HTTP/2, each with a byte of parameters; see `hairpin_fuzz::http2`.
fn http2_requests() {
    const LITERALS: u8 = 0;
    const PARTS: u8 = 2;
    const TRAILERS: u8 = 4;
    const BLOCK: u8 = 6;
    const WHOLE: u8 = 1;
    let field = |(name, value): &(&str, &str)| {
        let known = NAMES.iter().position(|known| known == name);
        let (first, name) = known.map_or((name.len() as u8, *name), |at| (at as u8 | 0x80, ""));
        [&[first, value.len() as u8], name.as_bytes(), value.as_bytes()].concat()
    };
    let write = |name: &str, parameters: u8, fields: &[(&str, &str)]| {
        write("http2", name, &[&[parameters], &fields.iter().map(field).collect::<Vec<_>>().concat()]);
    };
    let block = |name: &str, parameters: u8, block: &[u8]| self::write("http2", name, &[&[parameters], block]);
    let get = [(":method", "GET"), (":scheme", "https"), (":authority", "a.test"), (":path", "/x?q=1")];
    let post = [(":method", "POST"), (":scheme", "https"), (":authority", "a.test:8443"), (":path", "/")];
    let socket = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/s"),
    ];
    let with = |first: &[(&'static str, &'static str)], more: &[(&'static str, &'static str)]| [first, more].concat();
    write(
        "get",
        LITERALS | WHOLE,
        &with(&get, &[("accept", "*/*"), ("cookie", "a=1"), ("te", "trailers"), ("cookie", "b")]),
    );
    write("get-by-parts", PARTS | WHOLE, &with(&get, &[("x-route", ""), ("host", "a.test")]));
    write("post-with-a-length", LITERALS, &with(&post, &[("content-length", "5"), ("expect", "100-continue")]));
    write(
        "post-in-chunks",
        LITERALS,
        &with(&post, &[("trailer", "x-sum"), ("x-route", " b\t"), ("forwarded", "for=c")]),
    );
    write("post-by-parts", PARTS, &with(&post, &[("x", "\u{e9}"), ("content-length", "0")]));
    write(
        "options",
        LITERALS | WHOLE,
        &[(":method", "OPTIONS"), (":scheme", "http"), (":path", "*"), ("host", "a:80"), ("max-forwards", "3")],
    );
    write(
        "fragment",
        LITERALS | WHOLE,
        &[(":method", "PUT"), (":scheme", "https"), (":authority", "[::1]"), (":path", "//y#z")],
    );
    write(
        "only-a-fragment",
        LITERALS | WHOLE,
        &[(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "#y")],
    );
    write("websocket", LITERALS, &with(&socket, &[("sec-websocket-key", "k"), ("sec-websocket-version", "13")]));
    write("websocket-by-parts", PARTS, &socket);
    write("trailers", TRAILERS, &[("x-sum", "5"), ("grpc-status", "0"), ("empty", "")]);
    // Indexed fields (RFC 7541, appendix A), and an authority in Huffman code (C.4.1).
    let huffman = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
    block("block", BLOCK | WHOLE, &[&[0x82, 0x87, 0x84, 0x41, 0x8c], &huffman[..], &[0x90, 0x53, 1, b'b']].concat());
    write("bad-connect", LITERALS, &[(":method", "CONNECT"), (":authority", "a:443")]);
    write("bad-two-hosts", LITERALS | WHOLE, &with(&get, &[("host", "b.test")]));
    write("bad-two-lengths", LITERALS, &with(&post, &[("content-length", "5"), ("transfer-encoding", "chunked")]));
    write("bad-lookalike", LITERALS, &with(&post, &[("content_length", "5")]));
    write("bad-line-end", LITERALS | WHOLE, &with(&get, &[("x", "y\r\nHost: b")]));
    write(
        "bad-absolute",
        LITERALS | WHOLE,
        &[(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "http://b/")],
    );
    write("bad-trailers", TRAILERS, &[("content-length", "5"), ("host", "b")]);
}

/// Steps of clients (`c`) and backends (`b`) around an HTTP service: what, who, how much; see `hairpin_fuzz::splice`.
fn splices() {
    let c = |what: u8, who: u8, much: u8| [what << 1, who, much];
    let b = |what: u8, who: u8, much: u8| [what << 1 | 1, who, much];
    let basic = vec![c(0, 0, 0), b(11, 0, 0), b(0, 0, 0), c(6, 0, 0)];
    let then = |steps: &[[u8; 3]]| [&basic[..], steps].concat();
    let all = [
        ("exchange", basic.clone()),
        (
            "keep-alive-then-other-client",
            then(&[c(0, 0, 3), b(6, 0, 0), b(0, 0, 0), c(6, 0, 0), c(8, 0, 0), c(0, 1, 0), b(0, 0, 0), c(6, 1, 0)]),
        ),
        (
            "upload-in-pieces",
            vec![c(2, 0, 9), c(3, 0, 40), c(3, 0, 200), b(11, 0, 0), b(6, 0, 0), b(0, 0, 0), c(6, 0, 0)],
        ),
        (
            "chunks-out-of-order",
            vec![c(2, 0, 74), c(3, 0, 55), b(11, 0, 0), b(6, 0, 0), c(5, 0, 21), c(3, 0, 200), b(0, 0, 1), c(6, 0, 0)],
        ),
        (
            "pipelined",
            vec![c(0, 0, 0), c(0, 0, 1), c(0, 0, 2), b(11, 0, 0), b(0, 0, 0), c(6, 0, 0), b(0, 0, 1), c(6, 0, 0)],
        ),
        ("interim-and-lost", vec![c(0, 0, 5), b(11, 0, 0), b(0, 0, 4), c(12, 0, 20), c(6, 0, 0), b(0, 0, 5)]),
        ("close-delimited", vec![c(0, 0, 4), b(11, 0, 0), b(0, 0, 2), b(8, 0, 0), c(6, 0, 0), c(8, 0, 0), b(6, 0, 0)]),
        ("reset-under-request", then(&[c(0, 0, 0), b(9, 0, 0), b(11, 1, 0), b(0, 1, 0), c(6, 0, 0)])),
        (
            "offloaded",
            vec![c(0, 0, 0), b(11, 0, 0), b(6, 0, 0), b(0, 0, 6), c(13, 0, 0), c(6, 0, 0), c(12, 0, 200), b(9, 0, 0)],
        ),
        (
            "overtaken-body",
            vec![
                c(2, 0, 249),
                c(3, 0, 20),
                b(11, 0, 0),
                b(6, 0, 0),
                c(3, 0, 20),
                c(2, 0, 0),
                c(2, 0, 0),
                c(5, 0, 40),
                c(4, 0, 94),
                c(4, 0, 50),
            ],
        ),
        ("backend-taken-away", then(&[c(14, 0, 8), c(0, 0, 0), c(12, 0, 10), b(11, 1, 0), b(0, 1, 0)])),
        ("acknowledges-too-much", vec![c(0, 0, 0), b(11, 0, 0), b(0, 0, 6), c(7, 0, 100), c(7, 0, 156), c(15, 0, 0)]),
        (
            "window-closed",
            vec![
                c(10, 0, 0),
                c(0, 0, 1),
                b(11, 0, 0),
                b(10, 0, 3),
                b(6, 0, 0),
                b(0, 0, 0),
                c(12, 0, 50),
                c(10, 0, 200),
            ],
        ),
    ];
    for (name, steps) in all {
        write("splice", name, &[steps.as_flattened()]);
    }
}

/// Changes to the memory of spliced connections between two processes, and steps; see `hairpin_fuzz::adoption`.
fn adoptions() {
    let change = |what: u8, at: u16, count: u8, value: u16| {
        let ([a, b], [c, d]) = (at.to_le_bytes(), value.to_le_bytes());
        [what, a, b, count, c, d]
    };
    let steps = [[1, 0, 0], [0, 1, 0], [12 << 1, 2, 3], [8 << 1, 3, 0], [9 << 1 | 1, 4, 0]];
    // The low bits of the first byte: a card's engine; arbitrary bytes; adopted twice.
    type Seed<'a> = (&'a str, u8, &'a [[u8; CHANGE]], &'a [[u8; 3]]);
    let all: [Seed<'_>; 9] = [
        ("whole", 0, &[], &[]),
        ("whole-before-a-card", 1, &[], &steps),
        ("whole-adopted-twice", 4, &[], &steps),
        ("a-bit-of-an-address", 0, &[change(1, 2 * 64 + 16 + 15, 0, 1)], &[]),
        ("operations-of-long-ago", 0, &[change(4, 0, 0, 60)], &steps),
        ("an-entry-of-ones", 0, &[change(5, 2000, 255, 0xff)], &[]),
        ("copied-entries", 0, &[change(7, 128, 255, 3000), change(7, 1100, 200, 128)], &[]),
        ("low-numbers", 4, &[change(2, 600, 0, 1), change(2, 1600, 0, 2), change(3, 2600, 0, u16::MAX)], &[]),
        ("bad-arbitrary", 2, &[change(3, 0, 0, 1), change(1, 0, 0, 0), change(9, 8, 7, 0)], &steps),
    ];
    for (name, how, changes, steps) in all {
        write("adoption", name, &[&[how, changes.len() as u8], changes.as_flattened(), steps.as_flattened()]);
    }
}

/// Neighbours of a link layer's two ports: they ask, answer, announce, ping, and get what the worker sends.
fn links() {
    let record = |tag: u8, frame: &[u8]| [&[tag], &(frame.len() as u16).to_le_bytes()[..], frame].concat();
    let (own, peer) = (hairpin_fuzz::link::MAC, [2, 0, 0, 0, 0, 9]);
    let arp = |operation: u8, to: [u8; 6], sender: [u8; 4], target: [u8; 4]| {
        let head = [&to[..], &peer, &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
        record(128, &[&head[..], &peer, &sender, &[0; 6], &target].concat())
    };
    let everybody = [0xff; 6];
    let from_worker =
        |to: [u8; 4]| record(130, &written!(ethernet().ipv4([10, 0, 0, 80], to, 64).udp(53, 5000), PAYLOAD));
    let v6 = |last: u8| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let discovery = |kind: u8, flags: u8, target: [u8; 16], option: u8, to: [u8; 16]| {
        let body = [&[flags, 0, 0, 0], &target[..], &[option, 1], &peer].concat();
        let builder = PacketBuilder::ethernet2(peer, own).ipv6(v6(9), to, 255);
        let fixed = [body[0], body[1], body[2], body[3]];
        let kind = etherparse::Icmpv6Type::Unknown { type_u8: kind, code_u8: 0, bytes5to8: fixed };
        record(128, &written!(builder.icmpv6(kind), &body[4..]))
    };
    let ping = |tag: u8| {
        let builder = PacketBuilder::ethernet2(peer, own).ipv4([192, 0, 2, 9], [10, 0, 0, 80], 9);
        record(tag, &written!(builder.icmpv4_echo_request(1, 2), PAYLOAD))
    };
    let ping6 =
        written!(PacketBuilder::ethernet2(peer, own).ipv6(v6(9), v6(0x80), 9).icmpv6_echo_request(1, 2), PAYLOAD);
    let datagram =
        written!(PacketBuilder::ethernet2(peer, own).ipv4([192, 0, 2, 9], [10, 0, 0, 9], 9).udp(1, 2), PAYLOAD);
    let v6_out = record(130, &written!(ethernet().ipv6(v6(0x80), v6(9), 64).udp(53, 5000), PAYLOAD));
    let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let write = |name: &str, parts: &[&[u8]]| write("link", name, parts);
    write("asked", &[&arp(1, everybody, [10, 0, 0, 9], [10, 0, 0, 80]), &from_worker([10, 0, 0, 9]), &[20]]);
    write("asks", &[&from_worker([10, 0, 0, 9]), &[5], &arp(2, own, [10, 0, 0, 9], [10, 0, 0, 1]), &[100, 127]]);
    write("unresolved", &[&from_worker([10, 0, 0, 9]), &[11, 11, 11, 11], &from_worker([10, 0, 0, 9]), &[40]]);
    write("gateway", &[&arp(2, own, [10, 0, 0, 254], [10, 0, 0, 1]), &from_worker([192, 0, 2, 1]), &[127, 127, 127]]);
    write("conflict", &[&arp(1, everybody, [10, 0, 0, 80], [10, 0, 0, 80]), &[10, 110]]);
    write("asked-6", &[&discovery(135, 0, v6(0x80), 1, v6(0x80)), &v6_out, &[12]]);
    write("asks-6", &[&v6_out, &[3], &discovery(136, 0x60, v6(9), 2, v6(1)), &[10]]);
    write(
        "link-local",
        &[&record(130, &written!(ethernet().ipv6(v6(0x80), link_local, 64).udp(53, 9), PAYLOAD)), &[50]],
    );
    write("pings", &[&ping(128), &ping(129), &record(128, &ping6)]);
    write("passes-on", &[&record(128, &datagram), &[1], &arp(2, own, [10, 0, 0, 9], [10, 0, 0, 1]), &[1]]);
}

fn main() {
    http();
    proxy_headers();
    http2_requests();
    links();
    splices();
    adoptions();
    table_operations();
    conversations(128, "");
    // with partial checksums, so that what is changed in them is not found to be broken
    conversations(130, "-partial");
    // Parameters of no special meaning, all different, deltas large.
    let parameters: Vec<u8> = (0..=255).map(|number: u8| number.wrapping_mul(37) ^ 0x5a).collect();
    for (name, frame) in transports() {
        write("parse", name, &[&frame]);
        write("rewrite", name, &[&parameters[..REWRITE_PARAMETERS], &frame]);
        let mtu = 60u16.to_be_bytes();
        assert_eq!(ANSWER_PARAMETERS, mtu.len() + 2);
        let mut frame = frame;
        if frame[12..14] == [8, 0] {
            // May be fragmented.
            let sum = u32::from(u16::from_be_bytes([frame[24], frame[25]])) + u32::from(frame[20]) * 256;
            let checksum = (sum & 0xffff) as u16 + (sum >> 16) as u16;
            frame[24..26].copy_from_slice(&checksum.to_be_bytes());
            frame[20] = 0;
        }
        write("answer", name, &[&mtu, &[0, name.len() as u8], &frame]);
    }
    for (name, frame) in icmp_errors() {
        if name.contains("options") || name.contains("vlan") {
            write("parse", &name, &[&frame]);
        }
        write("icmp_translate", &name, &[&parameters[..TRANSLATE_PARAMETERS], &frame]);
    }
    write("parse", "ipv6-fragment", &[&with_extension_header(44)]);
}
