//! Adopts the objects that an earlier process has pinned, without losing a packet.

use super::access::AccessInForce;
use super::checks::CheckDevice;
use super::object::{self, Constants, Programs};
use super::pins::{self, Pins};
use super::{CONTROL, LoadedPlane, Maps, ProgramOptions, SetUpRoom, check};
use crate::abi::{self, Bytes};
use crate::control::{Control, SharedControlBlock};
use anyhow::{Context, Result};
use hairpin_core::flow::Steering;
use libbpf_rs::{MapCore, MapFlags, MapHandle, OpenMap, OpenObject};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The result of [`LoadedPlane::adopt`].
#[derive(Debug)]
pub enum AdoptedPrograms {
    /// The pinned maps, with the programs of this build. Attached hooks still run the programs it had, on the same
    /// maps, until it is attached anew.
    Plane(Box<LoadedPlane>),
    /// There is nothing, or nothing that was ever completed.
    Absent,
    /// There is something that this build does not understand, for the reason given; it has been left as it is.
    /// [`LoadedPlane::load`] would remove it.
    Incompatible(String),
}

impl LoadedPlane {
    /// Takes over the maps and attachments that an earlier process of this instance has pinned, with all their
    /// contents, and brings the pinned programs up to those of this build. `steering.key` is the one that the
    /// connections were spread by; how many workers there are from now on is told by [`LoadedPlane::steer`], not here. The
    /// settings of `options` take effect at once, except for the numbers of rules, which stay what they were
    /// ([`LoadedPlane::rules_max`]), and the way of attaching, which [`LoadedPlane::attach`] follows. The heartbeat is left
    /// alone.
    ///
    /// The earlier process may still be running, as long as its workers' engines are not in use beside this one's.
    /// Errors: as for [`LoadedPlane::load`].
    pub fn adopt(options: &ProgramOptions, steering: Steering) -> Result<AdoptedPrograms> {
        check(steering)?;
        let Some(pins) = Pins::find(&options.pin_directory, &options.instance)? else {
            return Ok(AdoptedPrograms::Absent);
        };
        let open = object::open(options)?;
        let maps = match pinned(&pins, &open, steering)? {
            Pinned::Maps(maps) => Arc::new(maps),
            Pinned::Absent => return Ok(AdoptedPrograms::Absent),
            Pinned::Incompatible(why) => return Ok(AdoptedPrograms::Incompatible(why)),
        };
        let control = Arc::new(Control::map(&maps)?);
        settle(control.block(), options);
        let programs = adopt_programs(options, &pins, &maps, control.block(), open)?;
        let rules = (control.block().rules_v4_max.load(Ordering::Relaxed), maps.named("rules_v6")?.max_entries());
        let attachments = Vec::new();
        Ok(AdoptedPrograms::Plane(Box::new(LoadedPlane {
            pins,
            maps,
            control,
            programs,
            attach: options.attach,
            attachments,
            rules,
            has_checks: false,
            check_device: CheckDevice::default(),
            set_up: None,
            access: AccessInForce::default(),
        })))
    }
}

impl LoadedPlane {
    /// Puts the settings of `options` into force that [`LoadedPlane::adopt`] puts into force, while everything runs.
    pub fn set_options(&self, options: &ProgramOptions) {
        settle(self.control.block(), options);
    }
}

enum Pinned {
    Maps(Maps),
    Absent,
    Incompatible(String),
}

