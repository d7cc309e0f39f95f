//! Clients of HTTP/2 that take without giving: each costs a bounded time, a bounded memory, and is counted.

use crate::fixture::{Site, block_on, http, server};
use crate::frames::{
    CALM, DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, PING, PRIORITY, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, block,
};
use hairpin_core::l7::config::{Action, Http};
use hairpin_core::l7::splice::Refused;
use hairpin_https::CoreReading;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;

/// Waits until the counters are so.
async fn until(site: &Site, what: &str, is_so: impl Fn(&CoreReading) -> bool) {
    for _ in 0..600 {
        if is_so(&site.counted()) {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("not so in half a minute: {what}: {:?}", site.counted().statistics);
}

/// A server that takes requests and answers none.
async fn silent() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    address
}

fn replying(body: &[u8]) -> Http {
    let mut http = http();
    http.routes[0].action = Action::Reply { status: 200, body: body.into() };
    http
}

#[test]
fn client_that_answers_no_ping_is_closed_after_goaway() {
    block_on(async {
        let mut http = http();
        http.limits.idle_timeout = Duration::from_millis(100);
        let site = Site::new(http, server().await);
        let mut client = Frames::open(&site, &[]).await;
        client.send(HEADERS, END_HEADERS | END_STREAM, 1, &block("GET", "/bytes/1", &[])).await;
        assert_eq!(client.next_of(GOAWAY).await.unwrap().code(), 0);
        // It goes on as if it had not been told to go.
        for stream in (3..).step_by(2) {
            let request = block("GET", "/bytes/1", &[]);
            if client.try_send(HEADERS, END_HEADERS | END_STREAM, stream, &request).await.is_err() {
                break;
            }
            sleep(Duration::from_millis(300)).await;
        }
        until(&site, "closed", |core| core.statistics.http.client_conns_now == 0).await;
        let counted = site.counted().statistics;
        assert_eq!(counted.http2_unclosed, 1);
        assert!(counted.http2_refused_streams > 0);
    });
}

#[test]
fn client_that_never_reads_is_closed() {
    block_on(async {
        let mut http = http();
        http.limits.send_timeout = Duration::from_millis(500);
        let site = Site::new(http, server().await);
        let mut client = Frames::open(&site, &[(INITIAL_WINDOW_SIZE, i32::MAX as u32)]).await;
        client.send(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()).await;
        for at in 0..100 {
            client.send(HEADERS, END_HEADERS | END_STREAM, 2 * at + 1, &block("GET", "/bytes/64000", &[])).await;
        }
        until(&site, "closed", |core| core.statistics.http.client_conns_now == 0).await;
        assert!(site.counted().statistics.http.refused[Refused::SendTimeout as usize] > 0);
    });
}

#[test]
fn header_block_that_does_not_end_closes_the_connection() {
    block_on(async {
        let mut http = http();
        http.limits.head_timeout = Duration::from_millis(300);
        let site = Site::new(http, server().await);
        let mut client = Frames::open(&site, &[]).await;
        client.sync().await;
        client.send(HEADERS, END_STREAM, 1, &block("GET", "/bytes/1", &[])).await;
        assert_eq!(client.next_of(GOAWAY).await.unwrap().code(), CALM);
        drop(client);
        until(&site, "closed", |core| core.statistics.http.client_conns_now == 0).await;
        assert_eq!(site.counted().statistics.http2_slow, 1);
    });
}

#[test]
fn own_reply_for_which_there_is_no_window_is_given_up() {
    block_on(async {
        let mut http = replying(b"some text");
        http.limits.send_timeout = Duration::from_millis(300);
        let site = Site::new(http, server().await);
        let mut client = Frames::open(&site, &[(INITIAL_WINDOW_SIZE, 0)]).await;
        client.send(HEADERS, END_HEADERS | END_STREAM, 1, &block("GET", "/", &[])).await;
        assert_eq!(client.next_of(RST_STREAM).await.unwrap().stream, 1);
        assert_eq!(site.counted().statistics.http.refused[Refused::SendTimeout as usize], 1);
    });
}

#[test]
fn stream_reset_before_its_response_frees_the_backend() {
    block_on(async {
        let site = Site::new(http(), silent().await);
        let mut client = Frames::open(&site, &[]).await;
        client.send(HEADERS, END_HEADERS | END_STREAM, 1, &block("GET", "/", &[])).await;
        until(&site, "at the backend", |core| core.statistics.http.backend_conns_now == 1).await;
        client.send(RST_STREAM, 0, 1, &8_u32.to_be_bytes()).await;
        until(&site, "freed", |core| core.statistics.http.backend_conns_now == 0).await;
        let counted = site.counted().statistics;
        assert_eq!((counted.http2_resets, counted.http.client_conns_now), (1, 1));
        assert_eq!(counted.backends[0].faults, [0; 3], "no fault of the backend");
    });
}

#[test]
fn closed_connection_ends_its_exchanges() {
    block_on(async {
        let site = Site::new(http(), silent().await);
        let mut client = Frames::open(&site, &[]).await;
        for stream in [1, 3, 5] {
            client.send(HEADERS, END_HEADERS | END_STREAM, stream, &block("GET", "/", &[])).await;
        }
        until(&site, "at the backend", |core| core.statistics.http.backend_conns_now == 3).await;
        drop(client);
        until(&site, "freed", |core| core.statistics.http.backend_conns_now == 0).await;
        until(&site, "closed", |core| core.statistics.http.client_conns_now == 0).await;
    });
}

#[test]
fn streams_in_place_of_reset_ones_are_not_refused() {
    block_on(async {
        let site = Site::new(http(), silent().await);
        let mut client = Frames::open(&site, &[]).await;
        for at in 0..100 {
            client.send(HEADERS, END_HEADERS | END_STREAM, 2 * at + 1, &block("GET", "/", &[])).await;
        }
        until(&site, "at the backend", |core| core.statistics.http.backend_conns_now == 100).await;
        let mut all = Vec::new();
        for at in 0..90 {
            all.extend(crate::frames::frame(RST_STREAM, 0, 2 * at + 1, &8_u32.to_be_bytes()));
            let block = block("GET", "/", &[]);
            all.extend(crate::frames::frame(HEADERS, END_HEADERS | END_STREAM, 2 * at + 201, &block));
        }
        client.0.write_all(&all).await.unwrap();
        let asked = |core: &CoreReading| core.statistics.backends[0].connections == 190;
        until(&site, "at the backend", |core| asked(core) && core.statistics.http.backend_conns_now == 100).await;
        assert_eq!(site.counted().statistics.http2_refused_streams, 0);
        client.send(HEADERS, END_HEADERS | END_STREAM, 1001, &block("GET", "/", &[])).await;
        assert_eq!(client.next_of(RST_STREAM).await.unwrap().code(), 7);
        assert_eq!(site.counted().statistics.http2_refused_streams, 1);
    });
}

#[test]
fn streams_that_a_client_breaks_count_as_reset() {
    block_on(async {
        let site = Site::new(http(), silent().await);
        let mut client = Frames::open(&site, &[]).await;
        for at in 0..150 {
            // A window of too many bytes is an error of the stream.
            let headers = crate::frames::frame(HEADERS, END_HEADERS | END_STREAM, 2 * at + 1, &block("GET", "/", &[]));
            let update = crate::frames::frame(WINDOW_UPDATE, 0, 2 * at + 1, &i32::MAX.to_be_bytes());
            if client.0.write_all(&[headers, update].concat()).await.is_err()
                || client.next_of(RST_STREAM).await.is_none()
            {
                break;
            }
        }
        drop(client);
        until(&site, "closed", |core| core.statistics.http.client_conns_now == 0).await;
        let counted = site.counted().statistics;
        assert_eq!((counted.http2_resets_excessive, counted.http.backend_conns_now), (1, 0));
    });
}

#[test]
fn resets_beyond_a_rate_end_the_connection() {
    block_on(async {
        let site = Site::new(http(), silent().await);
        let mut client = Frames::open(&site, &[]).await;
        for at in 0..400 {
            let headers = crate::frames::frame(HEADERS, END_HEADERS | END_STREAM, 2 * at + 1, &block("GET", "/", &[]));
            let ping = crate::frames::frame(PING, 0, 0, &[0; 8]);
            if client.0.write_all(&[headers, ping].concat()).await.is_err() || client.next_of(PING).await.is_none() {
                break;
            }
            if client.try_send(RST_STREAM, 0, 2 * at + 1, &8_u32.to_be_bytes()).await.is_err() {
                break;
            }
        }
        drop(client);
        until(&site, "closed", |core| core.statistics.http.client_conns_now == 0).await;
        let counted = site.counted().statistics;
        assert_eq!(counted.http2_resets_excessive, 1);
        assert!(counted.http2_resets <= 120, "{}", counted.http2_resets);
        assert_eq!(counted.http.backend_conns_now, 0);
    });
}

#[test]
fn resets_of_streams_that_others_outnumber_are_no_excess() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut client = Frames::open(&site, &[]).await;
        client.send(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()).await;
        for at in 0..150 {
            client.send(HEADERS, END_HEADERS | END_STREAM, 4 * at + 1, &block("GET", "/bytes/1", &[])).await;
            client.send(HEADERS, END_HEADERS, 4 * at + 3, &block("POST", "/echo", &[])).await;
            while client.next_of(DATA).await.unwrap().flags & END_STREAM == 0 {}
            client.send(RST_STREAM, 0, 4 * at + 3, &8_u32.to_be_bytes()).await;
        }
        client.sync().await;
        let counted = site.counted().statistics;
        assert_eq!((counted.http2_resets, counted.http2_resets_excessive), (150, 0));
    });
}

