//! Where lines go. An output that fails is tried again after a while; lines that it does not take meanwhile are lost and
//! counted, so that nothing piles up.

use super::settings::{SyslogEnd, Target};
use crate::events::EventKind;
use crate::run::tell;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream, UdpSocket};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// How long an output that has failed is left alone.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Bytes of room for lines that are kept from one look at the rings to the next.
pub(super) const KEPT_BYTES_MAX: usize = 1 << 20;
/// How long a syslog server may take for a line over TCP.
const TCP_PATIENCE: Duration = Duration::from_millis(500);
/// How often it is looked whether the file is still the one at its path.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a failure is told at most.
pub(super) const TELL_EVERY: Duration = Duration::from_secs(60);
/// The facility local0, severity informational (RFC 5424, 6.2.1).
const PRIORITY: u32 = 16 * 8 + 6;

/// What has become of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) written: u64,
    pub(crate) lost: u64,
}

enum Opened {
    File { file: File, inode: u64, looked: Instant },
    StandardOutput,
    Unix(UnixDatagram),
    Udp(UdpSocket),
    Tcp(TcpStream),
}

/// One output.
pub(crate) struct Output {
    target: Target,
    /// Who writes to it, in messages.
    writer: &'static str,
    opened: Option<Opened>,
    /// Not to be opened before.
    closed_until: Option<Instant>,
    told: Option<Instant>,
    /// The file may end with a part of a line.
    is_torn: bool,
    host: String,
}

impl Output {
    /// The output to `target`: the one that is there, if it is that. `writer`: in messages, the name of what writes there.
    pub(crate) fn to<'a>(output: &'a mut Option<Output>, target: &Target, writer: &'static str) -> &'a mut Output {
        if output.as_ref().is_none_or(|output| output.target != *target) {
            *output = None;
        }
        output.get_or_insert_with(|| Output {
            target: target.clone(),
            writer,
            opened: None,
            closed_until: None,
            told: None,
            is_torn: false,
            host: std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
        })
    }

    /// Opens the file again at the next line.
    pub(crate) fn reopen(&mut self) {
        (self.opened, self.closed_until) = (None, None);
    }

    /// Writes `count` lines, each with its end. Afterwards there are none.
    pub(crate) fn write(&mut self, lines: &mut Vec<u8>, count: u64) -> Written {
        if count == 0 {
            return Written::default();
        }
        // It is left alone for a while.
        let result = match self.closed_until {
            Some(until) if Instant::now() < until => Ok(0),
            _ => self.try_write(lines, count),
        };
        lines.clear();
        lines.shrink_to(KEPT_BYTES_MAX);
        match result {
            Ok(written) => Written { written, lost: count - written },
            Err(error) => {
                self.failed(&error);
                Written { written: 0, lost: count }
            }
        }
    }

    fn failed(&mut self, error: &io::Error) {
        (self.opened, self.closed_until) = (None, Some(Instant::now() + RETRY_AFTER));
        if self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            return;
        }
        self.told = Some(Instant::now());
        let told = format!("warning: {} loses lines: {} cannot be written: {error}", self.writer, self.target);
        tell(EventKind::Limit, &told);
    }

    /// How many lines were written.
    fn try_write(&mut self, lines: &[u8], count: u64) -> io::Result<u64> {
        if let Some(Opened::File { inode, looked, .. }) = &mut self.opened
            && looked.elapsed() > LOOK_EVERY
        {
            *looked = Instant::now();
            let Target::File(path) = &self.target else { return Err(ErrorKind::InvalidInput.into()) };
            // Moved away, or removed.
            if path.metadata().map_or(0, |found| found.ino()) != *inode {
                self.opened = None;
            }
        }
        if self.opened.is_none() {
            self.opened = Some(open(&self.target)?);
            self.closed_until = None;
        }
        match &mut self.opened {
            None => Err(ErrorKind::NotFound.into()),
            Some(Opened::File { file, .. }) => {
                if std::mem::take(&mut self.is_torn) {
                    // What a full disk took of the line before ends here.
                    file.write_all(b"\n")?;
                }
                let written = whole(file, lines);
                self.is_torn = written.is_err();
                written.map(|()| count)
            }
            Some(Opened::StandardOutput) => whole(&mut io::stdout().lock(), lines).map(|()| count),
            Some(Opened::Unix(socket)) => datagrams(lines, &self.host, |message| socket.send(message)),
            Some(Opened::Udp(socket)) => datagrams(lines, &self.host, |message| socket.send(message)),
            Some(Opened::Tcp(stream)) => {
                let mut all = Vec::with_capacity(lines.len() * 2);
                for line in each(lines) {
                    let message = syslog(&self.host, line);
                    // RFC 6587, 3.4.1.
                    let _ = write!(all, "{} ", message.len());
                    all.extend_from_slice(&message);
                }
                stream.write_all(&all).map(|()| count)
            }
        }
    }
}

