//! The network namespace in which an instance has its devices: objects can only be removed from inside of it.

use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A network namespace, by the file that the kernel has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Namespace {
    /// The number of the device of the kernel's nsfs.
    pub(crate) device: u64,
    /// The number of the file on it.
    pub(crate) inode: u64,
}

impl Namespace {
    /// That of this thread; `None` where /proc does not show it.
    pub(crate) fn current() -> Option<Namespace> {
        Namespace::at("/proc/thread-self/ns/net")
    }

    /// That of a process; `None` where /proc does not show it.
    pub(crate) fn of(process: u32) -> Option<Namespace> {
        Namespace::at(&format!("/proc/{process}/ns/net"))
    }

    fn at(path: &str) -> Option<Namespace> {
        let file = fs::metadata(path).ok()?;
        Some(Namespace { device: file.dev(), inode: file.ino() })
    }

    /// If this thread is in another one: what keeps this one alive, in words, as far as /proc shows it. A namespace that
    /// nothing keeps is gone, and the devices in it are gone too.
    pub(crate) fn elsewhere(self) -> Option<String> {
        if Namespace::current().is_none_or(|here| here == self) {
            return None;
        }
        self.supervisor(Path::new("/proc"))
    }

    /// The object that keeps it alive: a mount (`ip netns add` makes one), a thread in it, or an open file.
    fn supervisor(self, proc: &Path) -> Option<String> {
        let link = format!("net:[{}]", self.inode);
        // Fields of a line: mount, parent, device, root, mount point. proc(5).
        let mounts = fs::read_to_string(proc.join("self/mountinfo")).unwrap_or_default();
        let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mut points =
            fields.filter(|fields| fields.get(3) == Some(&&*link)).filter_map(|fields| fields.get(4).copied());
        if let Some(point) = points.next() {
            // Not by `ip netns exec`, which hides the pins: it mounts another /sys.
            let name = ["/run/netns/", "/var/run/netns/"].into_iter().find_map(|place| point.strip_prefix(place));
            let name = name.unwrap_or(point);
            return Some(format!("network namespace {name} (go there with `nsenter --net={point}`)"));
        }
        let leads_there = |path: &Path| fs::read_link(path).is_ok_and(|target| target.as_os_str() == &*link);
        let any = |directory: &Path, leads: &dyn Fn(&Path) -> bool| {
            fs::read_dir(directory).is_ok_and(|entries| entries.flatten().any(|entry| leads(&entry.path())))
        };
        let processes = fs::read_dir(proc).into_iter().flatten().flatten();
        let mut numbered = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        numbered.find_map(|pid| {
            let process = proc.join(pid.to_string());
            let within = any(&process.join("task"), &|task| leads_there(&task.join("ns/net")));
            (within || any(&process.join("fd"), &leads_there)).then(|| {
                let how = if within { format!(" (go there with `nsenter --net -t {pid}`)") } else { String::new() };
                format!("the network namespace of process {pid}{how}")
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_keeps_a_namespace_is_named() {
        let proc = std::env::temp_dir().join(format!("hairpin-namespace-{}", std::process::id()));
        for directory in ["self", "7/task/7/ns", "7/task/9/ns", "8/fd"] {
            fs::create_dir_all(proc.join(directory)).unwrap();
        }
        let mounts = "30 20 0:27 / /sys rw - sysfs sysfs rw\n\
                      31 21 0:4 net:[101] /run/netns/blue rw shared:9 - nsfs nsfs rw\n\
                      32 21 0:4 net:[102] /run/docker/netns/default rw - nsfs nsfs rw\n";
        fs::write(proc.join("self/mountinfo"), mounts).unwrap();
        symlink("net:[100]", proc.join("7/task/7/ns/net")).unwrap();
        symlink("net:[103]", proc.join("7/task/9/ns/net")).unwrap();
        symlink("net:[104]", proc.join("8/fd/3")).unwrap();
        let supervisor = |inode| Namespace { device: 4, inode }.supervisor(&proc).unwrap_or_default();
        let named = [101, 102, 103, 104, 10].map(supervisor);
        fs::remove_dir_all(&proc).unwrap();
        assert_eq!(
            named,
            [
                "network namespace blue (go there with `nsenter --net=/run/netns/blue`)",
                "network namespace /run/docker/netns/default (go there with `nsenter --net=/run/docker/netns/default`)",
                "the network namespace of process 7 (go there with `nsenter --net -t 7`)",
                "the network namespace of process 8",
                "",
            ]
        );
    }

    #[test]
    fn this_namespace_is_not_elsewhere() {
        assert_eq!(Namespace::current().and_then(Namespace::elsewhere), None);
    }
}
