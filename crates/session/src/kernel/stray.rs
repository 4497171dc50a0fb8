//! Breakpoints of the kernel's that are there though nobody owns them.
//!
//! For:     every receipt that says that text is the file's: detach, `recover`, front and guard.
//! State:   none.
//! Context: control.
//! Keeps:   S1 a breakpoint that was ours and still stands is taken out, or named.
//!          S2 one that another nanoprobe's record names is that one's.
//! Checked: testkit `kernel`, which makes the kernel leave one.
//! Source:  kernel/events/uprobes.c (6.18): `uprobe_unregister` in a task with a fatal signal pending cannot get the page
//!          and gives up. The breakpoint and the kernel's entry for it stay, without a consumer, and cost a trap a hit.
//!          Another registration takes the entry over, and its end takes the breakpoint out.

use super::links::{file_place, link, path_of};
use crate::enter::footing::Footing;
use crate::facts::descriptor::owned;
use crate::find::maps::image_maps;
use crate::find::memory::Memory;
use crate::patch::pages::is_under_kernel;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use sys::bpf::instruction;
use wire::KernelSite;

/// More records than this of one controller are not believed: a target may have written them.
pub(crate) const SITES_MAX: usize = 1 << 16;
/// How long the kernel's thread may take to take ours out.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits until the breakpoints of `sites` are out, takes out those that nobody else will, and returns the addresses of
/// those that are still there.
pub(crate) fn mend(memory: &Memory, sites: &[KernelSite]) -> Vec<u64> {
    let left = unowned(memory, sites);
    for site in &left {
        take_out(memory, site);
    }
    // Another may have come meanwhile.
    unowned(memory, &left).into_iter().map(|site| site.site).collect()
}

/// Those that still stand after some time, and are no other's.
fn unowned(memory: &Memory, sites: &[KernelSite]) -> Vec<KernelSite> {
    let end = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(100);
    let mut left = standing(memory, sites);
    while !left.is_empty() {
        // After the look at the text: a record is there before its breakpoint.
        let owners = others(memory);
        left.retain(|site| !owners.contains(&site.site));
        if left.is_empty() || Instant::now() > end {
            break;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
        left = standing(memory, &left);
    }
    left
}

/// Those whose text is not the file's, where it begins with a breakpoint.
fn standing(memory: &Memory, sites: &[KernelSite]) -> Vec<KernelSite> {
    let stands = |site: &&KernelSite| {
        // What cannot be read is not mapped any more.
        memory
            .read_vec(site.site, site.instruction().len())
            .is_ok_and(|found| is_under_kernel(&found, site.instruction()))
    };
    sites.iter().filter(stands).copied().collect()
}

/// The sites in the records of all controllers that live.
pub(crate) fn others(memory: &Memory) -> BTreeSet<u64> {
    let ours = sys::getpid().cast_signed();
    let found = Footing::all(memory, &image_maps(memory.pid).unwrap_or_default());
    let others = found.into_iter().filter(|found| found.controller != ours && found.is_alive());
    let codes = others.filter_map(|found| found.footing.read_code(memory).ok());
    codes.flat_map(|code| code.kernel_sites().map(|site| site.site).collect::<Vec<_>>()).collect()
}

/// Registers a probe there and ends it.
fn take_out(memory: &Memory, site: &KernelSite) {
    let mappings = image_maps(memory.pid).unwrap_or_default();
    // What the record says of the file is not believed.
    let Some((mapping, offset)) = file_place(&mappings, site.site) else { return };
    // r0 = 0, exit.
    let nothing = [instruction(0xb7, 0, 0, 0, 0), instruction(0x95, 0, 0, 0, 0)];
    let Ok(program) = owned(sys::bpf::load_uprobes_program(&nothing)) else { return };
    drop(link(&program, &path_of(memory.pid, mapping), &[offset], &[0], memory.pid));
}
