//! A configuration beside what has numbers already.

use super::Registry;
use super::entry::{BackendEntry, Identity, ServiceEntry};
use super::overrides::standing;
use crate::config::{BACKENDS_MAX, Config, SERVICES_MAX, ServiceSettings};
use crate::health::Check;
use anyhow::{Context, Result, bail};
use hairpin_core::config::{Backend, BackendState, Pool, Service, Snapshot};
use hairpin_core::flow::Endpoint;
use hairpin_core::l7::config::Kind;
use std::collections::{BTreeMap, HashMap, HashSet};

/// How long a removed backend keeps its number at least, in seconds: counts of connections are a moment old.
pub const KEPT_S: u64 = 60;

/// A configuration whose services and backends have their numbers, beside what is left of earlier ones.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The workers' part; the position of a service is its number.
    pub snapshot: Snapshot,
    /// The numbers of the configuration's services, in its order.
    pub numbers: Vec<u16>,
    /// The other settings of the service of each number; `None`: the configuration does not have it.
    pub settings: Vec<Option<ServiceSettings>>,
    /// Services that have a number which another one had: its counters must start anew.
    pub fresh_services: Vec<u16>,
    /// Backends that have a number which another one had.
    pub fresh_backends: Vec<u16>,
    /// Numbers that no service has any more; some may be in use again, then they are `fresh`.
    pub freed_services: Vec<u16>,
    /// Numbers that no backend has any more.
    pub freed_backends: Vec<u16>,
    /// Overrides that have ended, because the configuration says something else now; a sentence each.
    pub notes: Vec<String>,
}

impl Merged {
    /// The settings of the service that the backend belongs to, if the configuration has both.
    pub fn settings_of(&self, backend: u16) -> Option<&ServiceSettings> {
        let (service, index) = self.snapshot.place(backend)?;
        let state = self.snapshot.services.get(usize::from(service))?.backends.get(usize::from(index))?.state;
        let settings = self.settings.get(usize::from(service))?.as_ref()?;
        (state != BackendState::Removed).then_some(settings)
    }

    /// Whether checks or clients' failures decide the backend's health.
    pub fn is_checked(&self, backend: u16) -> bool {
        let disabled = |(_, backend): (&Service, &Backend)| backend.state == BackendState::Disabled;
        let is_checked =
            |settings: &ServiceSettings| settings.health.check != Check::None || settings.health.passive.is_some();
        self.settings_of(backend).is_some_and(is_checked) && !self.snapshot.backend(backend).is_some_and(disabled)
    }
}

/// Numbers that can be given: first those that were never given, then those that are free again.
struct FreeIdentifiers {
    used: u32,
    max: u32,
    free: std::vec::IntoIter<u16>,
}

impl FreeIdentifiers {
    fn new<E>(used: u32, max: usize, taken: &BTreeMap<u16, E>) -> FreeIdentifiers {
        let free: Vec<u16> = (0..used as u16).filter(|number| !taken.contains_key(number)).collect();
        FreeIdentifiers { used, max: max as u32, free: free.into_iter() }
    }

    /// A number, and whether it was given before.
    fn next(&mut self) -> Option<(u16, bool)> {
        if self.used < self.max {
            self.used += 1;
            return Some(((self.used - 1) as u16, false));
        }
        self.free.next().map(|number| (number, true))
    }
}

/// One merge at work.
pub(super) struct Merge<'a> {
    registry: &'a mut Registry,
    config: &'a Config,
    connections_now: &'a dyn Fn(u16) -> u64,
    now_unix_s: u64,
    /// Backends of each service, those of the configuration first and in its order.
    members: BTreeMap<u16, Vec<u16>>,
    settings: HashMap<u16, ServiceSettings>,
    /// Numbers of the configuration's services, in its order.
    numbers: Vec<u16>,
    fresh_services: Vec<u16>,
    fresh_backends: Vec<u16>,
    notes: Vec<String>,
}

