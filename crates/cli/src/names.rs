//! What the addresses of a stack are called.
//!
//! For:     counted stacks; `ustack`, `usym` and `func` in scripts.
//! State:   the modules of the process as they were seen, with their files open; what was found out already.
//! Context: control.
//! Keeps:   N1 an address is named by the file that the process had mapped there, also when the process is gone or the
//!             file is replaced.
//!          N2 what has no name is told by its file and offset, or as a number.
//! Checked: tests below; testkit `stacks`.

use crate::made::{MadeFunctions, cut};
use image::dwarf::DebugInfo;
use image::{Addr, ElfImage, FileId, ImageAddr, Module, Process};
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

/// One frame of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    /// The function, or what there is of a name.
    pub name: String,
    /// How far behind its beginning; `None` for one that was inlined.
    pub offset: Option<u64>,
    /// `file:line`.
    pub source: Option<String>,
    /// It was inlined into the next.
    pub is_inlined: bool,
    /// There is no name: it is the file's, and the offset is from where the file's addresses begin.
    pub is_file: bool,
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(offset) = self.offset {
            write!(f, "+{offset:#x}")?;
        }
        match &self.source {
            Some(source) => write!(f, "@{source}"),
            None => Ok(()),
        }
    }
}

/// Names of the addresses of one process.
pub struct Names {
    pid: i32,
    modules: Vec<Held>,
    /// Functions that a program has made at run time and told of.
    made: MadeFunctions,
    known: HashMap<Place, Vec<Frame>>,
    files: Files,
}

/// Files that were opened: each once, for all processes that have it mapped.
#[derive(Clone, Default)]
pub struct Files(Rc<RefCell<HashMap<FileId, Rc<Opened>>>>);

/// One of them.
#[derive(Default)]
struct Opened {
    file: Option<std::fs::File>,
    image: OnceCell<Option<ElfImage>>,
    info: OnceCell<Option<DebugInfo>>,
}

impl Files {
    fn open(&self, module: &Module, pid: i32) -> Rc<Opened> {
        let open =
            || Rc::new(Opened { file: module.open_file(pid.cast_unsigned()).ok(), ..Opened::default() });
        match module.file {
            // As long as it is open its number is no other's.
            Some(id) => Rc::clone(self.0.borrow_mut().entry(id).or_insert_with(open)),
            None => open(),
        }
    }
}

/// A file's own number, and a place in the file.
type Built<'a> = (&'a [u8], u64);

/// An address, and whether it is an instruction's own and not a return address.
type Place = (u64, bool);

/// A module with its file.
struct Held {
    module: Module,
    ranges: Vec<Range<u64>>,
    opened: Rc<Opened>,
}

impl Held {
    fn contains(&self, addr: u64) -> bool {
        self.ranges.iter().any(|range| range.contains(&addr))
    }

    fn image(&self, pid: i32) -> Option<&ElfImage> {
        let read = || match &self.opened.file {
            Some(file) => ElfImage::from_file(file, &self.module.path).ok(),
            None => vdso(pid, &self.ranges),
        };
        self.opened.image.get_or_init(read).as_ref()
    }

    fn info(&self, pid: i32) -> Option<&DebugInfo> {
        let read = || self.image(pid).and_then(ElfImage::debug_info);
        self.opened.info.get_or_init(read).as_ref()
    }
}

/// The kernel's code in a process, which is the same in ours.
fn vdso(pid: i32, ranges: &[Range<u64>]) -> Option<ElfImage> {
    let range = ranges.first()?;
    let mut bytes = vec![0; (range.end - range.start) as usize];
    sys::remote::read_process(pid, range.start, &mut bytes).ok()?;
    ElfImage::from_bytes(bytes).ok()
}

impl Names {
    /// What there is now.
    pub fn hold(pid: i32, files: &Files) -> Names {
        let (modules, made, known) = (Vec::new(), MadeFunctions::hold(pid), HashMap::new());
        let mut names = Names { pid, modules, made, known, files: files.clone() };
        names.look();
        names
    }