/// The pinned maps, if they are what `open`, this build's object, would make.
fn pinned(pins: &Pins, open: &OpenObject, steering: Steering) -> Result<Pinned> {
    let wanted = || open.maps().filter(|map| !map.name().to_string_lossy().contains('.'));
    let mut maps = HashMap::new();
    let Some(control) = pins.map(CONTROL)? else { return Ok(Pinned::Absent) };
    if let Some(why) = wanted().filter(|map| map.name() == CONTROL).find_map(|map| difference(&map, &control)) {
        return Ok(Pinned::Incompatible(why));
    }
    let block = control.lookup(0u32.bytes(), MapFlags::ANY).context("cannot read map control")?;
    let block = block.and_then(|bytes| abi::ControlBlock::from_bytes(&bytes)).context("map control is empty")?;
    if (block.abi_version, block.abi_layout) != (abi::VERSION, abi::LAYOUT) {
        return Ok(Pinned::Incompatible(format!(
            "its maps are of version {} and layout {:08x}; this build's, of version {} and layout {:08x}",
            block.abi_version,
            block.abi_layout,
            abi::VERSION,
            abi::LAYOUT
        )));
    }
    if block.network != pins::network()? {
        return Ok(Pinned::Incompatible("it belongs to another network namespace".to_string()));
    }
    if block.steering_key != steering.key {
        return Ok(Pinned::Incompatible("its connections are spread over workers by another key".to_string()));
    }
    maps.insert(CONTROL.to_string(), control);
    for map in wanted().filter(|map| map.name() != CONTROL) {
        let name = map.name().to_string_lossy().into_owned();
        let Some(found) = pins.map(&name)? else {
            return Ok(Pinned::Incompatible(format!("map {name} is not pinned")));
        };
        if let Some(why) = difference(&map, &found) {
            return Ok(Pinned::Incompatible(why));
        }
        maps.insert(name, found);
    }
    Ok(Pinned::Maps(Maps(maps)))
}

/// How `found` differs from `wanted` so that programs could not use it in its place. Rule maps and those for set-up may have
/// any size.
fn difference(wanted: &OpenMap<'_>, found: &MapHandle) -> Option<String> {
    let name = wanted.name().to_string_lossy();
    let flags = match found.info() {
        Ok(info) => info.info.map_flags,
        Err(error) => return Some(format!("map {name} cannot be examined: {error}")),
    };
    let sized = ["rules_v4", "rules_v6", "spilled_v4", "sequence_v4", "sequence_v6"].contains(&&*name);
    let entries = |entries: u32| if sized || SetUpRoom::of(&name, None).is_some() { 0 } else { entries };
    // Programs do not notice where elements come from.
    // The kernel sets the other flag itself, of a map of devices.
    let ignored = if sized { libbpf_sys::BPF_F_NO_PREALLOC } else { 0 }
        | if name == "devices" { libbpf_sys::BPF_F_RDONLY_PROG } else { 0 };
    let of = [
        ("type", u32::from(wanted.map_type()), u32::from(found.map_type())),
        ("key size", wanted.key_size(), found.key_size()),
        ("value size", wanted.value_size(), found.value_size()),
        ("size", entries(wanted.max_entries()), entries(found.max_entries())),
        ("flags", wanted.map_flags() | ignored, flags | ignored),
    ];
    let (what, wanted, found) = of.into_iter().find(|(_, wanted, found)| wanted != found)?;
    Some(format!("map {name} has {what} {found}, this build's has {wanted}"))
}

/// Writes the settings, field by field: each is whole at any instant.
fn settle(block: &SharedControlBlock, options: &ProgramOptions) {
    let order = Ordering::Relaxed;
    block.absent_drop.store(options.when_absent as u32, order);
    block.serve_ms.store(options.serve_ms(), order);
    block.heartbeat_timeout_ns.store(options.heartbeat_timeout.as_nanos() as u64, order);
    block.policer_backend_pps.store(options.policer_backend_pps, order);
    block.handover_ms.store(options.handover_bound.as_millis() as u32, order);
}

/// The pinned programs if they are this build's; else this build's, which are pinned instead. Old and new ones run side
/// by side for a moment, so they mark frames that pass to the kernel alike.
fn adopt_programs(
    options: &ProgramOptions,
    pins: &Pins,
    maps: &Maps,
    block: &SharedControlBlock,
    open: OpenObject,
) -> Result<Programs> {
    let constants = Constants::with_mark(options, block.to_kernel_mark.load(Ordering::Relaxed));
    let fingerprint = constants.fingerprint();
    if block.programs.load(Ordering::Relaxed) == fingerprint
        && let Ok(programs) = Programs::from(|name| pins.program(name))
    {
        return Ok(programs);
    }
    let object = object::load(open, &constants, Some(maps))?;
    let programs = Programs::of(&object)?;
    // A process that starts after a crash in between must not take a mixture for one set.
    block.programs.store(0, Ordering::SeqCst);
    for (name, program) in programs.named() {
        pins.pin_program(program.as_fd(), name)?;
    }
    block.programs.store(fingerprint, Ordering::SeqCst);
    Ok(programs)
}
