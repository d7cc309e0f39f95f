//! The journal of systemd, by its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL): lines with priority and fields.

use crate::events::{Event, Level};
use rustix::fs::fstat;
use std::io::Result;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Where the journal listens.
pub(super) const SOCKET: &str = "/run/systemd/journal/socket";

/// Whether standard error is the journal. `said`: what systemd says the device and inode of the journal's stream are
/// (systemd.exec(5)); a process whose standard error was redirected has it too.
pub(super) fn is_standard_error(said: Option<&str>) -> bool {
    let stat = fstat(std::io::stderr());
    stat.is_ok_and(|stat| said == Some(&*format!("{}:{}", stat.st_dev, stat.st_ino)))
}

/// Writes an event, as one entry: `HAIRPIN_EVENT` has its kind.
///
/// # Errors
/// The journal does not take it: it is not there, is behind, or the text is too long for a datagram.
pub(super) fn send(socket: &Path, event: &Event, kind: &str) -> Result<()> {
    // syslog's: informational, warning.
    let priority = match event.level {
        Level::Info => "6",
        Level::Warning => "4",
    };
    let fields = [
        ("MESSAGE", &*event.message),
        ("PRIORITY", priority),
        ("SYSLOG_IDENTIFIER", "hairpin"),
        ("HAIRPIN_EVENT", kind),
    ];
    let datagram: Vec<u8> = fields.iter().flat_map(|(name, value)| field(name, value)).collect();
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to(&datagram, socket).map(drop)
}

/// A field with its length before its value, which may have any bytes.
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut field = format!("{name}\n").into_bytes();
    field.extend((value.len() as u64).to_le_bytes());
    field.extend(value.as_bytes());
    field.push(b'\n');
    field
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::EventKind;
    use std::time::SystemTime;

    #[test]
    fn entry_has_its_fields() {
        let path = std::env::temp_dir().join(format!("hairpin-journal-{}", std::process::id()));
        let journal = UnixDatagram::bind(&path).unwrap();
        let event = Event::new(EventKind::Health, "warning: down\nPRIORITY=0", SystemTime::now());
        send(&path, &event, "health").unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut datagram = [0; 512];
        let length = journal.recv(&mut datagram).unwrap();
        let expected = [
            &b"MESSAGE\n\x0f\0\0\0\0\0\0\0down\nPRIORITY=0\n"[..],
            b"PRIORITY\n\x01\0\0\0\0\0\0\x004\n",
            b"SYSLOG_IDENTIFIER\n\x07\0\0\0\0\0\0\0hairpin\n",
            b"HAIRPIN_EVENT\n\x06\0\0\0\0\0\0\0health\n",
        ];
        assert_eq!(datagram[..length], expected.concat());
        assert!(send(&path, &event, "health").is_err(), "no journal is there");
    }

    #[test]
    fn only_the_journals_own_stream_is_the_journal() {
        assert!(!is_standard_error(None));
        assert!(!is_standard_error(Some("1:0")));
        let stat = fstat(std::io::stderr()).unwrap();
        assert!(is_standard_error(Some(&format!("{}:{}", stat.st_dev, stat.st_ino))));
    }
}
