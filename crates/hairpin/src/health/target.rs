//! The targets of health checks: the checker's configuration, and the limits that protect it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use hairpin_https::BackendTls;
use hairpin_linux::abi::CHECK_MARK;
use hyper::header::HeaderValue;
use hyper::{Method, Uri};

/// The shortest interval between two checks of one target.
pub const INTERVAL_MIN: Duration = Duration::from_millis(10);
/// The longest interval, timeout, retry or slow start.
pub const DURATION_MAX: Duration = Duration::from_secs(24 * 3600);
/// The most checks in a row that `rise`, `fall` or `passive.failures` may ask for.
pub const IN_A_ROW_MAX: u32 = 1000;
/// The longest text looked for in an answer, and the longest path or host name of a request, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;
/// The longest datagram sent as a check, in bytes: what fits an Ethernet frame with IPv6.
pub const DATAGRAM_BYTES_MAX: usize = 1452;
/// The most ranges of HTTP statuses in one check.
pub const STATUS_RANGES_MAX: usize = 32;

/// One backend of one service, and how its health is found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckTarget {
    /// The backend's stable number; no two targets share one.
    pub backend: u16,
    /// The service's name, for people.
    pub service: String,
    /// The backend's name, for people.
    pub name: String,
    /// The address to check; its port may differ from the port that connections go to.
    pub address: SocketAddr,
    /// Whether its service has direct server return, so that the check goes to the VIP, at the backend.
    pub direct: bool,
    /// The address that a socket is connected to in the backend's place, which is of another family than its VIP: for
    /// [`CheckTarget::direct`]. `None`: the backend's own.
    pub stand_in: Option<IpAddr>,
    /// The kind of check.
    pub check: Check,
    /// How the backend speaks TLS, for [`Check::Https`] and [`Check::Grpc`].
    pub tls: Option<BackendTls>,
    /// Whether the backend speaks HTTP/2, for [`Check::Http`] and [`Check::Https`].
    pub http2: bool,
    /// Successes in a row that bring a backend that is down up again, 1 to [`IN_A_ROW_MAX`].
    pub rise: u32,
    /// Failures in a row that take a backend that is up down, 1 to [`IN_A_ROW_MAX`].
    pub fall: u32,
    /// From one check to the next, [`INTERVAL_MIN`] to [`DURATION_MAX`]. A check that takes longer makes its
    /// successor wait for the next multiple.
    pub interval: Duration,
    /// For the whole of a check, from the first packet to the last byte looked at; 1 ms to [`DURATION_MAX`].
    pub timeout: Duration,
    /// How long a backend that was down takes to get its full share; zero: gets it at once.
    pub slow_start: Duration,
    /// Whether failing connections of clients count as well.
    pub passive: Option<Passive>,
}

/// An active check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// None; only [`CheckTarget::passive`] can take the backend down.
    None,
    /// A connection that is opened and reset at once.
    Tcp,
    /// A request without TLS.
    Http(HttpCheck),
    /// A request over TLS, as [`CheckTarget::tls`] says.
    Https(HttpCheck),
    /// A call of `grpc.health.v1.Health/Check`, over TLS if [`CheckTarget::tls`] says so.
    Grpc {
        /// The service that is asked for, up to [`TEXT_BYTES_MAX`] bytes; empty: the server as a whole.
        service: String,
    },
    /// A datagram that must be answered.
    Udp {
        /// The datagram to send, up to [`DATAGRAM_BYTES_MAX`] bytes; may be empty.
        send: Vec<u8>,
        /// Text that the first answer must contain; `None`: any answer will do.
        expect: Option<Vec<u8>>,
    },
}

/// The HTTP request of a check, and the conditions for its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpCheck {
    /// The method, such as `GET` or `HEAD`; any token but `CONNECT`.
    pub method: String,
    /// Path and query, beginning with `/`.
    pub path: String,
    /// The Host header; `None`: address and port.
    pub host: Option<String>,
    /// The statuses that are good. Redirects are not followed.
    pub status: StatusRanges,
    /// Text that the first 64 KiB of the body must contain; `None`: the body is not read.
    pub body: Option<String>,
}

/// When failing connections of clients take a backend down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passive {
    /// Failures in a row without a success in between, 1 to [`IN_A_ROW_MAX`].
    pub failures: u32,
    /// How long a backend without an active check stays down before it is tried again, [`INTERVAL_MIN`] to
    /// [`DURATION_MAX`]; it doubles, up to eight times, while the trials fail.
    pub retry: Duration,
}

/// A set of HTTP statuses, written `200-399` or `200,204,300-308`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRanges(Vec<RangeInclusive<u16>>);

impl StatusRanges {
    /// Whether `status` is in the set.
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

impl Default for StatusRanges {
    /// 200 to 399.
    fn default() -> Self {
        StatusRanges(vec![200..=399])
    }
}

impl FromStr for StatusRanges {
    type Err = anyhow::Error;

