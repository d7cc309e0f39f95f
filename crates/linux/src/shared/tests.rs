//! The file: made whole, read back, refused when anything is wrong with it, dealt out anew.

use super::file::unfinished;
use super::*;
use hairpin_core::flow::{Endpoint, Protocol, SteerBy};
use hairpin_core::time::Time;
use std::fs::{File, OpenOptions};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};

/// A directory that goes with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let place = Path::new(DIRECTORY).join(format!("hairpin-adopt-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        Place(place)
    }

    fn path(&self) -> PathBuf {
        path(&self.0, "test", Content::Connections)
    }

    fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn header(workers: u16, connections: u32) -> TableHeader {
    let (content, instance) = (Content::Connections, "test".into());
    TableHeader { content, instance, workers, connections, steering_key: [3, 4], steer_by: SteerBy::Hash }
}

fn connection(port: u16, state: State) -> Connection {
    let end = |host, port| Endpoint::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), port);
    let ends = [end(1, port), end(2, 80), end(3, 8080), end(1, port)];
    let protocol = if state.name().starts_with("udp") { Protocol::Udp } else { Protocol::Tcp };
    Connection::new(Time::from_nanos(1), protocol, state, ends)
}

fn table(opened: OpenedTable<SharedTable>) -> SharedTable {
    match opened {
        OpenedTable::Table(table) => table,
        other => panic!("no table: {other:?}"),
    }
}

fn ports(slab: &Slab<Connection>) -> Vec<u16> {
    slab.positions().map(|position| slab.at(position).client.port).collect()
}

#[test]
fn connections_are_there_for_the_next_process() {
    let place = Place::new("next");
    let path = place.path();
    assert!(matches!(SharedTable::open(&path).unwrap(), OpenedTable::Absent));
    let mut first = SharedTable::create(&path, &header(2, 100)).unwrap();
    assert_eq!(place.names(), ["hairpin-test.connections"]);
    let mut slabs: Vec<_> = first.regions().into_iter().map(Slab::new).collect();
    assert!(first.regions().is_empty(), "a region has one owner");
    for port in 0..10 {
        slabs[usize::from(port % 2)].insert(connection(port, State::Established)).unwrap();
    }
    slabs[0].remove(0);
    assert!(!first.is_clean());
    // The next process: another mapping of the same file.
    let mut second = table(SharedTable::open(&path).unwrap());
    assert_eq!(second.header(), &header(2, 100));
    first.set_clean(true);
    assert!(second.is_clean());
    second.set_clean(false);
    let adopted: Vec<_> = second.regions().into_iter().map(Slab::adopt).collect();
    assert_eq!(
        adopted.iter().map(|(slab, invalid)| (ports(slab), *invalid)).collect::<Vec<_>>(),
        [(vec![2, 4, 6, 8], 0), (vec![1, 3, 5, 7, 9], 0)]
    );
    assert!(remove(&path).unwrap() && !remove(&path).unwrap());
    assert!(matches!(SharedTable::open(&path).unwrap(), OpenedTable::Absent));
}

#[test]
fn shared_memory_grows_with_use_and_is_readable() {
    let place = Place::new("lazy");
    let mut shared = SharedTable::create(&place.path(), &header(2, 1_000_000)).unwrap();
    let mut slab = Slab::new(shared.regions().swap_remove(1));
    let views = shared.views().unwrap();
    assert_eq!((views.len(), views[1].used(), views[1].capacity()), (2, 0, 1_000_000));
    for port in 0..100 {
        slab.insert(connection(port, State::SynSent));
    }
    slab.remove(7);
    slab.at_mut(8).state = State::Established;
    assert_eq!((views[0].used(), views[1].used()), (0, 100));
    assert!(views[1].read(7).is_none() && views[1].read(100).is_none() && views[1].read(u32::MAX).is_none());
    let (generation, read) = views[1].read(8).unwrap();
    assert_eq!((generation, read.client.port, read.state), (1, 8, State::Established));
    slab.insert(connection(999, State::SynSent));
    assert_eq!(views[1].read(7).map(|(generation, read)| (generation, read.client.port)), Some((2, 999)));
    assert_eq!(shared.views().unwrap().len(), 2);
    // Huge pages, where the kernel gives them to files, are 2 MiB each.
    let used = shared.bytes_used().unwrap();
    assert!((8192..32 << 20).contains(&used), "{used} bytes of memory for 100 connections");
}

