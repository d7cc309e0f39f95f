//! The words of the file for settings that are one of a few.

use super::{
    Attach, ChallengeChoice, CheckKind, ClientCertificates, ForwardingChoice, LogFormat, LogLevel, PolicyChoice,
    Resolve, SetUpChoice, TlsVersion, WhenAbsent,
};
use hairpin_core::config::{
    Algorithm, AllDown, BackendState, Encapsulation, Forwarding, Service, UnknownPacket, WhenFull,
};
use hairpin_core::flow::Protocol;
use hairpin_core::l7::config::Kind;
use hairpin_core::l7::trace::Parents;
use hairpin_core::limit::LimitAction;
use hairpin_core::offload::Combine;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A setting that has a word for each of its values.
pub trait SettingWord: Copy + PartialEq + 'static {
    /// Every value and its word.
    const WORDS: &'static [(Self, &'static str)];

    /// The word.
    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(value, _)| *value == self).map_or("?", |(_, word)| word)
    }

    /// The value of a word.
    fn from_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(_, known)| *known == word).map(|(value, _)| *value)
    }
}

/// How packets reach the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneChoice {
    /// The kernel's devices.
    Linux,
    /// DPDK's ports.
    Dpdk,
}

impl PlaneChoice {
    /// Its word in the file.
    pub fn name(self) -> &'static str {
        self.word()
    }

    /// Whether this program has it.
    pub fn is_built_in(self) -> bool {
        self == PlaneChoice::Linux || cfg!(feature = "dpdk")
    }
}

/// The protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Spoken {
    /// TCP, forwarded.
    Tcp,
    /// UDP, forwarded.
    Udp,
    /// HTTP/1.1 over TCP, and HTTP/2 where the service takes it.
    Http,
    /// HTTP/1.1 and HTTP/2 over TLS, which ends here.
    Https,
    /// TLS over TCP, passed through.
    Tls,
}

impl Spoken {
    /// The transport protocol below it.
    pub(super) fn transport(self) -> Protocol {
        if self == Spoken::Udp { Protocol::Udp } else { Protocol::Tcp }
    }

    /// Whether requests are routed one by one.
    pub(super) fn is_http(self) -> bool {
        matches!(self, Spoken::Http | Spoken::Https)
    }

    /// Whether it has routes: to groups, and its own backends.
    pub(super) fn has_routes(self) -> bool {
        self.is_http() || self == Spoken::Tls
    }
}

/// The protocol that backends speak.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum BackendProtocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2: over TLS where the backends speak TLS, else by prior knowledge.
    Http2,
}

/// The header that connections to backends begin with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Preface {
    /// No header.
    #[default]
    Off,
    /// The PROXY protocol, version 1.
    V1,
    /// The PROXY protocol, version 2.
    V2,
}

/// Whether a cookie is sent with requests that come from other sites.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum SameSite {
    /// If the client follows a link.
    #[default]
    Lax,
    /// Never.
    Strict,
    /// Always.
    None,
}

/// The decision of an access rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AccessAction {
    /// The request passes, the connection begins.
    Allow,
    /// It does not.
    Deny,
    /// The connection is counted as if it were refused.
    Count,
}

macro_rules! words {
    ($kind:ident { $($value:ident = $word:literal),+ $(,)? }) => {
        impl SettingWord for $kind {
            const WORDS: &'static [($kind, &'static str)] = &[$(($kind::$value, $word)),+];
        }
    };
}

words!(PlaneChoice { Linux = "linux", Dpdk = "dpdk" });
words!(PolicyChoice {
    Always = "always",
    Never = "never",
    FirstN = "first-n",
    HeavyHitter = "heavy-hitter",
    FastestFlow = "fastest-flow",
    DecisionTree = "decision-tree",
    Auto = "auto",
});
words!(SetUpChoice { Worker = "worker", Engine = "engine" });
words!(Combine { Any = "any", All = "all" });
words!(ForwardingChoice { Check = "check", Enable = "enable" });
words!(WhenAbsent { Drop = "drop", Pass = "pass", Serve = "serve" });
words!(Attach { Tc = "tc", Clsact = "clsact", Xdp = "xdp", Auto = "auto" });
words!(LogFormat { Text = "text", Json = "json" });
words!(LogLevel { Info = "info", Warning = "warning" });
words!(Parents { Trusted = "trusted", All = "all", None = "none" });
words!(Protocol { Tcp = "tcp", Udp = "udp" });
words!(Spoken { Tcp = "tcp", Udp = "udp", Http = "http", Https = "https", Tls = "tls" });
words!(TlsVersion { V12 = "1.2", V13 = "1.3" });
words!(ClientCertificates { Off = "off", Optional = "optional", Required = "required" });
words!(BackendProtocol { Http1 = "http/1.1", Http2 = "h2" });
words!(ChallengeChoice { Auto = "auto", Http01 = "http-01", TlsAlpn01 = "tls-alpn-01" });
words!(Preface { Off = "off", V1 = "v1", V2 = "v2" });
words!(SameSite { Lax = "lax", Strict = "strict", None = "none" });
words!(AccessAction { Allow = "allow", Deny = "deny", Count = "count" });
words!(LimitAction { Refuse = "refuse", Drop = "drop" });
words!(Forwarding { Nat = "nat", FullNat = "full-nat", Direct = "dsr" });
words!(Encapsulation { None = "none", Ipip = "ipip", Gue = "gue" });
words!(Algorithm {
    RoundRobin = "round-robin",
    WeightedRoundRobin = "weighted-round-robin",
    LeastConnections = "least-connections",
    PowerOfTwo = "power-of-two",
    Maglev = "maglev",
    SourceHash = "source-hash",
    HeaderHash = "header-hash",
    CookieHash = "cookie-hash",
    PathHash = "path-hash",
    LeastLatency = "least-latency",
});
words!(UnknownPacket { Drop = "drop", Reset = "reset", PickUp = "pick-up" });
words!(WhenFull { Drop = "drop", Reset = "reset" });
words!(Resolve { All = "all", One = "one" });
words!(AllDown { Refuse = "refuse", UseAll = "use-all" });
// `removed` is no word of the file: the reference does not list it.
words!(BackendState { Enabled = "enabled", Draining = "drain", Disabled = "disabled", Removed = "removed" });
words!(CheckKind { None = "none", Tcp = "tcp", Http = "http", Https = "https", Grpc = "grpc", Udp = "udp" });

