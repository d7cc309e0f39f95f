//! The configuration file: read, checked as a whole, and turned into settings and the data plane's snapshot.
//!
//! Every mistake of a file is reported at once, each with its line and what would be right; a file with an error
//! changes nothing. [`mod@reference`] is the one place that names the fields.

mod check;
mod print;
mod problem;
mod reader;
pub mod reference;
mod service;

pub use print::{markdown, template};
pub use problem::{Problem, Problems, Severity};
pub(crate) use reader::nearest;

use hairpin_core::config::{Pool, Snapshot, Timeouts};
use problem::Sink;
use reader::{At, Table};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the configuration is unless `-c` says otherwise.
pub const DEFAULT_PATH: &str = "/etc/hairpin/hairpin.toml";
/// Services at most (`SERVICES_MAX` of `linux/bpf/hairpin.h`).
pub const SERVICES_MAX: usize = 1024;
/// Backends of all services at most (`BACKENDS_MAX` of `linux/bpf/hairpin.h`).
pub const BACKENDS_MAX: usize = 16_384;
/// Interfaces at most (`INTERFACES_MAX` of `linux/bpf/hairpin.h`).
pub const INTERFACES_MAX: usize = 64;
/// Pool addresses at most.
pub const POOL_ADDRESSES_MAX: usize = 256;
/// Bytes of a configuration file at most.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Which connections are offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyChoice {
    /// Every established one.
    Always,
    /// None.
    Never,
}

impl PolicyChoice {
    /// Its word in the file.
    pub fn name(self) -> &'static str {
        match self {
            PolicyChoice::Always => "always",
            PolicyChoice::Never => "never",
        }
    }
}

/// What is done about IP forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardingChoice {
    /// Refuse to start where it is off.
    Check,
    /// Switch it on, and back at the end.
    Enable,
}

/// What becomes of misses while no process is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenAbsent {
    /// The kernel gets them.
    Pass,
    /// Dropped and counted.
    Drop,
}

/// How the BPF programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// tcx if the kernel has it, else clsact.
    Auto,
    /// clsact.
    Clsact,
}

/// Settings of the linux plane.
#[derive(Clone, Debug)]
pub struct LinuxSettings {
    /// IP forwarding.
    pub forwarding: ForwardingChoice,
    /// Misses while no process is alive.
    pub when_absent: WhenAbsent,
    /// After what silence the process counts as dead.
    pub heartbeat_timeout: Duration,
    /// Unknown client packets per second, CPU and service that are always admitted.
    pub policer_floor: u32,
    /// Unknown client packets per second, CPU and service that are admitted at most.
    pub policer_ceiling: u32,
    /// Unknown packets from backends per second, CPU and service.
    pub policer_backend: u32,
    /// Bound of a hand-over.
    pub handover_bound: Duration,
    /// Packets that may wait in a worker's device.
    pub tap_queue: u32,
    /// How programs are attached.
    pub attach: Attach,
    /// Where objects are pinned; the instance's own directory is below it.
    pub pin_directory: PathBuf,
}

/// All of the file that is not the data plane's snapshot.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The instance's name.
    pub instance: String,
    /// The interfaces, in the order of the file; their position is their slot.
    pub interfaces: Vec<String>,
    /// Worker threads; `None`: one for each core.
    pub workers: Option<u16>,
    /// Connections of all workers.
    pub connections_max: u32,
    /// Rules for each address family.
    pub rules_max: u32,
    /// Which connections are offloaded.
    pub policy: PolicyChoice,
    /// Where the socket and the lock file are.
    pub control_directory: PathBuf,
    /// The linux plane's.
    pub linux: LinuxSettings,
}

impl Settings {
    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        socket_path(&self.control_directory, &self.instance)
    }
}

/// The control socket of an instance.
pub fn socket_path(directory: &Path, instance: &str) -> PathBuf {
    directory.join(format!("{instance}.sock"))
}

/// A file's meaning.
#[derive(Clone, Debug)]
pub struct Config {
    /// The instance's settings.
    pub settings: Settings,
    /// What the workers need.
    pub snapshot: Snapshot,
    /// What the file says but probably does not mean.
    pub warnings: Vec<Problem>,
}

