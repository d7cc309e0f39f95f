//! What an earlier process of an instance has left.

use super::super::super::instance::InstanceRecord;
use super::super::super::{begin, check_device};
use super::{Adoption, InstancePrograms};
use crate::config::Settings;
use anyhow::Result;
use hairpin_core::flow::Steering;
use hairpin_linux::programs;

/// The programs and maps that an earlier process has left; `None` if there are none.
pub(crate) fn adopt(settings: &Settings, steering: Steering) -> Result<Option<InstancePrograms>> {
    match InstancePrograms::adopt(settings, steering)? {
        Adoption::Programs(programs) => Ok(Some(*programs)),
        Adoption::Absent => Ok(None),
        Adoption::Incompatible(why) => anyhow::bail!("{}", begin::incompatible(&why)),
    }
}

/// Detaches and unpins everything an instance has left.
pub(crate) fn flush(record: &InstanceRecord) -> Result<()> {
    let flushed = programs::flush(&record.pin_directory, &record.instance);
    programs::checks::remove_device(&check_device(&record.instance))?;
    flushed?;
    // Goes only if it is empty: other instances may have their pins in it.
    let _ = std::fs::remove_dir(&record.pin_directory);
    Ok(())
}
