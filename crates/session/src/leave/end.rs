//! The end of a session.
//!
//! For:     `Session::detach`, and whoever drops one.
//! State:   none.
//! Context: control. One OS thread: ptrace ties stops to it.
//! Keeps:   S1 a session that is dropped without a detach detaches.
//!          D5 forked children that inherited our patches are freed of them too: heirs.rs.
//! Checked: testkit `traces`, `endings`.

use crate::facts::descriptor;
use crate::facts::error::Broken;
use crate::facts::site::{Armed, Link};
use crate::find::maps::image_maps;
use crate::hold::tracer::apart;
use crate::hold::world::Hurry;
use crate::leave::heirs;
use crate::leave::leaving::Leaving;
use crate::leave::receipt::Receipt;
use crate::live::session::Session;
use std::time::Instant;

impl Session {
    /// Takes every probe out and our memory back.
    ///
    /// Counts stay readable.
    ///
    /// # Errors
    /// The process could not be stopped; nothing was changed.
    pub fn detach(&mut self) -> Result<Receipt, Broken> {
        let _hurry = Hurry::begin();
        let _released = descriptor::release();
        apart(|| self.detach_here())
    }

    fn detach_here(&mut self) -> Result<Receipt, Broken> {
        let began = Instant::now();
        let mut receipt = Receipt::default();
        self.is_over = true;
        if let Some(kernel) = &mut self.kernel {
            receipt.breakpoints = kernel.close(&self.memory);
        }
        let (links, footing) = (self.links(), self.regions.footing(self.rseq_offset));
        let by_kernel = self.kernel.as_ref().map_or(0, |kernel| kernel.sites.len());
        let leaving = Leaving {
            memory: &self.memory,
            before: &self.mappings,
            links: &links,
            footing: &footing,
            foothold: &self.foothold,
        };
        leaving.leave_or_see_end(&mut receipt)?;
        if !receipt.was_gone() && by_kernel > 0 {
            receipt.restored += by_kernel - receipt.breakpoints.len().min(by_kernel);
            // All is done: what cannot be looked at now is no failure. As a rule it is there.
            receipt.has_kernel_page = image_maps(self.pid())
                .map_or(true, |mappings| mappings.iter().any(|m| m.path.as_os_str() == "[uprobes]"));
        }
        // A child may have been forked when a probe was in that has gone since.
        let gone = self.places.gone().map(|gone| gone.armed.link());
        let all: Vec<Link<'_>> = links.iter().cloned().chain(gone).collect();
        heirs::free(&Leaving { links: &all, ..leaving }, self.regions.arena.inode, &mut receipt);
        self.longest_stall = self.longest_stall.max(receipt.longest_stall);
        receipt.longest_stall = self.longest_stall;
        receipt.took = began.elapsed();
        self.has_left = true;
        for armed in &mut self.armed {
            (armed.is_live, armed.is_out) = (false, false);
        }
        Ok(receipt)
    }

    fn links(&self) -> Vec<Link<'_>> {
        // One that is out for a while is restored already; a thread may be inside, and a child may have its jump.
        self.armed.iter().filter(|a| a.is_live || a.is_out).map(Armed::link).collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_over {
            let _: Result<_, Broken> = self.detach();
        }
    }
}