/// Reads the file at `path`.
///
/// # Errors
/// All of the file's mistakes, or that it cannot be read.
pub fn load(path: &Path) -> Result<Config, Problems> {
    let read = || -> std::io::Result<String> {
        let bytes = std::fs::metadata(path)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(std::io::Error::other(format!("it has {bytes} bytes, more than {FILE_BYTES_MAX}")));
        }
        std::fs::read_to_string(path)
    };
    let text = read().map_err(|error| Problems::unreadable(path, &error))?;
    parse(&path.display().to_string(), &text)
}

/// Reads `text`; `file` names it in messages.
///
/// # Errors
/// All of its mistakes.
pub fn parse(file: &str, text: &str) -> Result<Config, Problems> {
    let sink = Sink::new(file, text);
    let (document, syntax_errors) = toml::de::DeTable::parse_recoverable(text);
    for error in &syntax_errors {
        sink.error(&error.span().unwrap_or(0..0), error.message(), "");
    }
    // A broken document reads as one with fields missing, which would only hide the cause.
    let read = if syntax_errors.is_empty() { read(&sink, document.get_ref()) } else { None };
    let problems = sink.into_problems();
    match read {
        Some((settings, snapshot)) if problems.iter().all(|problem| problem.severity == Severity::Warning) => {
            Ok(Config { settings, snapshot, warnings: problems })
        }
        _ => Err(Problems(problems)),
    }
}

fn read<'a>(sink: &'a Sink<'a>, document: &'a toml::de::DeTable<'a>) -> Option<(Settings, Snapshot)> {
    let top = Table::root(sink, &reference::TOP, document);
    let limits = top.table("limits", &reference::LIMITS);
    let offload = top.table("offload", &reference::OFFLOAD);
    let control = top.table("control", &reference::CONTROL);
    let timeouts = read_timeouts(&top.table("timeouts", &reference::TIMEOUTS));
    top.choice("plane", &[()]);

    let instance = top.name("instance");
    let interfaces = read_interfaces(sink, &top);
    let policy = offload.choice("policy", &[PolicyChoice::Always, PolicyChoice::Never]);
    let control_directory = absolute_path(sink, &control, "directory");
    let linux = read_linux(sink, &top.table("linux", &reference::LINUX));
    let pool = read_pool(sink, &top.table("pool", &reference::POOL));
    let services = service::read(sink, &top, &timeouts);
    check::services(sink, &services, &pool);
    check::pool(sink, &services, &pool);

    let settings = Settings {
        instance: instance?.value,
        interfaces,
        workers: top.integer("workers").and_then(|workers| u16::try_from(workers).ok()),
        connections_max: number(&limits, "connections_max"),
        rules_max: number(&limits, "rules_max"),
        policy: policy?,
        control_directory: control_directory?,
        linux: linux?,
    };
    let snapshot = Snapshot::new(service::numbered(services), pool.value);
    Some((settings, snapshot))
}

fn number(table: &Table<'_>, name: &str) -> u32 {
    table.integer(name).and_then(|number| u32::try_from(number).ok()).unwrap_or(u32::MAX)
}

fn read_timeouts(table: &Table<'_>) -> Timeouts {
    Timeouts {
        tcp_handshake: table.duration("tcp_handshake"),
        tcp_established: table.duration("tcp_established"),
        tcp_half_closed: table.duration("tcp_half_closed"),
        tcp_closed: table.duration("tcp_closed"),
        tcp_reset: table.duration("tcp_reset"),
        udp_new: table.duration("udp_new"),
        udp_established: table.duration("udp_established"),
    }
}

/// Syntax only: whether they exist is seen at the start, on the machine that runs them.
fn read_interfaces(sink: &Sink<'_>, top: &Table<'_>) -> Vec<String> {
    if !top.has("interfaces") {
        top.missing("interfaces");
        return Vec::new();
    }
    let names = top.texts("interfaces");
    for (index, name) in names.iter().enumerate() {
        let text = &name.value;
        let illegal = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
        if text.is_empty() || text.len() > 15 || text == "." || text == ".." || text.chars().any(illegal) {
            let what = format!("\"{text}\" cannot be the name of an interface");
            sink.error(&name.span, what, "names have 1 to 15 characters, none of them `/`, `:` or a space");
        } else if text == "lo" {
            let remedy = "name the interfaces that face clients and backends";
            sink.error(&name.span, "the loopback interface carries no packets of other hosts", remedy);
        } else if names[..index].iter().any(|earlier| earlier.value == *text) {
            sink.error(&name.span, format!("interface \"{text}\" is named twice"), "leave one out");
        }
    }
    let span = top.span_of("interfaces");
    let none = top.given("interfaces").is_some_and(reader::is_empty_list);
    if none {
        sink.error(&span, "`interfaces` names none", "name the interfaces that face clients and backends");
    } else if names.len() > INTERFACES_MAX {
        sink.error(&span, format!("{} interfaces", names.len()), format!("name {INTERFACES_MAX} at most"));
    }
    names.into_iter().map(|name| name.value).collect()
}