/// Why a file is refused.
fn refused(path: &Path) -> String {
    match SharedTable::open(path).unwrap() {
        OpenedTable::Incompatible(why) => {
            assert!(why.contains(path.to_str().unwrap()), "which file: {why}");
            why
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn what_is_not_right_is_refused_with_the_reason() {
    let place = Place::new("wrong");
    let path = place.path();
    let spoil = |wrong: &str, spoil: &dyn Fn(&File)| {
        SharedTable::create(&path, &header(2, 100)).unwrap();
        spoil(&OpenOptions::new().write(true).open(&path).unwrap());
        let why = refused(&path);
        assert!(why.contains(wrong), "{wrong}: {why}");
    };
    spoil("38495 bytes and should have 42496", &|file| file.set_len(38_495).unwrap());
    spoil("should have 42496", &|file| file.set_len(1 << 20).unwrap());
    spoil("cut off after 100", &|file| file.set_len(100).unwrap());
    spoil("cut off after 0", &|file| file.set_len(0).unwrap());
    spoil("not a connection table", &|file| file.write_all_at(b"H", 0).unwrap());
    spoil("another version", &|file| file.write_all_at(b"!!!!", 8).unwrap());
    spoil("checksum", &|file| file.write_all_at(&[9], 24).unwrap());
    spoil("mode is 640", &|file| file.set_permissions(std::fs::Permissions::from_mode(0o640)).unwrap());
    spoil("mode is 4600", &|file| file.set_permissions(std::fs::Permissions::from_mode(0o4600)).unwrap());
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } == 0 {
        spoil("belongs to user 1234", &|_| chown(&path, Some(1234), None).unwrap());
    }
    remove(&path).unwrap();
    symlink("/dev/shm/elsewhere", &path).unwrap();
    assert!(refused(&path).contains("symbolic link"));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(refused(&path).contains("not a file"));
    std::fs::remove_dir(&path).unwrap();
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a path that ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert!(refused(&path).contains("not a file"));
    // And whatever stands there, a new table takes its place.
    SharedTable::create(&path, &header(1, 1)).unwrap();
    table(SharedTable::open(&path).unwrap());
}

#[test]
fn table_of_an_earlier_boot_is_ignored() {
    let place = Place::new("boot");
    let path = place.path();
    SharedTable::create(&path, &header(1, 10)).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&header(1, 10).encode("00000000-1111-2222-3333-444444444444"), 0).unwrap();
    assert!(matches!(SharedTable::open(&path).unwrap(), OpenedTable::Absent));
}

#[test]
fn what_does_not_fit_is_not_begun() {
    let place = Place::new("room");
    let path = place.path();
    let kept = SharedTable::create(&path, &header(1, 10)).unwrap();
    let error = SharedTable::create(&path, &header(256, 1 << 31)).unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("MiB free") && text.contains("connections_max"), "{text}");
    assert_eq!(place.names(), ["hairpin-test.connections"], "nothing is left of the attempt");
    let error = SharedTable::rebuild(kept, &path, &header(256, 1 << 31), |_| 0).unwrap_err();
    assert!(format!("{error:#}").contains("MiB free"));
    assert_eq!(table(SharedTable::open(&path).unwrap()).header(), &header(1, 10), "the old one stays");
    let gone = path.join("nowhere");
    assert!(
        format!("{:#}", SharedTable::create(&gone, &header(1, 1)).unwrap_err()).contains("nowhere") || !gone.exists()
    );
}

/// A table of two workers with established connections 0 to 5, half-open ones 6 to 11 and ones that go 12 to 15.
fn filled(path: &Path) -> SharedTable {
    let table = SharedTable::create(path, &header(2, 100)).unwrap();
    // SAFETY: no other code uses the regions, and the slabs are gone at the end.
    let mut slabs: Vec<_> = unsafe { table.slices() }.into_iter().map(Slab::new).collect();
    // The least important ones come first.
    for port in (0..16u16).rev() {
        let mut connection = connection(
            port,
            match port {
                0..6 => State::Established,
                6..12 => State::SynSent,
                12..14 => State::Pass,
                _ => State::FinClient,
            },
        );
        if port >= 14 {
            connection.flags.set(Flags::PENDING_REMOVAL);
        }
        slabs[usize::from(port % 2)].insert(connection).unwrap();
    }
    drop(slabs);
    table.set_clean(false);
    table
}

