//! Giving back the pages that a killed watch has left protected.
//!
//! For:     recovery.
//! State:   none; the journal in the process says which.
//! Context: control.
//! Keeps:   W1 a page gets back what the journal says only where a watch can have left it so: `Orphan`.
//! Checked: testkit `watching`.

use crate::enter::journal::{LEN, Orphan, are_restored, orphans};
use crate::facts::error::Broken;
use crate::find::maps::image_maps;
use crate::find::memory::Memory;
use crate::find::proof::Unmapped;
use crate::hold::foothold::Foothold;
use crate::hold::remote::Remote;
use crate::hold::world::World;
use crate::leave::receipt::Receipt;
use std::time::Instant;
use sys::nr;

/// Gives a process its pages back that a watch left protected which was killed; a receipt for each such watch.
///
/// # Errors
/// The process cannot be entered.
pub(crate) fn recover(pid: i32) -> Result<Vec<Receipt>, Broken> {
    let memory = Memory::open(pid)?;
    let mappings = image_maps(pid)?;
    let mut receipts = Vec::new();
    for Orphan { range, own } in orphans(&memory, &mappings) {
        let began = Instant::now();
        let mut world = World::stop(pid)?;
        memory.check()?;
        let mut remote = Remote::begin(&mut world, &memory, &Foothold::find(&memory, &mappings)?)?;
        for (addr, prot) in &own {
            // One that the process has unmapped since has nothing to get back.
            let _ = remote.call("mprotect", nr::MPROTECT, [*addr, LEN, *prot, 0, 0, 0]);
        }
        let unmapped = Unmapped::proven(std::iter::once(remote.unmap(&range)))?;
        drop(remote);
        let restored = are_restored(pid, &own);
        let mut receipt = Receipt::default();
        receipt.longest_stall = world.resume();
        (receipt.pages, receipt.took) = (own.len(), began.elapsed());
        receipt.is_left(restored, Some(unmapped));
        receipts.push(receipt);
    }
    Ok(receipts)
}