    /// # Errors
    /// The problem of the text, and the correct form.
    fn from_str(text: &str) -> Result<Self> {
        let status = |part: &str| -> Result<u16> {
            let number = part.trim().parse().ok().filter(|number| (100..=599).contains(number));
            number.with_context(|| format!("\"{}\" is no HTTP status; write a number from 100 to 599", part.trim()))
        };
        let mut ranges = Vec::new();
        for part in text.split(',') {
            ensure!(ranges.len() < STATUS_RANGES_MAX, "more than {STATUS_RANGES_MAX} ranges of statuses; join some");
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (status(first)?, status(last)?);
            ensure!(first <= last, "the range {first}-{last} is empty; write {last}-{first}");
            ranges.push(first..=last);
        }
        Ok(StatusRanges(ranges))
    }
}

impl fmt::Display for StatusRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl CheckTarget {
    /// The mark of the check's packets: by it the BPF programs know that they go to the VIP, at this backend
    /// (`crates/linux/bpf/check.h`).
    pub(super) fn mark(&self) -> Option<u32> {
        self.direct.then(|| CHECK_MARK | u32::from(self.backend))
    }

    /// What the check's socket is connected to.
    pub(super) fn peer(&self) -> SocketAddr {
        SocketAddr::new(self.stand_in.unwrap_or(self.address.ip()), self.address.port())
    }

    /// Whether something can bring this backend back once it is down.
    pub(super) fn can_return(&self) -> bool {
        self.check != Check::None || self.passive.is_some()
    }

    /// Checks every bound that the fields name.
    ///
    /// # Errors
    /// The first that does not hold, with the backend's name.
    pub fn validate(&self) -> Result<()> {
        self.validate_times()
            .and_then(|()| self.check.validate())
            .with_context(|| format!("health check of backend {} of service {}", self.name, self.service))
    }

    fn validate_times(&self) -> Result<()> {
        let long = humantime::format_duration(DURATION_MAX);
        let counts = 1..=IN_A_ROW_MAX;
        ensure!(self.address.port() != 0, "port 0 cannot be checked; give the port");
        ensure!(counts.contains(&self.rise), "rise is {}; allowed are 1 to {IN_A_ROW_MAX}", self.rise);
        ensure!(counts.contains(&self.fall), "fall is {}; allowed are 1 to {IN_A_ROW_MAX}", self.fall);
        let intervals = INTERVAL_MIN..=DURATION_MAX;
        ensure!(intervals.contains(&self.interval), "interval is {:?}; allowed are 10ms to {long}", self.interval);
        let timeouts = Duration::from_millis(1)..=DURATION_MAX;
        ensure!(timeouts.contains(&self.timeout), "timeout is {:?}; allowed are 1ms to {long}", self.timeout);
        ensure!(self.slow_start <= DURATION_MAX, "slow start is {:?}; allowed are 0s to {long}", self.slow_start);
        if let Some(Passive { failures, retry }) = self.passive {
            ensure!(counts.contains(&failures), "passive failures are {failures}; allowed are 1 to {IN_A_ROW_MAX}");
            ensure!(intervals.contains(&retry), "passive retry is {retry:?}; allowed are 10ms to {long}");
        }
        Ok(())
    }
}

impl Check {
    fn validate(&self) -> Result<()> {
        let check = match self {
            Check::None | Check::Tcp => return Ok(()),
            Check::Grpc { service } => {
                ensure!(
                    service.len() <= TEXT_BYTES_MAX,
                    "the name of the gRPC service has {} bytes; allowed are {TEXT_BYTES_MAX}",
                    service.len()
                );
                return Ok(());
            }
            Check::Udp { send, expect } => {
                ensure!(
                    send.len() <= DATAGRAM_BYTES_MAX,
                    "the datagram has {} bytes; allowed are {DATAGRAM_BYTES_MAX}",
                    send.len()
                );
                let expected = expect.as_ref().map_or(1, Vec::len);
                ensure!(
                    (1..=TEXT_BYTES_MAX).contains(&expected),
                    "the expected answer has {expected} bytes; allowed are 1 to {TEXT_BYTES_MAX}; leave it out \
                     to take any answer"
                );
                return Ok(());
            }
            Check::Http(check) | Check::Https(check) => check,
        };
        let HttpCheck { method, path, host, status: _, body } = check;
        let parsed = Method::from_bytes(method.as_bytes())
            .with_context(|| format!("\"{method}\" is no HTTP method; write GET or HEAD"))?;
        ensure!(parsed != Method::CONNECT, "CONNECT cannot be used for checks; write GET or HEAD");
        ensure!(
            path.starts_with('/') && path.len() <= TEXT_BYTES_MAX && path.parse::<Uri>().is_ok(),
            "\"{path}\" is no path of an HTTP request; write one that begins with / and has at most {TEXT_BYTES_MAX} \
             bytes, none of them a space"
        );
        if let Some(host) = host {
            let good = !host.is_empty() && host.len() <= TEXT_BYTES_MAX && HeaderValue::from_str(host).is_ok();
            ensure!(good, "{host:?} cannot be a Host header; write a host name, with a port if need be");
        }
        if let Some(body) = body {
            ensure!(
                (1..=TEXT_BYTES_MAX).contains(&body.len()),
                "the text expected in the body has {} bytes; allowed are 1 to {TEXT_BYTES_MAX}",
                body.len()
            );
            if parsed == Method::HEAD {
                bail!("an answer to HEAD has no body to look into; write GET");
            }
        }
        Ok(())
    }
}
