//! The images of this process, read for the functions that are asked about.
//!
//! For:     plans of jumps.
//! State:   an image for each module in which a jump was planned, and who jumps where in it: near the functions that
//!          were asked about first, then in all of it.
//! Context: target, under the planner's lock.
//! Keeps:   N1 an image is that of the file that is mapped there now: file, address and offset are compared each time.
//! Checked: `tests/jumps.rs`.

use crate::module::Module;
use image::{ElfImage, ImageAddr, Process};
use insn::Flow;
use std::ops::Range;

/// So many functions of a module are read by themselves; then all of it, which costs six to ten times one.
const NEAR: usize = 6;

/// An image, where it lies, and what is known of its code.
pub(crate) struct Ground {
    module: Module,
    pub image: ElfImage,
    pub bias: u64,
    /// All of the module, in the process.
    pub range: Range<u64>,
    /// What is not to be displaced.
    pub special: Vec<Range<u64>>,
    near: Vec<(Range<u64>, Flow)>,
    whole: Option<Flow>,
}

#[derive(Default)]
pub(crate) struct Grounds {
    known: Vec<Ground>,
    /// Those that are no images.
    none: Vec<Module>,
}

impl Grounds {
    /// The image of an address; `None` if there is none.
    pub fn of(&mut self, at: u64) -> Option<&Ground> {
        let module = crate::module::of(at)?;
        let ground = self.find(module, at)?;
        ground.read_flow(ground.image_addr(at));
        Some(ground)
    }

    fn find(&mut self, module: Module, at: u64) -> Option<&mut Ground> {
        if let Some(known) = self.known.iter().position(|ground| ground.module == module) {
            return self.known.get_mut(known);
        }
        if self.none.contains(&module) {
            return None;
        }
        // What was mapped there before is gone.
        let is_apart =
            |old: &Module| old.range.end <= module.range.start || module.range.end <= old.range.start;
        self.known.retain(|old| is_apart(&old.module));
        self.none.retain(is_apart);
        match Ground::read(module.clone(), at) {
            Some(ground) => self.known.push(ground),
            None => {
                self.none.push(module);
                return None;
            }
        }
        self.known.last_mut()
    }
}

impl Ground {
    fn read(module: Module, at: u64) -> Option<Ground> {
        let pid = sys::getpid();
        let process = Process::read(pid).ok()?;
        let found = process.module_at(image::Addr(at))?;
        let image = found.open(pid).ok()?;
        let bias = found.bias.0;
        let starts = image.segments().iter().map(|s| s.range.start.0.wrapping_add(bias)).min()?;
        let ends = image.segments().iter().map(|s| s.range.end.0.wrapping_add(bias)).max()?;
        let plain = |r: Range<ImageAddr>| r.start.0..r.end.0;
        let sequences = image.rseq_ranges().into_iter().map(|s| plain(s.range));
        let returns = image.signal_return_ranges().into_iter().map(plain);
        let special = sequences.chain(returns).chain(image.data_in_code().into_iter().map(plain)).collect();
        Some(Ground { module, image, bias, range: starts..ends, special, near: Vec::new(), whole: None })
    }

    pub fn image_addr(&self, at: u64) -> u64 {
        at.wrapping_sub(self.bias)
    }

    /// The function that holds an image address.
    pub fn function(&self, site: u64) -> Option<Range<u64>> {
        let range = self.image.function_at(ImageAddr(site))?.range();
        (range.start.0 <= site && site < range.end.0).then_some(range.start.0..range.end.0)
    }

    /// Reads who jumps where around an image address.
    fn read_flow(&mut self, site: u64) {
        if self.whole.is_some() || self.near(site).is_some() {
            return;
        }
        if self.near.len() >= NEAR {
            self.near.clear();
            self.whole = text::ground::flow(&self.image, &|_| true);
            return;
        }
        let asked = self.function(site).unwrap_or(site..site + 1);
        let flow = text::ground::flow_near(&self.image, std::slice::from_ref(&asked));
        self.near.push((asked, flow));
    }

    fn near(&self, site: u64) -> Option<&Flow> {
        self.near.iter().find(|(range, _)| range.contains(&site)).map(|(_, flow)| flow)
    }

    /// Who jumps where around an image address.
    pub fn flow(&self, site: u64) -> &Flow {
        let flow = self.whole.as_ref().or_else(|| self.near(site));
        flow.unwrap_or_else(|| unreachable!("`Grounds::of` reads it"))
    }

    /// What the file has.
    pub fn bytes(&self, range: &Range<u64>) -> Option<Vec<u8>> {
        let len = (range.end - range.start) as usize;
        self.image.bytes(ImageAddr(range.start), len).map(<[u8]>::to_vec)
    }
}
