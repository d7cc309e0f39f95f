//! The embedded object: its maps and programs as they are loaded, or taken from where they are pinned.

use super::{ProgramOptions, SetUpRoom, refusal, table};
use anyhow::{Context, Result, anyhow, bail, ensure};
use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, OpenObject};
use std::collections::HashMap;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hairpin.bpf.o"));

/// The maps, by what they hold. Handles can be duplicated.
#[derive(Debug)]
pub struct Maps(pub(super) HashMap<String, MapHandle>);

impl Maps {
    /// Those of the object that are pinned; not its sections, which have dots in their names.
    pub(super) fn of(object: &Object) -> Result<Maps> {
        let named = |map: libbpf_rs::Map<'_>| {
            let name = map.name().to_string_lossy().into_owned();
            let handle = MapHandle::try_from(&map).with_context(|| format!("cannot take a handle of map {name}"))?;
            Ok((name, handle))
        };
        let maps = object.maps().filter(|map| !map.name().to_string_lossy().contains('.'));
        Ok(Maps(maps.map(named).collect::<Result<_>>()?))
    }

    /// The map `name` of `crates/linux/bpf/maps.h`.
    pub fn named(&self, name: &str) -> Result<&MapHandle> {
        self.0.get(name).with_context(|| format!("there is no map {name}"))
    }
}

/// The syscall programs.
#[derive(Debug)]
pub(crate) struct Queries {
    pub(crate) put: OwnedFd,
    pub(crate) take: OwnedFd,
    pub(crate) sample: OwnedFd,
    pub(crate) assign: OwnedFd,
}

/// The programs.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) ingress: OwnedFd,
    pub(super) worker: OwnedFd,
    pub(super) xdp: OwnedFd,
    pub(super) check: OwnedFd,
    pub(super) queries: Arc<Queries>,
}

impl Programs {
    /// Takes them, by name, from `source`.
    pub(super) fn from(mut source: impl FnMut(&str) -> Result<OwnedFd>) -> Result<Programs> {
        Ok(Programs {
            ingress: source("hairpin_ingress")?,
            worker: source("hairpin_worker")?,
            xdp: source("hairpin_xdp")?,
            check: source("hairpin_check")?,
            queries: Arc::new(Queries {
                put: source("rules_put")?,
                take: source("rules_take")?,
                sample: source("rules_sample")?,
                assign: source("rules_assign")?,
            }),
        })
    }

    /// Those of the object.
    pub(super) fn of(object: &Object) -> Result<Programs> {
        Programs::from(|name| {
            let found = object.progs().find(|program| program.name() == name);
            let program = found.with_context(|| format!("the BPF object has no program {name}"))?;
            program.as_fd().try_clone_to_owned().with_context(|| format!("cannot keep program {name}"))
        })
    }

    /// All of them, by name.
    pub(super) fn named(&self) -> [(&'static str, &OwnedFd); 8] {
        [
            ("hairpin_ingress", &self.ingress),
            ("hairpin_worker", &self.worker),
            ("hairpin_xdp", &self.xdp),
            ("hairpin_check", &self.check),
            ("rules_put", &self.queries.put),
            ("rules_take", &self.queries.take),
            ("rules_sample", &self.queries.sample),
            ("rules_assign", &self.queries.assign),
        ]
    }
}

/// The constants that the loader sets before it loads the programs.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Constants {
    /// Mark of frames that a worker passes to the kernel.
    pub(super) to_kernel_mark: u32,
    /// The decrement of TTL and hop limit.
    pub(super) hop: u8,
}

impl Constants {
    /// With a mark that no other program uses: random, not zero.
    pub(super) fn fresh(options: &ProgramOptions) -> Constants {
        let mark = RandomState::new().hash_one(std::process::id()) as u32 | 1;
        Constants::with_mark(options, mark)
    }

    /// With the mark of programs that are there.
    pub(super) fn with_mark(options: &ProgramOptions, to_kernel_mark: u32) -> Constants {
        Constants { to_kernel_mark, hop: u8::from(!options.keep_ttl) }
    }

