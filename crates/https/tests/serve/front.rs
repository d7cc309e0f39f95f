//! What a connection begins with before its first request: a header of the PROXY protocol, the preface of HTTP/2 in clear text.

use crate::fixture::{Site, block_on, http, pattern, server, shake_hands};
use crate::frames::{END_HEADERS, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, SETTINGS, WINDOW_UPDATE, block, frame};
use hairpin_core::flow::{Address, Endpoint};
use hairpin_core::l7::config::{Http, HttpLimits, Network, ProxyVersion};
use hairpin_core::l7::proxy_protocol;
use hairpin_core::l7::route::{Access, AccessVerdict, Conditions};
use hairpin_core::l7::splice::Refused;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn address(text: &str) -> Address {
    text.parse::<IpAddr>().unwrap().into()
}

/// A service that takes headers from `network`.
fn site(http: Http, server: SocketAddr, network: Network) -> Site {
    Site::of(
        http,
        &[server],
        |_| {},
        |service| {
            service.accept_proxy = [network].into();
            service.handshake_timeout = Duration::from_millis(500);
        },
    )
}

/// A service whose clients speak clear text, HTTP/2 too.
fn clear_text(http: Http, server: SocketAddr) -> Site {
    Site::of(http, &[server], |_| {}, |service| service.tls = None)
}

fn loopback() -> Network {
    Network { address: address("127.0.0.0"), prefix: 104 }
}

fn header(version: ProxyVersion, client: &str, vip: &str) -> Vec<u8> {
    let [client, vip] = [client, vip].map(|text| text.parse::<SocketAddr>().unwrap());
    let [client, vip] = [client, vip].map(|end| Endpoint::new(end.ip(), end.port()));
    let mut out = [0; proxy_protocol::HEADER_MAX];
    let length = proxy_protocol::write(&mut out, version, client, vip).unwrap();
    out[..length].to_vec()
}

