//! Checks by gRPC: a call of `grpc.health.v1.Health/Check` (the gRPC health checking protocol), and checks by HTTP/2 at all.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http2;
use hyper::{HeaderMap, Request, Response, Version, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncWrite};

use super::probe::{BODY_BYTES_MAX, CheckFailure, CheckOutcome, HEAD_BYTES_MAX, Unclosed, alongside, http_failure};

/// The call, as a path (the gRPC protocol over HTTP/2, `Path`).
const PATH: &str = "/grpc.health.v1.Health/Check";
/// `SERVING` of `HealthCheckResponse.ServingStatus`.
const SERVING: u64 = 1;

/// Asks the server at `address` for the health of `service`; empty: of all of it.
pub(super) async fn grpc(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    scheme: &str,
    address: SocketAddr,
    service: &str,
) -> CheckOutcome {
    let request = Request::post(format!("{scheme}://{address}{PATH}"))
        .version(Version::HTTP_2)
        .header(header::CONTENT_TYPE, "application/grpc+proto")
        .header(header::TE, "trailers")
        .header(header::USER_AGENT, "hairpin-health")
        .body(Full::new(message(service)))
        .map_err(|error| CheckFailure::Local(format!("the request cannot be made: {error}")))?;
    by_http2(stream, request, judge).await
}

/// Sends a request by HTTP/2, and has its response judged.
pub(super) async fn by_http2<B, F>(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<B>,
    judge: impl FnOnce(Response<Incoming>) -> F,
) -> CheckOutcome
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    F: Future<Output = CheckOutcome>,
{
    let mut client = http2::Builder::new(TokioExecutor::new());
    client.max_header_list_size(HEAD_BYTES_MAX as u32);
    let (mut sender, connection) =
        client.handshake(TokioIo::new(Unclosed(stream))).await.map_err(|error| http_failure(&error))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| http_failure(&error))?;
        judge(response).await
    };
    alongside(exchange, connection).await
}

/// A `HealthCheckRequest` whose field 1 is `service`, behind its length (the gRPC protocol over HTTP/2,
/// `Length-Prefixed-Message`).
fn message(service: &str) -> Bytes {
    let mut request = Vec::new();
    if !service.is_empty() {
        // Field 1, of the kind that has a length.
        request.push(0x0a);
        put_varint(&mut request, service.len() as u64);
        request.extend_from_slice(service.as_bytes());
    }
    let mut message = vec![0];
    message.extend_from_slice(&(request.len() as u32).to_be_bytes());
    message.extend_from_slice(&request);
    message.into()
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

async fn judge(response: Response<Incoming>) -> CheckOutcome {
    let failed = |text: String| Err(CheckFailure::Backend(text));
    if response.status() != 200 {
        return failed(format!("HTTP status {}, where gRPC has 200", response.status().as_u16()));
    }
    // The status of a call that fails at once is in the head.
    let mut status = status_of(response.headers());
    let (mut body, mut read) = (response.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        match frame.map_err(|error| http_failure(&error))?.into_data() {
            Ok(data) if read.len() + data.len() <= BODY_BYTES_MAX => read.extend_from_slice(&data),
            Ok(_) => return failed(format!("the answer has more than {BODY_BYTES_MAX} bytes")),
            Err(frame) => status = frame.trailers_ref().and_then(status_of),
        }
    }
    match status {
        Some(0) => {}
        Some(5) => return failed("the gRPC server does not know the service (status 5)".into()),
        Some(12) => return failed("the gRPC server has no health service (status 12)".into()),
        Some(status) => return failed(format!("gRPC status {status}")),
        None => return failed("the answer has no gRPC status".into()),
    }
    match serving_status(&read) {
        Some(SERVING) => Ok("gRPC: serving".into()),
        Some(_) => failed("gRPC: not serving".into()),
        None => failed("the answer is no message of gRPC's health service".into()),
    }
}

fn status_of(fields: &HeaderMap) -> Option<u16> {
    fields.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// Field 1 of the `HealthCheckResponse` behind its length. `None`: there is no such message, uncompressed and whole.
fn serving_status(read: &[u8]) -> Option<u64> {
    let (prefix, mut message) = read.split_at_checked(5)?;
    let length = u32::from_be_bytes(prefix[1..].try_into().ok()?) as usize;
    if prefix[0] != 0 || message.len() != length {
        return None;
    }
    // What a message does not say is 0: `UNKNOWN`.
    let mut status = 0;
    while !message.is_empty() {
        let key = take_varint(&mut message)?;
        match key & 7 {
            0 => {
                let value = take_varint(&mut message)?;
                if key >> 3 == 1 {
                    status = value;
                }
            }
            1 => message = message.get(8..)?,
            2 => {
                let length = usize::try_from(take_varint(&mut message)?).ok()?;
                message = message.get(length..)?;
            }
            5 => message = message.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

/// A number of protocol buffers: seven bits a byte, the lowest first.
fn take_varint(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn request_names_the_service() {
        assert_eq!(&message("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&message("a.B")[..], b"\0\0\0\0\x05\x0a\x03a.B");
        assert_eq!(&message(&"x".repeat(300))[..8], b"\0\0\0\x01\x2f\x0a\xac\x02");
    }

    #[test]
    fn only_a_whole_response_says_that_it_serves() {
        assert_eq!(serving_status(b"\0\0\0\0\x02\x08\x01"), Some(1));
        assert_eq!(serving_status(b"\0\0\0\0\x02\x08\x02"), Some(2));
        assert_eq!(serving_status(b"\0\0\0\0\0"), Some(0));
        // Fields of later versions are passed over.
        assert_eq!(serving_status(b"\0\0\0\0\x07\x12\x03abc\x08\x01"), Some(1));
        for wrong in
            [&b""[..], b"\0\0\0\0\x02\x08", b"\x01\0\0\0\x02\x08\x01", b"\0\0\0\0\x01\x08", b"\0\0\0\0\x02\x0b\x01"]
        {
            assert_eq!(serving_status(wrong), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_stops_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = serving_status(&bytes);
        }
    }
}