impl<'a> Merge<'a> {
    pub(super) fn new(
        registry: &'a mut Registry,
        config: &'a Config,
        connections_now: &'a dyn Fn(u16) -> u64,
        now_unix_s: u64,
    ) -> Merge<'a> {
        let (members, settings) = (BTreeMap::new(), HashMap::new());
        let (fresh_services, fresh_backends, notes) = (Vec::new(), Vec::new(), Vec::new());
        Merge {
            registry,
            config,
            connections_now,
            now_unix_s,
            members,
            settings,
            numbers: Vec::new(),
            fresh_services,
            fresh_backends,
            notes,
        }
    }

    /// On an error the registry is half changed and must not be used.
    pub(super) fn run(mut self) -> Result<Merged> {
        let (freed_services, freed_backends) = self.free();
        self.assign()?;
        self.remove();
        self.refuse_conflicts()?;
        let snapshot = self.snapshot();
        let numbers = self.numbers;
        let settings = (0..snapshot.services.len()).map(|number| self.settings.remove(&(number as u16))).collect();
        let (fresh_services, fresh_backends, notes) = (self.fresh_services, self.fresh_backends, self.notes);
        Ok(Merged {
            snapshot,
            numbers,
            settings,
            fresh_services,
            fresh_backends,
            freed_services,
            freed_backends,
            notes,
        })
    }

    /// Frees the numbers of what neither the configuration has nor a connection needs.
    fn free(&mut self) -> (Vec<u16>, Vec<u16>) {
        let known = by_identity(&self.registry.services);
        let mut services = HashSet::new();
        let mut backends = HashSet::new();
        for service in &self.config.snapshot.services {
            let Some(number) = known.get(&Identity::of(service)) else { continue };
            services.insert(*number);
            backends.extend(service.backends.iter().map(|backend| (*number, backend.endpoint)));
        }
        let is_over = |number: u16, entry: &BackendEntry| is_over(number, entry, self.connections_now, self.now_unix_s);
        let mut freed_backends = Vec::new();
        self.registry.backends.retain(|number, entry| {
            let over = !backends.contains(&(entry.service, entry.address)) && is_over(*number, entry);
            freed_backends.extend(over.then_some(*number));
            !over
        });
        services.extend(self.registry.backends.values().map(|entry| entry.service));
        let mut freed_services = Vec::new();
        self.registry.services.retain(|number, _| {
            let needed = services.contains(number);
            freed_services.extend((!needed).then_some(*number));
            needed
        });
        (freed_services, freed_backends)
    }

    /// Gives everything in the configuration its number, the one it has or a new one.
    fn assign(&mut self) -> Result<()> {
        // Owned, because entries are replaced on the way.
        let before = self.registry.services.clone();
        let known = by_identity(&before);
        let by_end = |(number, entry): (&u16, &BackendEntry)| ((entry.service, entry.address), *number);
        let known_backends: HashMap<(u16, Endpoint), u16> = self.registry.backends.iter().map(by_end).collect();
        let mut services = FreeIdentifiers::new(self.registry.services_used, SERVICES_MAX, &self.registry.services);
        let mut backends = FreeIdentifiers::new(self.registry.backends_used, BACKENDS_MAX, &self.registry.backends);
        for (service, settings) in self.config.snapshot.services.iter().zip(&self.config.services) {
            let number = match known.get(&Identity::of(service)) {
                Some(number) => *number,
                None => {
                    let (number, fresh) = services.next().with_context(|| self.exhausted("services", SERVICES_MAX))?;
                    self.fresh_services.extend(fresh.then_some(number));
                    number
                }
            };
            self.numbers.push(number);
            self.registry.services.insert(number, ServiceEntry::of(service));
            self.settings.insert(number, settings.clone());
            self.members.insert(number, Vec::new());
            for backend in &service.backends {
                let known = known_backends.get(&(number, backend.endpoint)).copied();
                self.assign_backend((number, service), backend, known, &mut backends)?;
            }
        }
        (self.registry.services_used, self.registry.backends_used) = (services.used, backends.used);
        Ok(())
    }

    fn assign_backend(
        &mut self,
        (service_number, service): (u16, &Service),
        backend: &Backend,
        known: Option<u16>,
        numbers: &mut FreeIdentifiers,
    ) -> Result<()> {
        let number = match known {
            Some(number) => number,
            None => {
                let (number, fresh) = numbers.next().with_context(|| self.exhausted("backends", BACKENDS_MAX))?;
                self.fresh_backends.extend(fresh.then_some(number));
                number
            }
        };
        let new = || BackendEntry::new(service_number, backend);
        let entry = self.registry.backends.entry(number).or_insert_with(new);
        if entry.configure(backend, self.now_unix_s) {
            self.notes.push(format!(
                "service {}: backend {} is as the configuration says again ({}); the override has ended",
                service.name,
                backend.name,
                standing(backend.state, backend.weight)
            ));
        }
        self.members.entry(service_number).or_default().push(number);
        Ok(())
    }

    /// The HTTP and TLS settings of the configuration's services, by number, with the groups by theirs.
    fn kinds(&self) -> HashMap<u16, Kind> {
        let kind = |(number, service): (&u16, &Service)| {
            let mut kind = service.kind.clone();
            for group in kind.groups_mut() {
                *group = self.numbers.get(usize::from(*group)).copied().unwrap_or(*number);
            }
            (*number, kind)
        };
        self.numbers.iter().zip(&self.config.snapshot.services).map(kind).collect()
    }

    fn exhausted(&self, what: &str, max: usize) -> String {
        format!(
            "there are numbers for {max} {what}, and those that were removed and still have connections use some of \
             them; reload again when these have ended, which `drain_limit` bounds, or configure fewer {what}"
        )
    }

    /// A backend that is not in the configuration is removed; it stays for its connections.
    fn remove(&mut self) {
        for (number, entry) in &mut self.registry.services {
            entry.removed = !self.settings.contains_key(number);
        }
        let configured: HashSet<u16> = self.members.values().flatten().copied().collect();
        for (number, entry) in &mut self.registry.backends {
            if !configured.contains(number) {
                entry.remove(self.now_unix_s);
                self.members.entry(entry.service).or_default().push(*number);
            }
        }
    }

    /// A removed service that is still there must not be taken for a new one.
    fn refuse_conflicts(&self) -> Result<()> {
        // Groups listen nowhere.
        let listening = |removed: bool| {
            let there = self.registry.services.values().filter(move |entry| entry.removed == removed && !entry.group);
            there.map(|entry| ((entry.address, entry.protocol.0), entry)).collect::<HashMap<_, _>>()
        };
        let (ends, removed_ends) = (listening(false), listening(true));
        let pool = &self.config.snapshot.pool;
        for entry in self.registry.backends.values() {
            let Some(service) = self.registry.services.get(&entry.service) else { continue };
            let end = (entry.address, service.protocol.0);
            if entry.state.0 != BackendState::Removed {
                if let Some(other) = removed_ends.get(&end) {
                    let what = format!("backend {} of service {} is where", entry.name, service.name);
                    bail!("{what} service {} listened until it was removed, and {STILL}", other.name);
                }
                continue;
            }
            let gone = format!("backend {} was, which has been removed from service {}", entry.name, service.name);
            if let Some(other) = ends.get(&end) {
                bail!("service {} listens where {gone}, and {STILL}", other.name);
            }
            if pool.addresses.contains(&entry.address.address) {
                bail!("pool address {} is where {gone}, and {STILL}", entry.address.address);
            }
        }
        match removed_ends.values().find(|entry| in_pool(pool, entry.address)) {
            Some(entry) => bail!("the pool has {}, where service {} listened, and {STILL}", entry.address, entry.name),
            None => Ok(()),
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        let count = self.registry.services.last_key_value().map_or(0, |(highest, _)| usize::from(*highest) + 1);
        let mut services = vec![Service::vacant(); count];
        let mut kinds = self.kinds();
        for (number, entry) in &self.registry.services {
            let members = self.members.remove(number).unwrap_or_default();
            let backend = |number: u16| Some(self.registry.backends.get(&number)?.backend(number));
            let mut service = entry.service(kinds.remove(number), members.into_iter().filter_map(backend).collect());
            let settings = self.settings.get(number);
            service.faulty = settings.map(|settings| settings.health.faulty()).unwrap_or_default();
            service.access = settings.and_then(|settings| settings.access.clone());
            service.limits = settings.map(|settings| settings.limits.clone()).unwrap_or_default();
            service.is_recorded = settings.is_some_and(|settings| settings.access_log.is_some());
            services[usize::from(*number)] = service;
        }
        let mut snapshot = Snapshot::new(services.into(), self.config.snapshot.pool.clone());
        snapshot.when_full = self.config.snapshot.when_full;
        snapshot.keys = self.config.snapshot.keys.clone();
        snapshot.id = id(&self.config.text, &self.numbers);
        snapshot
    }
}

/// [`Snapshot::id`] of a configuration whose services have these numbers: FNV-1a, which stays the same from version to
/// version; never 0.
fn id(text: &str, numbers: &[u16]) -> u64 {
    let bytes = text.bytes().chain(numbers.iter().flat_map(|number| number.to_le_bytes()));
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, hash).max(1)
}

fn by_identity(services: &BTreeMap<u16, ServiceEntry>) -> HashMap<Identity<'_>, u16> {
    services.iter().map(|(number, entry)| (entry.identity(), *number)).collect()
}

const STILL: &str =
    "connections of then may still be there; try again when they have ended, which `drain_limit` bounds";

/// Whether the number of a backend that is not in the configuration is no longer needed.
pub(super) fn is_over(number: u16, entry: &BackendEntry, connections: &dyn Fn(u16) -> u64, now_unix_s: u64) -> bool {
    let long = |since: u64| now_unix_s.saturating_sub(since) >= KEPT_S;
    entry.since_unix_s.is_some_and(long) && connections(number) == 0
}

fn in_pool(pool: &Pool, end: Endpoint) -> bool {
    pool.addresses.contains(&end.address) && (pool.port_first..=pool.port_last).contains(&end.port)
}
