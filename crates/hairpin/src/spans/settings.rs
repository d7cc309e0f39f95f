//! What the configuration says of tracing.

use hairpin_core::l7::trace::{Parents, SAMPLE_ALL, Tracing};
use hyper::Uri;
use hyper::header::HeaderMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Settings of tracing.
#[derive(Clone, Debug, PartialEq)]
pub struct TracingSettings {
    /// Where spans go.
    pub collector: CollectorSettings,
    /// `service.name` of their resource.
    pub service_name: String,
    /// Spans that may wait for their export.
    pub queue: usize,
    /// The share of traces that begin here whose spans are exported: 0 to 1.
    pub sample: f64,
    /// Whose `traceparent` is believed.
    pub parents: Parents,
}

impl TracingSettings {
    /// What the data plane is told.
    pub(crate) fn data_plane(&self) -> Tracing {
        Tracing { parents: self.parents, sample: (self.sample * SAMPLE_ALL as f64) as u64 }
    }
}

/// How the collector is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorSettings {
    /// The URL that spans are posted to.
    pub endpoint: Endpoint,
    /// Headers of these requests. Their values are marked as sensitive, so that nothing prints them.
    pub headers: HeaderMap,
    /// The file that the headers come from.
    pub headers_file: Option<PathBuf>,
    /// The CAs that sign the certificate of an `https` endpoint, in PEM.
    pub roots: PathBuf,
    /// From the look-up of the collector's name until its answer is complete.
    pub timeout: Duration,
}

/// The URL of a collector, without user, query and fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// It is `https`.
    pub is_tls: bool,
    /// A name or an address; one of IPv6 in brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path.
    pub path: String,
}

/// The path of OTLP's specification, where the URL has none.
const DEFAULT_PATH: &str = "/v1/traces";
/// Bytes of a URL at most.
const URL_BYTES_MAX: usize = 512;

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        // They may be secrets, which do not stand in a configuration and are not repeated.
        if text.contains(['@', '?', '#']) {
            return Err("the URL has a user, a query or a fragment".to_owned());
        }
        let url: Uri = text.parse().map_err(|_| format!("\"{text}\" is no URL"))?;
        let is_tls = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(format!("\"{text}\" begins with neither http:// nor https://")),
        };
        let authority = url.authority().map_or("", |authority| authority.as_str());
        let host = url.host().unwrap_or_default();
        if host.is_empty() || text.len() > URL_BYTES_MAX {
            return Err(format!("the URL names no host, or has more than {URL_BYTES_MAX} bytes"));
        }
        let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        if port == 0 || (url.port().is_none() && authority.len() > host.len()) {
            return Err(format!("\"{text}\" has no port from 1 to 65535"));
        }
        let path = match url.path() {
            "" | "/" => DEFAULT_PATH,
            path => path,
        };
        Ok(Endpoint { is_tls, host: host.to_owned(), port, path: path.to_owned() })
    }
}

impl Endpoint {
    /// Host and port, as a request names them.
    pub(super) fn authority(&self) -> String {
        match (self.is_tls, self.port) {
            (false, 80) | (true, 443) => self.host.clone(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_with_the_default_path_of_otlp() {
        let said = |text: &str| text.parse::<Endpoint>().map(|endpoint| endpoint.to_string());
        for (text, shown) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("https://otlp.example.com/api/v1/traces", "https://otlp.example.com/api/v1/traces"),
            ("https://otlp.example.com:443", "https://otlp.example.com/v1/traces"),
            ("http://collector:80", "http://collector/v1/traces"),
        ] {
            assert_eq!(said(text).as_deref(), Ok(shown));
        }
        let wrong = ["collector:4318", "grpc://c:4317", "http://", "http://u:p@c", "http://c/?key=1", "http://c:x", ""];
        for text in wrong.into_iter().chain(["http://c:0", "http://c:99999", "http://c/#a"]) {
            assert!(said(text).is_err(), "{text}");
        }
    }
}
