//! What exists on this processor.
//!
//! For:     whoever begins something that may not.
//! State:   none.
//! Context: control.
//! Keeps:   P1 what does not exist is refused by name, before anything is touched.
//! Checked: the machine's test (docs/aarch64.md).

use crate::arch;
use crate::facts::error::Broken;
use crate::facts::program::Programs;
use crate::facts::site::SitePlan;

/// Whether `what`, which is not one of the handlers that exist everywhere, exists here.
///
/// # Errors
/// [`Broken::Unported`].
pub(crate) fn check(what: &'static str) -> Result<(), Broken> {
    if arch::IS_WHOLE { Ok(()) } else { Err(Broken::Unported { what }) }
}

/// What runs at a probe and is refused on its own.
pub(crate) const STACKS: &str = "a walk of stacks (--stack, ustack)";

/// Whether all that these sites and programs want exists here.
///
/// # Errors
/// [`Broken::Unported`].
pub(crate) fn check_sites(sites: &[SitePlan], programs: &Programs) -> Result<(), Broken> {
    if programs.walk() || sites.iter().any(SitePlan::walks) {
        check(STACKS)?;
    }
    Ok(())
}
