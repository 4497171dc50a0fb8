//! Making trays.
//!
//! For:     `view`, which takes them when lists overflow.
//! State:   chunks of the arena that hold nothing else.
//! Context: control.
//! Keeps:   Y3 trays take at most one chunk in 64 of the arena, and one for four of objects and each CPU. Y4 they
//!          are made once CPUs have asked for them: a cache without traffic has none.
//! Checked: `audit`: those made are those on stacks.

use super::Tender;
use crate::chunk::CHUNK;
use crate::stack::Batch;
use crate::tray::{TRAY, Tray};
use core::sync::atomic::Ordering::Relaxed;

const PER_CHUNK: u32 = (CHUNK / size_of::<Tray>()) as u32;

impl Tender {
    /// Makes a chunk of trays for each CPU that wanted one and got none.
    pub fn make_trays(&mut self) {
        for cpu in self.cpus() {
            let short = &self.setup.view.cell(cpu).short;
            if short.load(Relaxed) == 0 {
                continue;
            }
            short.store(0, Relaxed);
            let chunks = &mut self.setup.chunks;
            let most = (chunks.arena().chunks() as usize / 64).min(self.lanes.len() + chunks.count() / 4);
            if chunks.tray_chunks() >= most {
                return;
            }
            let Some(at) = chunks.take_tray_chunk() else { return };
            for n in 0..PER_CHUNK {
                let index = (at / 8) as u32 + n * (size_of::<Tray>() as u32 / 8);
                self.put_blank(cpu, index | TRAY);
            }
            self.trays += PER_CHUNK;
        }
    }

    /// A batch whose objects are elsewhere by now: if it was a tray, that is blank.
    pub fn keep_tray(&mut self, batch: Batch) {
        if batch.is_tray() {
            let cpu = batch.head() / 64 % self.lanes.len() as u32;
            // SAFETY: the worker's own tray.
            unsafe { self.setup.view.items().tray(batch.head()) }.set_len(0);
            self.put_blank(cpu, batch.head());
        }
    }

    fn put_blank(&self, cpu: u32, head: u32) {
        // SAFETY: the worker's own tray, without objects.
        unsafe { self.setup.view.cell(cpu).blank.push(self.setup.view.items(), Batch::new(head, 0)) };
    }
}