/// The lines, without their ends.
fn each(lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    lines.strip_suffix(b"\n").unwrap_or(lines).split(|byte| *byte == b'\n')
}

/// Writes all of it, or fails.
fn whole(out: &mut impl Write, lines: &[u8]) -> io::Result<()> {
    out.write_all(lines)?;
    out.flush()
}

/// Sends each line as a message of its own; how many were taken.
fn datagrams(lines: &[u8], host: &str, mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<u64> {
    let mut sent = 0;
    for line in each(lines) {
        match send(&syslog(host, line)) {
            Ok(_) => sent += 1,
            // Its queue is full, or the message is too long for it: this line is lost.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if Errno::from_io_error(&error) == Some(Errno::MSGSIZE) => {}
            // A port that nothing listens at says so of the message before.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && sent > 0 => {}
            // Those before were taken; the next look meets the error again.
            Err(_) if sent > 0 => return Ok(sent),
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// A message of RFC 5424.
fn syslog(host: &str, line: &[u8]) -> Vec<u8> {
    let time = humantime::format_rfc3339_millis(SystemTime::now());
    let host = if host.is_empty() { "-" } else { host };
    let mut message = format!("<{PRIORITY}>1 {time} {host} hairpin {} access - ", std::process::id()).into_bytes();
    message.extend_from_slice(line);
    message
}

fn open(target: &Target) -> io::Result<Opened> {
    match target {
        Target::File(path) => open_file(path),
        Target::StandardOutput => Ok(Opened::StandardOutput),
        Target::Syslog(SyslogEnd::Unix(path)) => {
            let socket = UnixDatagram::unbound()?;
            socket.connect(path)?;
            socket.set_nonblocking(true)?;
            Ok(Opened::Unix(socket))
        }
        Target::Syslog(SyslogEnd::Udp(address)) => {
            let any = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let socket = UdpSocket::bind(std::net::SocketAddr::new(any, 0))?;
            socket.connect(address)?;
            socket.set_nonblocking(true)?;
            Ok(Opened::Udp(socket))
        }
        Target::Syslog(SyslogEnd::Tcp(address)) => {
            let stream = TcpStream::connect_timeout(address, TCP_PATIENCE)?;
            stream.set_write_timeout(Some(TCP_PATIENCE))?;
            Ok(Opened::Tcp(stream))
        }
    }
}

/// Lines have clients' addresses and what they ask for: only root and its group read them. A pipe that nothing reads is an
/// error, not a wait.
fn open_file(path: &Path) -> io::Result<Opened> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let is_new = !path.exists();
    let file = OpenOptions::new().append(true).create(true).mode(0o640).custom_flags(flags).open(path)?;
    if is_new {
        // Whatever the process's umask is.
        file.set_permissions(Permissions::from_mode(0o640))?;
    }
    let inode = file.metadata()?.ino();
    Ok(Opened::File { file, inode, looked: Instant::now() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(output: &mut Output) -> Written {
        output.write(&mut b"line\n".to_vec(), 1)
    }

    #[test]
    fn output_that_failed_is_used_again_although_lines_keep_coming() {
        let directory = std::env::temp_dir().join(format!("hairpin-output-{}", std::process::id()));
        let file = directory.join("access.log");
        let mut output = None;
        let output = Output::to(&mut output, &Target::File(file.clone()), "the access log");
        assert_eq!(line(output), Written { written: 0, lost: 1 }, "there is no such directory");
        std::fs::create_dir_all(&directory).unwrap();
        let start = Instant::now();
        let mut written = 0;
        while written == 0 && start.elapsed() < 10 * RETRY_AFTER {
            written = line(output).written;
            std::thread::sleep(RETRY_AFTER / 20);
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "line\n");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn part_of_a_line_is_ended_before_the_next() {
        let file = std::env::temp_dir().join(format!("hairpin-torn-{}", std::process::id()));
        std::fs::write(&file, "par").unwrap();
        let mut output = None;
        let output = Output::to(&mut output, &Target::File(file.clone()), "the access log");
        output.is_torn = true;
        assert_eq!(line(output).written + line(output).written, 2);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "par\nline\nline\n");
        std::fs::remove_file(&file).unwrap();
    }
}
