//! Files that were read: what is in them, and who jumps where in their code.
//!
//! For:     planning.
//! State:   each file once, by its number and the time of its last change.
//! Context: control; touches no process.
//! Keeps:   I1 a flow knows all that leads to the places that it was read for; where it was read in part, it refuses others.
//! Checked: below; insn's tests/real, `what_is_found_near_*`.

use super::consumer::GO_GOOD_REGISTERS;
use super::{Amount, Pace, PlanError};
use image::{ElfImage, FileId, ImageError, Machine, Module};
use insn::Flow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::time::SystemTime;
use text::ground::{self, codes};

/// Less code is read whole: it takes no longer.
const PART_FROM_BYTES: usize = 512 << 10;
/// For more functions all code is read.
const PART_MAX: usize = 16;

/// A file that is only looked at: for this processor, or for AArch64, of which all that is asked is known on any.
///
/// # Errors
/// It cannot be read, or is for another processor.
pub(super) fn open(path: &Path) -> Result<ElfImage, ImageError> {
    let image = ElfImage::open(path)?;
    if image.machine() == Machine::Aarch64 { Ok(image) } else { ElfImage::open_native(path) }
}

/// One image with all that placing needs.
pub(super) struct Loaded {
    pub(super) image: Rc<ElfImage>,
    pub(super) flow: Flow,
    /// What the flow was read for, if not for all.
    parts: Option<Vec<Range<u64>>>,
}

impl Loaded {
    /// With all its code read.
    pub(super) fn new(image: ElfImage, pace: &Pace) -> Result<Loaded, PlanError> {
        Loaded::of(Rc::new(image), None, pace)
    }

    fn of(image: Rc<ElfImage>, parts: Option<Vec<Range<u64>>>, pace: &Pace) -> Result<Loaded, PlanError> {
        let flow = match &parts {
            Some(parts) => ground::flow_near(&image, parts),
            None => whole(&image, pace)?,
        };
        Ok(Loaded { image, flow, parts })
    }

    /// What is to be read for some functions: `None` for everything.
    fn parts_for(&self, functions: Option<&[Range<u64>]>) -> Option<Vec<Range<u64>>> {
        let bytes: usize = codes(&self.image).iter().map(|code| code.bytes.len()).sum();
        let known = self.parts.as_ref()?;
        // Threads that Go parks are asked about everywhere.
        let functions = functions.filter(|_| bytes >= PART_FROM_BYTES && !self.image.is_go())?;
        let all: Vec<Range<u64>> = known.iter().chain(functions).cloned().collect();
        (all.len() <= PART_MAX).then_some(all)
    }

    fn is_read_for(&self, functions: Option<&[Range<u64>]>) -> bool {
        let is_analysed = |all: &[Range<u64>]| all.iter().all(|range| self.flow.is_analysed(range.clone()));
        self.parts.is_none() || functions.is_some_and(is_analysed)
    }
}

fn whole(image: &ElfImage, pace: &Pace) -> Result<Flow, PlanError> {
    let bytes = codes(image).iter().map(|code| code.bytes.len() as u64).sum();
    let work = pace.begin(format!("reading {}", image.path().display()), Amount::Code(bytes));
    let flow = ground::flow(image, &|bytes| work.go_on(bytes)).ok_or(PlanError::Stopped)?;
    let unsafe_points = || image.go_unsafe_points().iter().map(|r| r.start.0..r.end.0).collect();
    Ok(if image.is_go() { flow.with_parked_threads(unsafe_points(), GO_GOOD_REGISTERS.into()) } else { flow })
}

/// Files that were read, kept for the next process that maps them: all of libc takes 20 ms and more.
#[derive(Default)]
pub struct Images {
    /// By file and the time of its last change.
    known: BTreeMap<(FileId, SystemTime), Rc<Loaded>>,
    /// Images that somebody else has opened, by the same.
    opened: BTreeMap<(FileId, SystemTime), Rc<ElfImage>>,
    pub(super) pace: Pace,
}

impl Images {
    /// None yet; who waits for them is told by `pace`, and may end it.
    pub fn with_pace(pace: Pace) -> Images {
        Images { pace, ..Images::default() }
    }

    /// The same; of these the names need not be read again.
    pub fn with_opened(images: impl IntoIterator<Item = Rc<ElfImage>>, pace: Pace) -> Images {
        let opened = images.into_iter().filter_map(|image| Some((image.file()?, image))).collect();
        Images { opened, ..Images::with_pace(pace) }
    }

    /// The file of a module, with as much of its code read as was wanted up to now.
    pub(super) fn load(&mut self, pid: u32, module: &Module) -> Result<Rc<Loaded>, PlanError> {
        let key = key(module);
        if let Some(loaded) = key.and_then(|key| self.known.get(&key)) {
            return Ok(loaded.clone());
        }
        let image = match key.and_then(|key| self.opened.get(&key)) {
            Some(image) => image.clone(),
            None => Rc::new(module.open(pid).map_err(PlanError::Image)?),
        };
        if let Some(unread) = image.unread_symbols() {
            self.pace.tell(&format!("{}: {unread}", image.path().display()));
        }
        let loaded = Loaded::of(image, Some(Vec::new()), &self.pace)?;
        Ok(self.keep(module, loaded))
    }

    /// The same with who jumps where around some functions, or everywhere.
    pub(super) fn read(
        &mut self,
        module: &Module,
        loaded: &Rc<Loaded>,
        functions: Option<&[Range<u64>]>,
    ) -> Result<Rc<Loaded>, PlanError> {
        if loaded.is_read_for(functions) {
            return Ok(loaded.clone());
        }
        let parts = loaded.parts_for(functions);
        let read = Loaded::of(loaded.image.clone(), parts, &self.pace)?;
        Ok(self.keep(module, read))
    }

    fn keep(&mut self, module: &Module, loaded: Loaded) -> Rc<Loaded> {
        let loaded = Rc::new(loaded);
        if let Some(key) = key(module) {
            self.known.insert(key, loaded.clone());
        }
        loaded
    }
}

/// The file, and the time of its last change.
fn key(module: &Module) -> Option<(FileId, SystemTime)> {
    let changed = std::fs::metadata(&module.path).and_then(|m| m.modified()).ok();
    module.file.zip(changed)
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.known.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::lookup::find_file;
    use image::spec::Library;

    #[test]
    fn a_flow_that_was_read_in_part_promises_nothing_that_the_whole_does_not() {
        let libc = find_file(&Library::Named("libc".into())).unwrap();
        let image = Rc::new(ElfImage::open_native(&libc).unwrap());
        let pace = Pace::default();
        let whole = Loaded::of(image.clone(), None, &pace).unwrap();
        let (mut called_only, mut lost) = (0, 0);
        for function in image.functions().iter().filter(|f| f.size_bytes > 0).step_by(100) {
            let range = function.range().start.0..function.range().end.0;
            let part = Loaded::of(image.clone(), Some(vec![range.clone()]), &pace).unwrap();
            assert!(part.is_read_for(Some(std::slice::from_ref(&range))) && !part.is_read_for(None));
            for addr in range.clone() {
                assert!(part.flow.is_target(addr) || !whole.flow.is_target(addr), "{addr:#x}");
            }
            let by_all = whole.flow.is_called_only(range.start);
            let by_part = part.flow.is_called_only(range.start);
            assert!(by_all || !by_part, "{:#x}", range.start);
            called_only += usize::from(by_all);
            lost += usize::from(by_all && !by_part);
        }
        assert!(called_only > 10 && lost * 10 < called_only, "{lost} of {called_only}");
    }
}