    /// By which programs loaded from the same object with the same constants are known. Not 0. Another build of the
    /// process may come to another number for the same programs: then they are loaded anew, which does no harm.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        OBJECT.hash(&mut hasher);
        self.hash(&mut hasher);
        hasher.finish().max(1)
    }
}

/// Opens the object and sizes its maps.
pub(super) fn open(options: &ProgramOptions) -> Result<OpenObject> {
    let room = [options.rules_v4_max, options.rules_v6_max, options.sequences_max];
    ensure!(!room.contains(&0), "no room for rules: at least one of each kind");
    let mut open = ObjectBuilder::default().open_memory(OBJECT).context("the embedded BPF object is damaged")?;
    for mut map in open.maps_mut() {
        match map.name().to_str() {
            Some("rules_v4") => map.set_max_entries(table::buckets(options.rules_v4_max).iter().sum())?,
            Some("spilled_v4") => map.set_max_entries(table::spilled(options.rules_v4_max))?,
            Some("rules_v6") => map.set_max_entries(options.rules_v6_max)?,
            Some("sequence_v4") => map.set_max_entries(options.rules_v4_max.min(options.sequences_max))?,
            Some("sequence_v6") => map.set_max_entries(options.rules_v6_max.min(options.sequences_max))?,
            Some(name) => {
                if let Some(entries) = SetUpRoom::of(name, options.set_up) {
                    map.set_max_entries(entries)?;
                }
            }
            None => {}
        }
        if map.name() == "rules_v6" && options.rules_v6_sparse {
            map.set_map_flags(libbpf_sys::BPF_F_NO_PREALLOC)?;
        }
    }
    Ok(open)
}

/// Sets the constants and loads the object. Maps of `pinned` are used as they are, the others are made.
pub(super) fn load(mut open: OpenObject, constants: &Constants, pinned: Option<&Maps>) -> Result<Object> {
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name.ends_with(".rodata") {
            // to_kernel_mark, then hop (crates/linux/bpf/maps.h).
            let Some([a, b, c, d, hop, ..]) = map.initial_value_mut() else {
                bail!("the embedded BPF object has other constants than this build expects");
            };
            [*a, *b, *c, *d] = constants.to_kernel_mark.to_ne_bytes();
            *hop = constants.hop;
        } else if let Some(there) = pinned.and_then(|maps| maps.0.get(&name)) {
            map.reuse_fd(there.as_fd()).with_context(|| format!("cannot use map {name}"))?;
        }
    }
    load_object(open)
}

/// Loads an object. Errors: with the verifier's words, if there are any.
pub(crate) fn load_object(open: OpenObject) -> Result<Object> {
    let (loaded, heard) = refusal::listen(|| open.load());
    loaded.map_err(|error| anyhow!(refusal::reason(&heard, &release(), &error.to_string())))
}

/// The kernel's.
fn release() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    read.map_or_else(|_| "of an unknown release".to_string(), |text| text.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::ProgramType;

    #[test]
    fn maps_have_the_room_that_is_asked_for() {
        let options =
            ProgramOptions { rules_v4_max: 100, rules_v6_max: 10, sequences_max: 20, ..ProgramOptions::default() };
        let open = open(&options).unwrap();
        let room = |name: &str| open.maps().find(|map| map.name() == name).unwrap().max_entries();
        let names = ["rules_v4", "spilled_v4", "rules_v6", "sequence_v4", "sequence_v6"];
        assert_eq!(names.map(room), [38 + 32, 128, 10, 20, 10]);
    }

    #[test]
    fn what_the_verifier_refuses_is_in_the_error() {
        // SAFETY: geteuid cannot fail and changes nothing.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: needs root");
            return;
        }
        let options = ProgramOptions { rules_v4_max: 16, rules_v6_max: 16, ..ProgramOptions::default() };
        let mut open = open(&options).unwrap();
        // A program of this type gets registers, not a packet.
        open.progs_mut().find(|program| program.name() == "hairpin_worker").unwrap().set_prog_type(ProgramType::Kprobe);
        let error = format!("{:#}", load(open, &Constants::with_mark(&options, 1), None).unwrap_err());
        // The end of the verifier's log; what it says before that differs from kernel to kernel.
        assert!(error.contains("refuses hairpin_worker") && error.contains("processed "), "{error}");
    }
}