#[test]
fn floods_of_frames_that_ask_nothing_end_the_connection() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let kinds: [(u8, u8, u32, &[u8]); 6] = [
            (PING, 0, 0, &[0; 8]),
            (PING, 1, 0, &[0; 8]),
            (SETTINGS, 0, 0, &[]),
            (WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
            (PRIORITY, 0, 1, &[0, 0, 0, 0, 1]),
            (0x42, 0, 0, &[]),
        ];
        for (floods, (kind, flags, stream, payload)) in (1..).zip(kinds) {
            let mut client = Frames::open(&site, &[]).await;
            client.sync().await;
            let many = crate::frames::frame(kind, flags, stream, payload).repeat(1100);
            client.0.write_all(&many).await.unwrap();
            assert_eq!(client.next_of(GOAWAY).await.map(|frame| frame.code()), Some(CALM), "{kind}");
            drop(client);
            until(&site, "closed", |core| core.statistics.http.client_conns_now == 0).await;
            assert_eq!(site.counted().statistics.http2_floods, floods, "{kind}");
        }
    });
}

#[test]
fn flood_of_empty_data_ends_the_connection() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut client = Frames::open(&site, &[]).await;
        client.send(HEADERS, END_HEADERS, 1, &block("POST", "/echo", &[])).await;
        // Of nothing but padding: the h2 crate does not count these.
        let many = crate::frames::frame(DATA, 8, 1, &[3, 0, 0, 0]).repeat(1100);
        client.0.write_all(&many).await.unwrap();
        assert_eq!(client.next_of(GOAWAY).await.map(|frame| frame.code()), Some(CALM));
        drop(client);
        until(&site, "closed", |core| core.statistics.http.client_conns_now == 0).await;
        assert_eq!(site.counted().statistics.http2_floods, 1);
    });
}

