//! The clients of limits in a file of their own: a process that takes over, or one that drains, goes on with them.

use super::file::{OpenedTable, SharedFile};
use super::header::{Content, TableHeader};
use anyhow::Result;
use hairpin_core::keys::Secret;
use hairpin_core::limit::LimitTable;
use hairpin_core::table::region::Region;
use hairpin_core::time::Time;
use std::path::Path;

/// The header of a file with room for so many clients, beside the connection table `beside`.
fn header(clients: u32, beside: &TableHeader) -> TableHeader {
    // One region for all workers.
    TableHeader { content: Content::Limits, workers: 1, connections: clients, ..beside.clone() }
}

/// The table of limits at `path` with room for so many clients, which may be in use in a process that drains. One that belongs
/// beside another connection table, or is of another size, is replaced by an empty one; `Err`: why it could not be read.
///
/// # Errors
/// There is no room for it, or it cannot be made or mapped.
pub fn limit_table(
    path: &Path,
    (clients, beside): (u32, &TableHeader),
    now: Time,
) -> Result<(LimitTable, std::result::Result<(), String>)> {
    let header = header(clients, beside);
    let (file, adopted) = match SharedFile::open(path, Content::Limits)? {
        OpenedTable::Table(file) if *file.header() == header => (file, Ok(())),
        OpenedTable::Table(_) | OpenedTable::Absent => (SharedFile::create(path, &header, 0)?, Ok(())),
        OpenedTable::Incompatible(why) => (SharedFile::create(path, &header, 0)?, Err(why)),
    };
    Ok((table(file, now), adopted))
}

fn table(mut file: SharedFile, now: Time) -> LimitTable {
    let (clients, secret) = (file.header().connections, Secret::new(file.header().steering_key));
    let (start, bytes) = file.region(0);
    // From now on it is never unmapped.
    file.give_out();
    // SAFETY: mapped until the process ends, aligned to a page, written or zeroes. Other processes write words of it as atomics,
    // and the table has them as atomics only.
    LimitTable::new(unsafe { Region::at(start, bytes) }, clients, secret, now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_core::flow::SteerBy;
    use hairpin_core::limit::Rate;
    use std::path::PathBuf;
    use std::time::Duration;

    struct Place(PathBuf);

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn processes_share_clients_and_another_size_begins_anew() {
        let place = Place(std::env::temp_dir().join(format!("hairpin-limits-{}", std::process::id())));
        let beside = TableHeader {
            content: Content::Connections,
            instance: "test".into(),
            workers: 2,
            connections: 100,
            steering_key: [1, 2],
            steer_by: SteerBy::Hash,
        };
        let (rate, now) = (Rate::new(10, Duration::from_secs(1), 10).unwrap(), Time::from_nanos(1 << 40));
        let open = |clients| {
            let (table, adopted) = limit_table(&place.0, (clients, &beside), now).unwrap();
            assert_eq!(adopted, Ok(()));
            table
        };
        let admitted = |table: &LimitTable| {
            let key = table.key(1, b"client");
            (0..20).filter(|_| table.take(key, &rate, now).refused_for.is_none()).count()
        };
        let first = open(1024);
        assert_eq!(admitted(&first), 10);
        let second = open(1024);
        assert_eq!([admitted(&second), admitted(&first)], [0, 0]);
        assert_eq!(admitted(&open(2048)), 10, "of another size");
        std::fs::write(&place.0, "x").unwrap();
        let (table, adopted) = limit_table(&place.0, (1024, &beside), now).unwrap();
        assert!(adopted.is_err_and(|why| why.contains("table of limits")));
        assert_eq!(admitted(&table), 10);
    }
}
