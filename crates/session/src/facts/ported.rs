//! What exists on this processor.
//!
//! For:     whoever begins something that may not.
//! State:   none.
//! Context: control.
//! Keeps:   P1 what does not exist is refused by name, before anything is touched.
//! Checked: the machine's test (docs/aarch64.md).

use crate::arch;
use crate::facts::error::Broken;
use crate::facts::site::{Action, SitePlan};
use insn::Rung;

/// Whether `what`, which is not a count that is compiled into a trampoline, exists here.
///
/// # Errors
/// [`Broken::Unported`].
pub(crate) fn check(what: &'static str) -> Result<(), Broken> {
    if arch::IS_WHOLE { Ok(()) } else { Err(Broken::Unported { what }) }
}

/// Whether all that these sites want exists here.
///
/// # Errors
/// [`Broken::Unported`].
pub(crate) fn check_sites(sites: &[SitePlan]) -> Result<(), Broken> {
    let is_by_kernel = |site: &SitePlan| site.placement.rung == Rung::Kernel;
    if sites.iter().any(is_by_kernel) {
        check("a probe of the kernel's")?;
    }
    if sites.iter().any(|site| site.semaphore.is_some()) {
        check("a mark with a count of its tracers")?;
    }
    let is_handled = |action: &Action| *action != Action::Count;
    if sites.iter().flat_map(|site| &site.actions).any(is_handled) {
        check("a handler at a probe (hist, lat, trace, --stack, --if, a program)")?;
    }
    Ok(())
}