    /// Takes what has come since, modules and what the program says of code that it has made; what has gone is kept, behind what has
    /// come in its place. To be called when a walk has met something new: files may be replaced, and the process may go.
    pub fn look(&mut self) {
        self.made.look(self.pid);
        let Ok(process) = Process::read(self.pid.cast_unsigned()) else { return };
        for module in process.modules {
            if self.modules.iter().any(|held| held.module == module) {
                continue;
            }
            let opened = self.files.open(&module, self.pid);
            let ranges = module.exec.iter().map(|part| part.range.start.0..part.range.end.0).collect();
            self.modules.insert(0, Held { module, ranges, opened });
        }
    }

    fn holder(&self, addr: u64) -> Option<&Held> {
        self.modules.iter().find(|held| held.contains(addr))
    }

    /// Makes the names of all that is on these stacks known.
    pub fn learn<'a>(&mut self, stacks: impl Iterator<Item = &'a Vec<u64>>, has_lines: bool) {
        let stacks: Vec<&Vec<u64>> = stacks.collect();
        let news = |names: &Names| -> Vec<Place> {
            let places: BTreeSet<Place> = stacks.iter().flat_map(|stack| names.places(stack)).collect();
            places.into_iter().filter(|place| !names.known.contains_key(place)).collect()
        };
        let mut new = news(self);
        if new.iter().any(|(addr, _)| !self.is_placed(*addr)) {
            self.look();
            new = news(self);
        }
        for place in &new {
            let frame = self.frame(*place);
            let frame = Frame { source: frame.source.filter(|_| has_lines), ..frame };
            self.known.insert(*place, vec![frame]);
        }
        if has_lines {
            self.learn_lines(&new);
        }
    }

    fn is_placed(&self, addr: u64) -> bool {
        self.holder(addr).is_some() || self.made.at(addr).is_some()
    }

    /// The function that has the instruction there, and how far behind its beginning that is.
    pub fn function(&mut self, addr: u64) -> Option<(String, u64)> {
        if !self.is_placed(addr) {
            self.look();
        }
        let frame = self.frame((addr, true));
        Some((frame.name, frame.offset?)).filter(|_| !frame.is_file)
    }

    /// The path of the file that is mapped at an address of a stack, the file's own number and the address's place in it.
    pub fn file(&self, addr: u64) -> Option<(String, Option<Built<'_>>)> {
        let held = self.holder(addr)?;
        let image = held.image(self.pid);
        let id = image.and_then(|image| Some((image.build_id()?, place_in_file(image, held, addr)?)));
        Some((held.module.path.display().to_string(), id))
    }

    fn frame(&self, (addr, is_own): Place) -> Frame {
        let inside = if is_own { addr } else { addr.wrapping_sub(1) };
        let bare = |name: String, offset| Frame { name, offset: Some(offset), ..Frame::default() };
        if let Some((start, made)) = self.made.at(inside) {
            let source = made.source(inside);
            return Frame { source, ..bare(made.name.clone(), addr - start) };
        }
        if !is_own && self.is_signal_return(addr) {
            return Frame { name: "[signal]".into(), ..Frame::default() };
        }
        let Some(held) = self.holder(inside) else {
            return Frame { name: format!("{addr:#x}"), ..Frame::default() };
        };
        let at = held.module.image_addr(Addr(inside));
        let function = held.image(self.pid).and_then(|image| image.function_at(at));
        match function.and_then(|f| Some((f.addr.0, f.name()?))) {
            Some((start, name)) => {
                bare(cut(&image::demangle(name)), at.0.wrapping_sub(start) + addr - inside)
            }
            None => {
                let frame = bare(held.module.file_name().to_owned(), at.0 + addr - inside);
                Frame { is_file: true, ..frame }
            }
        }
    }

    /// Source lines and inlined functions, from debug information, one file after the other.
    fn learn_lines(&mut self, new: &[Place]) {
        for held in &self.modules {
            let inside = |(addr, is_own): &Place| if *is_own { *addr } else { addr.wrapping_sub(1) };
            let mine = |place: &&Place| self.holder(inside(place)).is_some_and(|h| std::ptr::eq(h, held));
            let here: Vec<Place> = new.iter().filter(mine).copied().collect();
            if here.is_empty() {
                continue;
            }
            let Some(info) = held.info(self.pid) else { continue };
            let addrs: Vec<ImageAddr> =
                here.iter().map(|p| held.module.image_addr(Addr(inside(p)))).collect();
            for (place, found) in here.iter().zip(info.places(&addrs)) {
                let Some(frames) = self.known.get_mut(place) else { continue };
                let Some(outer) = frames.pop() else { continue };
                let last = found.len().saturating_sub(1);
                for (i, one) in found.iter().enumerate() {
                    let source = one.file.as_ref().map(|file| match one.line {
                        Some(line) => format!("{file}:{line}"),
                        None => file.clone(),
                    });
                    // The function that has the code is called what its symbol is.
                    let name = if i == last {
                        outer.name.clone()
                    } else {
                        cut(one.function.as_deref().unwrap_or("?"))
                    };
                    let offset = outer.offset.filter(|_| i == last);
                    frames.push(Frame { name, offset, source, is_inlined: i != last, ..outer.clone() });
                }
                if found.is_empty() {
                    frames.push(outer);
                }
            }
        }
    }

    /// The addresses of a stack: the first is an instruction's own, and so is one where a signal came; the others are behind calls.
    fn places(&self, stack: &[u64]) -> Vec<Place> {
        let mut is_own = true;
        let place = |addr: &u64| {
            let place = (*addr, is_own);
            is_own = self.is_signal_return(*addr);
            place
        };
        stack.iter().map(place).collect()
    }

    /// Whether the code there is what signal handlers return to.
    fn is_signal_return(&self, addr: u64) -> bool {
        const RETURNS: [&[u8]; 2] =
            [&[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05], &[0xb8, 15, 0, 0, 0, 0x0f, 0x05]];
        let Some(held) = self.holder(addr) else { return false };
        let at = held.module.image_addr(Addr(addr));
        let code = held.image(self.pid).and_then(|image| image.bytes_from(at));
        code.is_some_and(|code| RETURNS.iter().any(|wanted| code.starts_with(wanted)))
    }

    /// The frames of a stack, innermost first; one address may be several, where functions were inlined.
    pub fn stack(&self, stack: &[u64]) -> Vec<Frame> {
        self.with_addrs(stack).map(|(_, frame)| frame.clone()).collect()
    }

    /// The same with their addresses.
    pub fn with_addrs(&self, stack: &[u64]) -> impl Iterator<Item = (u64, &Frame)> {
        let places = self.places(stack).into_iter();
        places.flat_map(|place| self.known.get(&place).into_iter().flatten().map(move |f| (place.0, f)))
    }
}