#[test]
fn malformed_frames_and_streams_are_counted() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut client = Frames::open(&site, &[]).await;
        client.send(HEADERS, END_HEADERS | END_STREAM, 1, &block("GET", "/", &[("connection", "x")])).await;
        assert_eq!(client.next_of(RST_STREAM).await.unwrap().code(), 1);
        client.send(DATA, 0, 0, b"x").await;
        assert_eq!(client.next_of(GOAWAY).await.unwrap().code(), 1);
        let counted = site.counted().statistics;
        assert_eq!((counted.http2_malformed_streams, counted.http2_malformed), (1, 1));
    });
}

#[test]
fn requests_at_their_maximum_end_the_connection() {
    block_on(async {
        let mut http = http();
        http.limits.requests_max = 3;
        let site = Site::new(http, server().await);
        let mut client = Frames::open(&site, &[]).await;
        for stream in [1, 3, 5] {
            client.send(HEADERS, END_HEADERS | END_STREAM, stream, &block("GET", "/bytes/1", &[])).await;
        }
        assert_eq!(client.next_of(GOAWAY).await.unwrap().code(), 0);
        let ping = client.next_of(PING).await.unwrap();
        client.send(PING, 1, 0, &ping.payload).await;
        while client.next().await.is_some() {}
        assert_eq!(site.counted().statistics.http.requests, 3);
    });
}

#[test]
fn last_frames_reach_a_client_that_still_sends() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut client = Frames::open(&site, &[]).await;
        client.sync().await;
        client.send(DATA, 0, 0, b"x").await;
        for _ in 0..20 {
            sleep(Duration::from_millis(10)).await;
            client.send(0x42, 0, 0, &[0; 10_000]).await;
        }
        assert_eq!(client.next_of(GOAWAY).await.expect("no reset").code(), 1);
        client.0.read_to_end(&mut Vec::new()).await.expect("no reset");
    });
}