fn read_linux(sink: &Sink<'_>, table: &Table<'_>) -> Option<LinuxSettings> {
    let forwarding = table.choice("forwarding", &[ForwardingChoice::Check, ForwardingChoice::Enable]);
    let when_absent = table.choice("when_absent", &[WhenAbsent::Pass, WhenAbsent::Drop]);
    let attach = table.choice("attach", &[Attach::Auto, Attach::Clsact]);
    let pin_directory = absolute_path(sink, table, "pin_directory");
    let policer_floor = number(table, "policer_floor");
    let policer_ceiling = number(table, "policer_ceiling");
    if policer_floor > policer_ceiling {
        let given = if table.has("policer_ceiling") { "policer_ceiling" } else { "policer_floor" };
        let what = format!("`policer_ceiling` ({policer_ceiling}) is below `policer_floor` ({policer_floor})");
        sink.error(&table.span_of(given), what, "the rate moves between them: lower the one or raise the other");
    }
    Some(LinuxSettings {
        heartbeat_timeout: table.duration("heartbeat_timeout"),
        policer_floor,
        policer_ceiling,
        policer_backend: number(table, "policer_backend"),
        handover_bound: table.duration("handover_bound"),
        tap_queue: number(table, "tap_queue"),
        forwarding: forwarding?,
        when_absent: when_absent?,
        attach: attach?,
        pin_directory: pin_directory?,
    })
}

fn absolute_path(sink: &Sink<'_>, table: &Table<'_>, name: &str) -> Option<PathBuf> {
    let text = table.text(name)?;
    let path = PathBuf::from(&text.value);
    if path.is_absolute() && !text.value.contains('\0') {
        return Some(path);
    }
    let what = format!("`{name}` is \"{}\", not an absolute path", text.value);
    sink.error(&text.span, what, "start it with `/`");
    None
}

fn read_pool(sink: &Sink<'_>, table: &Table<'_>) -> At<Pool> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for text in table.texts("addresses") {
        let usable = match text.value.parse::<IpAddr>() {
            Ok(address) => reader::unicast(address).map(|()| address),
            Err(_) => {
                Err("is not an IP address; write \"10.0.2.1\" or \"fd00::1\", without port or prefix".to_string())
            }
        };
        match usable {
            Ok(address) if addresses.contains(&address) => {
                sink.error(&text.span, format!("pool address {address} is named twice"), "leave one out");
            }
            Ok(address) => addresses.push(address),
            Err(wrong) => sink.error(&text.span, format!("pool address \"{}\" {wrong}", text.value), ""),
        }
    }
    let span = table.span_of("addresses");
    if addresses.len() > POOL_ADDRESSES_MAX {
        sink.error(&span, format!("{} pool addresses", addresses.len()), format!("name {POOL_ADDRESSES_MAX} at most"));
    }
    let (port_first, port_last) = read_ports(sink, table).unwrap_or((1024, 65_535));
    let pool = Pool {
        addresses: addresses.into_iter().map(Into::into).collect(),
        port_first,
        port_last,
        time_wait: table.duration("time_wait"),
    };
    At { value: pool, span }
}

fn read_ports(sink: &Sink<'_>, table: &Table<'_>) -> Option<(u16, u16)> {
    let text = table.text("ports")?;
    let ends = text
        .value
        .split_once('-')
        .and_then(|(first, last)| Some((first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?)));
    let what = format!("`ports` is \"{}\"", text.value);
    match ends {
        Some((first, last)) if first > last => {
            sink.error(&text.span, what, format!("the first port comes first: \"{last}-{first}\""));
        }
        Some((first, _)) if first < 1024 => {
            sink.error(&text.span, what, "use ports from 1024 on: those below belong to services");
        }
        Some(ends) => return Some(ends),
        None => sink.error(&text.span, what, "write first and last port, such as \"16384-28671\""),
    }
    None
}