/// The answer to one request behind these bytes, which come in pieces of `piece` bytes.
async fn ask(site: &Site, bytes: &[u8], piece: usize) -> std::io::Result<String> {
    let mut tcp = TcpStream::connect(site.address).await?;
    tcp.set_nodelay(true)?;
    for piece in bytes.chunks(piece) {
        tcp.write_all(piece).await?;
        if piece.len() < bytes.len() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let mut stream = shake_hands(site.client_config(), tcp).await?;
    stream.write_all(b"GET /head HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n").await?;
    let mut said = String::new();
    stream.read_to_string(&mut said).await?;
    Ok(said)
}

#[test]
fn header_gives_the_client_of_either_version() {
    block_on(async {
        let site = site(http(), server().await, loopback());
        for version in [ProxyVersion::V1, ProxyVersion::V2] {
            for (client, vip) in [("192.0.2.7:1234", "198.51.100.1:443"), ("[2001:db8::7]:1234", "[2001:db8::1]:443")] {
                let header = header(version, client, vip);
                for piece in [header.len(), 7] {
                    let said = ask(&site, &header, piece).await.unwrap();
                    let host = client.rsplit_once(':').unwrap().0.trim_matches(['[', ']']);
                    assert!(said.contains(&format!("x-forwarded-for: {host}\n")), "{said}");
                }
            }
        }
        let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\x05\x04\0\x02\0\0";
        for header in [&b"PROXY UNKNOWN\r\n"[..], local] {
            let said = ask(&site, header, header.len()).await.unwrap();
            assert!(said.contains("x-forwarded-for: 127.0.0.1\n"), "{said}");
        }
        assert_eq!(site.counted().statistics.proxy_headers_invalid, 0);
    });
}

#[test]
fn access_rules_see_the_client_of_the_header() {
    block_on(async {
        let denied = Network { address: address("192.0.2.0"), prefix: 120 };
        let access = Access {
            conditions: Conditions { clients: [denied].into(), ..Conditions::default() },
            verdict: AccessVerdict::Deny { status: 403 },
            strict: false,
        };
        let site = site(Http { access: [access].into(), ..http() }, server().await, loopback());
        for (client, status) in [("192.0.2.7:1", "403"), ("203.0.113.7:1", "200")] {
            let header = header(ProxyVersion::V2, client, "198.51.100.1:443");
            let said = ask(&site, &header, header.len()).await.unwrap();
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{client}: {said}");
        }
    });
}

#[test]
fn destination_of_the_same_family_goes_to_backends() {
    block_on(async {
        let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = Http { proxy_protocol: Some(ProxyVersion::V1), reuse: false, ..http() };
        let site = site(http, backend.local_addr().unwrap(), loopback());
        let port = site.address.port();
        for (client, vip, expected) in [
            ("192.0.2.7:1", "198.51.100.1:443", "PROXY TCP4 192.0.2.7 198.51.100.1 1 443\r\n".to_string()),
            ("[2001:db8::7]:1", "[::2]:443", format!("PROXY TCP6 2001:db8::7 ::ffff:7f00:1 1 {port}\r\n")),
        ] {
            let header = header(ProxyVersion::V2, client, vip);
            let serve = async {
                let (mut stream, _) = backend.accept().await.unwrap();
                let mut said = vec![0; expected.len()];
                stream.read_exact(&mut said).await.unwrap();
                stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await.unwrap();
                // Until the client's side has ended.
                let _ = stream.read_to_end(&mut Vec::new()).await;
                String::from_utf8(said).unwrap()
            };
            let (said, answer) = tokio::join!(serve, ask(&site, &header, header.len()));
            assert_eq!(said, expected);
            assert!(answer.unwrap().starts_with("HTTP/1.1 204 "));
        }
    });
}

#[test]
fn connection_without_a_header_is_closed_and_counted() {
    block_on(async {
        let site = site(http(), server().await, loopback());
        // No header at all, a broken one, one for UDP, and an end in the middle.
        let udp = b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c\x01\x02\x03\x04\x01\x02\x03\x04\0\x01\0\x02";
        for begin in [&b""[..], b"PROXY TCP4 1.2.3.4\r\n", udp] {
            assert!(ask(&site, begin, 100).await.is_err(), "{begin:?}");
        }
        let mut tcp = TcpStream::connect(site.address).await.unwrap();
        tcp.write_all(b"PROXY TCP4 192.0.2.7 ").await.unwrap();
        tcp.shutdown().await.unwrap();
        assert_eq!(tcp.read(&mut [0; 16]).await.unwrap_or(0), 0);
        let counted = site.counted().statistics;
        assert_eq!((counted.proxy_headers_invalid, counted.handshakes, counted.handshakes_failed), (4, 0, 0));
        assert!(counted.events().any(|event| event == ("proxy-header-invalid", 4)));
        // The time for the handshake is that of the header, too.
        let mut tcp = TcpStream::connect(site.address).await.unwrap();
        tcp.write_all(b"PROXY ").await.unwrap();
        assert_eq!(tcp.read(&mut [0; 16]).await.unwrap_or(0), 0);
        assert_eq!(site.counted().statistics.handshakes_slow, 1);
    });
}

#[test]
fn header_from_another_network_is_not_understood() {
    block_on(async {
        let elsewhere = Network { address: address("192.0.2.0"), prefix: 120 };
        let site = site(http(), server().await, elsewhere);
        let header = header(ProxyVersion::V2, "192.0.2.7:1", "198.51.100.1:443");
        assert!(ask(&site, &header, header.len()).await.is_err());
        let said = ask(&site, b"", 1).await.unwrap();
        assert!(said.contains("x-forwarded-for: 127.0.0.1\n"), "{said}");
        let counted = site.counted().statistics;
        assert_eq!((counted.handshakes, counted.handshakes_failed, counted.proxy_headers_invalid), (1, 1, 0));
    });
}

/// All that the service answers to these bytes, which come in pieces of `piece` bytes.
async fn say(site: &Site, bytes: &[u8], piece: usize) -> String {
    let mut tcp = TcpStream::connect(site.address).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    for piece in bytes.chunks(piece) {
        tcp.write_all(piece).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut said = Vec::new();
    tcp.read_to_end(&mut said).await.unwrap();
    String::from_utf8(said).unwrap()
}

#[test]
fn client_with_prior_knowledge_speaks_http2_in_clear_text() {
    block_on(async {
        let site = clear_text(http(), server().await);
        let tcp = TcpStream::connect(site.address).await.unwrap();
        let (mut client, connection) = h2::client::handshake(tcp).await.unwrap();
        let connection = tokio::spawn(connection);
        for path in ["/head", "/bytes/200000"] {
            client = client.ready().await.unwrap();
            let request = http::Request::get(format!("http://web.test{path}")).body(()).unwrap();
            let response = client.send_request(request, true).unwrap().0.await.unwrap();
            assert_eq!(response.status(), 200);
            let (mut stream, mut all) = (response.into_body(), Vec::new());
            while let Some(data) = stream.data().await {
                let data = data.unwrap();
                let _ = stream.flow_control().release_capacity(data.len());
                all.extend_from_slice(&data);
            }
            if path == "/head" {
                let said = String::from_utf8(all).unwrap();
                assert!(said.contains("x-forwarded-proto: http\n") && said.contains("host: web.test\n"), "{said}");
            } else {
                assert_eq!(all, pattern(200_000));
            }
        }
        drop(client);
        connection.await.unwrap().unwrap();
        let counted = site.counted().statistics;
        assert_eq!((counted.http2_connections, counted.http.requests, counted.handshakes), (1, 2, 0));
    });
}

#[test]
fn preface_in_pieces_begins_http2() {
    block_on(async {
        let site = clear_text(http(), server().await);
        for piece in [1, 5, 23] {
            let mut tcp = TcpStream::connect(site.address).await.unwrap();
            tcp.set_nodelay(true).unwrap();
            // An empty SETTINGS frame follows it.
            for piece in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".chunks(piece) {
                tcp.write_all(piece).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let mut frame = [0; 9];
            tcp.read_exact(&mut frame).await.unwrap();
            assert_eq!(frame[3], 4, "the service begins with SETTINGS: {frame:?}");
        }
        assert_eq!(site.counted().statistics.http2_connections, 3);
    });
}

#[test]
fn http1_beside_http2_in_clear_text_is_answered() {
    block_on(async {
        let site = clear_text(http(), server().await);
        for piece in [1, 4, 1000] {
            let put = b"PUT /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
            let said = say(&site, put, piece).await;
            assert!(said.starts_with("HTTP/1.1 200 ") && said.ends_with("\r\n\r\nhi"), "{said}");
            let get = b"GET /head HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            let said = say(&site, get, piece).await;
            assert!(said.contains("x-forwarded-proto: http\n"), "{said}");
        }
        // All but the preface's last byte.
        let said = say(&site, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r", 1000).await;
        assert!(said.starts_with("HTTP/1.1 "), "{said}");
        let counted = site.counted().statistics;
        assert_eq!((counted.http2_connections, counted.http.requests), (0, 6));
    });
}

#[test]
fn client_that_stops_in_the_preface_is_closed() {
    block_on(async {
        let limits = HttpLimits { head_timeout: Duration::from_millis(200), ..HttpLimits::default() };
        let site = clear_text(Http { limits, ..http() }, server().await);
        assert_eq!(say(&site, b"PRI * HTTP/2.0\r\n", 1000).await, "");
        assert_eq!(site.counted().statistics.http.refused[Refused::Slow as usize], 1);
    });
}

#[test]
fn clear_text_body_that_is_broken_off_ends_in_no_fin() {
    block_on(async {
        let slow = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let site = clear_text(http(), slow.local_addr().unwrap());
        let mut client = TcpStream::connect(site.address).await.unwrap();
        client.write_all(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n").await.unwrap();
        let (mut backend, _) = slow.accept().await.unwrap();
        // The length of the body is where the connection ends.
        backend.write_all(b"HTTP/1.1 200 OK\r\n\r\nthe beginning").await.unwrap();
        let mut said = Vec::new();
        while !said.ends_with(b"the beginning") {
            assert_ne!(client.read_buf(&mut said).await.unwrap(), 0);
        }
        site.runtimes.end_backends(&[0]);
        let error = client.read_buf(&mut said).await.expect_err("a client would take the body for whole");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn http2_client_in_clear_text_that_never_reads_is_reset() {
    block_on(async {
        let limits = HttpLimits { send_timeout: Duration::from_millis(500), ..HttpLimits::default() };
        let site = clear_text(Http { limits, ..http() }, server().await);
        let mut client = TcpStream::connect(site.address).await.unwrap();
        let window = [&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &i32::MAX.to_be_bytes()].concat();
        let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        said.extend(frame(SETTINGS, 0, 0, &window));
        said.extend(frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()));
        for at in 0..100 {
            // More than fits into the buffers of both ends.
            let block = block("GET", "/bytes/640000", &[]);
            said.extend(frame(HEADERS, END_HEADERS | END_STREAM, 2 * at + 1, &block));
        }
        client.write_all(&said).await.unwrap();
        while site.counted().statistics.http.client_conns_now == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        while site.counted().statistics.http.client_conns_now > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(site.counted().statistics.http.refused[Refused::SendTimeout as usize] > 0);
        let mut read = Vec::new();
        let error = loop {
            read.clear();
            match client.read_buf(&mut read).await {
                Ok(0) => panic!("a FIN: as if that were all"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn clear_text_connections_are_listed_with_their_protocol() {
    block_on(async {
        let site = clear_text(http(), server().await);
        let mut client = TcpStream::connect(site.address).await.unwrap();
        client.write_all(b"GET /bytes/1 HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut said = Vec::new();
        while !said.ends_with(b"\r\n\r\n\0") && client.read_buf(&mut said).await.unwrap() > 0 {}
        let listed = site.runtimes.lister().list(0, 0).unwrap();
        assert_eq!((listed.len(), listed[0].protocol), (1, "http/1.1"));
    });
}

#[test]
fn connections_behind_a_proxy_are_listed_with_their_client() {
    block_on(async {
        let clear_text = |service: &mut hairpin_https::TerminatedService| {
            service.tls = None;
            service.accept_proxy = [loopback()].into();
            service.handshake_timeout = Duration::from_secs(5);
        };
        let site = Site::of(http(), &[server().await], |_| {}, clear_text);
        let mut client = TcpStream::connect(site.address).await.unwrap();
        client.write_all(&header(ProxyVersion::V2, "192.0.2.7:1234", "198.51.100.1:443")).await.unwrap();
        client.write_all(b"GET /bytes/1 HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        assert_ne!(client.read(&mut [0; 1024]).await.unwrap(), 0);
        let listed = site.runtimes.lister().list(0, 0).unwrap();
        assert_eq!((listed.len(), listed[0].client), (1, Endpoint::new("192.0.2.7".parse::<IpAddr>().unwrap(), 1234)));
    });
}
