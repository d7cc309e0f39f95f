//! Connections that come to their end because the process or the service does.

use crate::fixture::{Site, block_on, http, server};
use hairpin_https::ListedConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[test]
fn idle_http1_connection_is_closed_by_draining() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut stream = site.connect(&[]).await;
        stream.write_all(b"GET /bytes/1 HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut read = [0; 1000];
        assert_ne!(stream.read(&mut read).await.unwrap(), 0);
        site.runtimes.drain();
        assert_eq!(stream.read(&mut read).await.unwrap(), 0, "closed, and by close_notify");
        let refused = TcpStream::connect(site.address).await;
        assert!(refused.is_err(), "nothing is accepted any more");
    });
}

#[test]
fn request_under_way_is_finished_while_draining() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut stream = site.connect(&[]).await;
        stream.write_all(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n01234").await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        site.runtimes.drain();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        stream.write_all(b"56789GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        let text = String::from_utf8_lossy(&all);
        assert!(text.contains("\r\n\r\n0123456789"), "{text}");
    });
}

#[test]
fn http2_client_is_told_to_go_and_its_streams_end() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut client = site.http2().await;
        let request = http::Request::get("https://web.test/bytes/3000000").body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let response = response.await.unwrap();
        site.runtimes.drain();
        let mut stream = response.into_body();
        let mut length = 0;
        while let Some(data) = stream.data().await {
            let data = data.unwrap();
            length += data.len();
            let _ = stream.flow_control().release_capacity(data.len());
        }
        assert_eq!(length, 3_000_000);
        assert!(client.ready().await.is_err(), "GOAWAY");
        for _ in 0..100 {
            if site.counted().statistics.http.client_conns_now == 0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        panic!("the connection is still there");
    });
}

#[test]
fn aborted_service_breaks_its_connections_off() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut stream = site.connect(&[]).await;
        assert_eq!(site.counted().statistics.http.client_conns_now, 1);
        site.runtimes.abort(&[1]);
        assert_eq!(site.counted().statistics.http.client_conns_now, 1);
        site.runtimes.abort(&[0]);
        let mut read = [0; 10];
        assert!(stream.read(&mut read).await.is_err(), "without close_notify");
        assert_eq!(site.counted().statistics.http.client_conns_now, 0);
    });
}

#[test]
fn requests_at_an_ended_backend_are_broken_off() {
    block_on(async {
        // It takes connections and never answers.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let site = Site::new(http(), silent.local_addr().unwrap());
        let mut one = site.connect(&[]).await;
        one.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut two = site.http2().await;
        let request = http::Request::get("https://web.test/").body(()).unwrap();
        let (response, _) = two.send_request(request, true).unwrap();
        let mut taken = Vec::new();
        for _ in 0..2 {
            taken.push(silent.accept().await.unwrap());
        }
        site.runtimes.end_backends(&[1]);
        // The kernel accepts a connection before the runtime knows of it.
        while site.counted().statistics.backends[0].open_now < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        site.runtimes.end_backends(&[0]);
        let mut read = [0; 10];
        assert!(one.read(&mut read).await.is_err(), "without close_notify");
        assert!(response.await.unwrap_err().is_reset());
        assert!(two.ready().await.is_ok(), "other streams go on");
        assert_eq!(site.counted().statistics.backends[0].open_now, 0);
    });
}

#[test]
fn connections_are_listed_with_what_they_do() {
    block_on(async {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let site = Site::new(http(), silent.local_addr().unwrap());
        let mut one = site.connect(&[]).await;
        one.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let _at_backend = silent.accept().await.unwrap();
        let _two = site.http2().await;
        // A client ends its handshake, and the kernel accepts a connection, before the runtime knows of it.
        let mut listed = Vec::new();
        while listed.len() < 2 || listed.iter().any(|one: &ListedConnection| one.protocol == "tls") {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            listed = site.runtimes.lister().list(0, 0).unwrap();
        }
        let seen: Vec<_> = listed.iter().map(|one| (one.protocol, one.backend, one.requests)).collect();
        assert_eq!(seen, [("http/1.1", Some(0), 1), ("h2", None, 0)]);
        assert_eq!(listed[0].vip.port, site.address.port());
        let rest = site.runtimes.lister().list(0, listed[0].key + 1).unwrap();
        assert_eq!(rest.len(), 1);
    });
}