/// Where in its file an address of a process is.
fn place_in_file(image: &ElfImage, held: &Held, addr: u64) -> Option<u64> {
    Some(image.file_offset(held.module.image_addr(Addr(addr)))?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn here() -> u64 {
        std::hint::black_box(here as fn() -> u64 as usize as u64) + 1
    }

    #[test]
    fn an_address_of_ours_has_our_functions_name_and_its_line() {
        let (addr, mut names) = (here(), Names::hold(std::process::id() as i32, &Files::default()));
        let stack = vec![addr, addr];
        names.learn([&stack].into_iter(), true);
        let named = names.stack(&stack);
        assert!(named.last().is_some_and(|frame| frame.name.contains("here")), "{named:?}");
        assert!(named.iter().any(|frame| frame.to_string().contains("names.rs:")), "{named:?}");
        let nowhere = vec![8];
        names.learn([&nowhere].into_iter(), false);
        assert_eq!(names.stack(&nowhere)[0].to_string(), "0x8");
    }

    #[test]
    fn functions_that_a_program_made_are_called_what_it_says() {
        let pid = std::process::id() as i32;
        let path = format!("/tmp/perf-{pid}.map");
        std::fs::write(&path, "1000 20 Interpreter:run /app/x.js:3\n0x2000 10 second\nnonsense\n").unwrap();
        let mut names = Names::hold(pid, &Files::default());
        std::fs::remove_file(&path).unwrap();
        let stack = vec![0x1004, 0x2010, 0x2011];
        names.learn([&stack].into_iter(), false);
        let named: Vec<String> = names.stack(&stack).iter().map(Frame::to_string).collect();
        // A return address at the very end is of the call before it.
        assert_eq!(named, ["Interpreter:run /app/x.js:3+0x4", "second+0x10", "0x2011"]);
    }
}