/// The word for what a service speaks; for a group, that it is one.
pub(crate) fn spoken(service: &Service) -> &'static str {
    match service.kind {
        Kind::Http(_) => Spoken::Http.word(),
        Kind::Tls(ref tls) if tls.is_plain => Spoken::Tcp.word(),
        Kind::Tls(_) => Spoken::Tls.word(),
        Kind::Terminated(ref terminated) if terminated.tls => Spoken::Https.word(),
        Kind::Terminated(_) => Spoken::Http.word(),
        Kind::Forward => service.protocol.word(),
        Kind::Group => "group",
    }
}

/// A value that is kept as its word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Worded<T>(pub(crate) T);

impl<T: SettingWord> Serialize for Worded<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.word())
    }
}

impl<'de, T: SettingWord> Deserialize<'de> for Worded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Worded<T>, D::Error> {
        let word = String::deserialize(deserializer)?;
        let value = T::from_word(&word);
        value.map(Worded).ok_or_else(|| D::Error::custom(format!("{word:?} is none of the words for this")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::dpdk::{IdleMode, Pages, Probes};
    use super::super::reference::{self, ReferenceSection};
    use super::*;
    use hairpin_core::table::LookupMethod;

    fn agrees<T: SettingWord>(section: &ReferenceSection, name: &str) {
        let Some(reference::ValueForm::Choice(listed)) = section.field(name).map(|field| field.kind) else {
            panic!("{name}")
        };
        let listed: Vec<&str> = listed.iter().map(|(word, _)| *word).collect();
        let words: Vec<&str> = T::WORDS.iter().map(|(_, word)| *word).filter(|word| *word != "removed").collect();
        assert_eq!(listed, words, "{name}");
        for (value, word) in T::WORDS {
            assert!(value.word() == *word && T::from_word(word) == Some(*value), "{word}");
        }
    }

    #[test]
    fn words_are_those_of_the_reference() {
        agrees::<PlaneChoice>(&reference::TOP, "plane");
        agrees::<Pages>(&reference::DPDK, "pages");
        agrees::<IdleMode>(&reference::DPDK, "idle");
        agrees::<Probes>(&reference::DPDK, "health");
        agrees::<LookupMethod>(&reference::TOP, "connection_table");
        agrees::<PolicyChoice>(&reference::OFFLOAD, "policy");
        agrees::<SetUpChoice>(&reference::OFFLOAD, "set_up");
        agrees::<Combine>(&reference::OFFLOAD, "combine");
        agrees::<ForwardingChoice>(&reference::LINUX, "forwarding");
        agrees::<WhenAbsent>(&reference::LINUX, "when_absent");
        agrees::<WhenFull>(&reference::LIMITS, "when_full");
        agrees::<LogFormat>(&reference::LOG, "format");
        agrees::<LogLevel>(&reference::LOG, "level");
        agrees::<Parents>(&reference::TRACING, "parents");
        agrees::<Attach>(&reference::LINUX, "attach");
        agrees::<Forwarding>(&reference::SERVICE, "mode");
        agrees::<Encapsulation>(&reference::SERVICE, "encapsulation");
        agrees::<Algorithm>(&reference::SERVICE, "balance");
        agrees::<UnknownPacket>(&reference::SERVICE, "unknown");
        agrees::<AllDown>(&reference::SERVICE, "all_down");
        agrees::<BackendState>(&reference::BACKEND, "state");
        agrees::<Resolve>(&reference::BACKEND, "resolve");
        agrees::<CheckKind>(&reference::HEALTH, "check");
        agrees::<Spoken>(&reference::SERVICE, "protocol");
        agrees::<Algorithm>(&reference::GROUP, "balance");
        agrees::<AllDown>(&reference::GROUP, "all_down");
        agrees::<AccessAction>(&reference::ACCESS, "action");
        agrees::<LimitAction>(&reference::LIMIT, "action");
        agrees::<BackendProtocol>(&reference::SERVICE, "backend_protocol");
        agrees::<Preface>(&reference::HTTP, "proxy_protocol");
        agrees::<Preface>(&reference::TLS, "proxy_protocol");
        agrees::<Preface>(&reference::SERVICE, "proxy_protocol");
        agrees::<SameSite>(&reference::STICKY, "same_site");
        agrees::<TlsVersion>(&reference::HTTPS, "versions_min");
        agrees::<ChallengeChoice>(&reference::ACME, "challenge");
        agrees::<ClientCertificates>(&reference::HTTPS, "client_certificates");
    }
}