#[test]
fn connections_are_resteered_to_other_workers() {
    let place = Place::new("deal");
    let path = place.path();
    for workers in [1, 3, 7] {
        let old = filled(&path);
        let by = |connection: &Connection| connection.client.port % workers;
        let (mut new, dropped) = SharedTable::rebuild(old, &path, &header(workers, 50), by).unwrap();
        assert_eq!(dropped, AdoptionLosses::default());
        assert_eq!(place.names(), ["hairpin-test.connections"]);
        let mut all = Vec::new();
        for (worker, region) in new.regions().into_iter().enumerate() {
            let (slab, invalid) = Slab::adopt(region);
            assert_eq!(invalid, 0);
            assert!(ports(&slab).iter().all(|port| usize::from(port % workers) == worker));
            all.extend(ports(&slab));
        }
        all.sort();
        assert_eq!(all, (0..16).collect::<Vec<u16>>());
        assert_eq!(table(SharedTable::open(&path).unwrap()).header().workers, workers);
    }
}

#[test]
fn established_connections_are_the_last_to_be_dropped() {
    let place = Place::new("fit");
    let path = place.path();
    for (room, wanted) in [
        (16, AdoptionLosses::default()),
        (12, AdoptionLosses { others: 4, ..AdoptionLosses::default() }),
        (7, AdoptionLosses { others: 9, ..AdoptionLosses::default() }),
        (4, AdoptionLosses { established: 2, others: 10, invalid: 0 }),
    ] {
        let (mut new, dropped) = SharedTable::rebuild(filled(&path), &path, &header(1, room), |_| 0).unwrap();
        assert_eq!(dropped, wanted, "room for {room}");
        let (slab, _) = Slab::adopt(new.regions().swap_remove(0));
        let mut kept = ports(&slab);
        kept.sort();
        assert!(kept.iter().take(6).copied().eq(0..room.min(6) as u16) || room < 6, "{kept:?}");
        assert_eq!(kept.len(), room as usize);
    }
    let (_, dropped) = SharedTable::rebuild(filled(&path), &path, &header(1, 16), |_| 5).unwrap();
    assert_eq!(dropped, AdoptionLosses { established: 6, others: 10, invalid: 0 }, "a worker that there is not");
}

#[test]
fn an_interrupted_rebuilding_leaves_the_old_table() {
    let place = Place::new("interrupted");
    let path = place.path();
    let old = filled(&path);
    // As a process leaves it that is killed before the new table is whole.
    std::fs::write(unfinished(&path), b"half of a table").unwrap();
    assert_eq!(table(SharedTable::open(&path).unwrap()).header(), old.header());
    let (mut new, dropped) = SharedTable::rebuild(old, &path, &header(3, 40), |c| c.client.port % 3).unwrap();
    assert_eq!((dropped, new.regions().len()), (AdoptionLosses::default(), 3));
    assert_eq!(place.names(), ["hairpin-test.connections"]);
    let error = SharedTable::rebuild(new, &path, &header(1, 10), |_| 0).unwrap_err();
    assert!(format!("{error:#}").contains("in use"));
    std::fs::write(unfinished(&path), b"half of a table").unwrap();
    assert!(remove(&path).unwrap());
    assert!(place.names().is_empty());
}

/// The table of HTTP and TLS connections is a file of its own: neither is taken for the other, and what was written into
/// a region is there for the next process.
#[test]
fn splices_lie_in_a_file_of_their_own() {
    let place = Place::new("splices");
    let path = super::path(&place.0, "test", Content::Splices);
    let header = TableHeader { content: Content::Splices, ..header(2, 100) };
    assert!(matches!(SplicedTable::open(&path).unwrap(), OpenedTable::Absent));
    let beside =
        SharedTable::create(&place.path(), &TableHeader { content: Content::Connections, ..header.clone() }).unwrap();
    let mut table = SplicedTable::create(&path, &header, &beside).unwrap();
    assert_eq!(SplicedTable::fitting(&path, &header, &beside).unwrap(), 100);
    let huge = TableHeader { connections: 1 << 31, ..header.clone() };
    assert!((64..1 << 30).contains(&SplicedTable::fitting(&path, &huge, &beside).unwrap()));
    let regions = table.regions();
    assert_eq!(regions.iter().map(|region| region.connections()).collect::<Vec<_>>(), [100, 100]);
    assert!(table.regions().is_empty(), "each has one owner");
    let OpenedTable::Table(again) = SplicedTable::open(&path).unwrap() else { panic!("it is there") };
    assert_eq!(again.header(), &header);
    assert!(again.bytes_used().unwrap() < 1 << 20, "most is untouched");
    let OpenedTable::Incompatible(why) = SharedTable::open(&path).unwrap() else { panic!("it is no such table") };
    assert!(why.contains("not a connection table"), "{why}");
    let mut options = OpenOptions::new();
    options.read(true).write(true).open(&path).unwrap().write_at(&[1], 8).unwrap();
    let OpenedTable::Incompatible(why) = SplicedTable::open(&path).unwrap() else { panic!("another layout") };
    assert!(why.contains("another version of Hairpin"), "{why}");
}
