//! Whether a program may take the time stamp counter away from itself while its calls are timed.
//!
//! For:     `lat` and `trace`, whose hits read the counter: a thread that has asked for a signal there dies of them.
//! State:   none.
//! Context: control.
//! Keeps:   T1 a module that passes the request to prctl(2) as constants, by libc's functions or by a system call of its own,
//!             is named. A request that is computed is not found.
//! Checked: tests below; testkit `exact`.

use crate::facts::error::Broken;
use crate::find::process;
use crate::find::threads::is_libc;
use image::maps::ExecMapping;
use image::{ElfImage, ImageAddr, Machine, Module, ModuleKind, Process};
use memchr::memmem;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

const PR_SET_TSC: u32 = 26;
const PR_TSC_SIGSEGV: u32 = 2;
const PR_SET_SECCOMP: u32 = 22;
const SECCOMP_MODE_STRICT: u32 = 1;
const PRCTL: u32 = sys::nr::PRCTL as u32;
/// Strict seccomp takes the counter away too.
const REQUESTS: [[u32; 2]; 2] = [[PR_SET_TSC, PR_TSC_SIGSEGV], [PR_SET_SECCOMP, SECCOMP_MODE_STRICT]];
/// Bytes around the load of an argument in which those of the others stand, and behind it the call.
const NEAR: usize = 32;

/// The first module of the process that may do so, but for its libc.
pub(crate) fn may_be_taken_away(pid: i32) -> Result<Option<String>, Broken> {
    let unreadable = |e: image::ImageError| match process::is_over(pid) {
        true => Broken::Gone { pid },
        false => Broken::File { path: format!("/proc/{pid}/maps"), why: e.to_string() },
    };
    let process = Process::read(pid as u32).map_err(unreadable)?;
    let own = process.modules.iter().filter(|m| m.kind != ModuleKind::Vdso && !is_libc(&m.path));
    for module in own {
        // One that cannot be opened has no sites either; others of its kind are named by the plan.
        let Ok(file) = module.open_file(process.pid) else { continue };
        if has_requests(&file, module)
            && ElfImage::from_file(&file, &module.path).is_ok_and(|image| asks(&image))
        {
            return Ok(Some(module.path.display().to_string()));
        }
    }
    Ok(None)
}

/// Whether the constants of a request stand in the code of a module: of most, nothing else is read. True if it cannot be read.
fn has_requests(file: &File, module: &Module) -> bool {
    /// No code is longer by far; what is, is read as an image, which has bounds of its own.
    const CODE_MAX: u64 = 1 << 30;
    let has_any = |part: &ExecMapping| {
        let len = part.range.end.0 - part.range.start.0;
        if len > CODE_MAX {
            return true;
        }
        let (mut file, mut code) = (file, Vec::new());
        let read =
            file.seek(SeekFrom::Start(part.offset.0)).and_then(|_| file.take(len).read_to_end(&mut code));
        // A64 code is quickly read as a whole.
        read.is_err() || cfg!(target_arch = "aarch64") || requests(&code).next().is_some()
    };
    module.exec.is_empty() || module.exec.iter().any(has_any)
}

fn asks(image: &ElfImage) -> bool {
    if image.machine() == Machine::Aarch64 {
        return image.executable_segments().any(|(_, code)| a64_asks(code));
    }
    let (prctl, syscall) = (Callee::of(image, "prctl"), Callee::of(image, "syscall"));
    image.executable_segments().any(|(segment, code)| {
        let is_call =
            |callee: &Callee, at: usize| callee.is_called_near(image, segment.range.start, code, at);
        requests(code).any(|request| match request {
            Request::Prctl { at } => is_call(&prctl, at),
            Request::Syscall { at } => is_call(&syscall, at),
            Request::Raw => true,
        })
    })
}

/// Whether A64 code loads what to ask for and how, and calls shortly behind: whom is not looked at. (Strict seccomp leaves the
/// counter there.)
fn a64_asks(code: &[u8]) -> bool {
    /// Words around the load of the one in which the other stands, and behind it the call.
    const NEAR: usize = 6;
    let words: Vec<u32> = code.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    // movz of a number, 32 or 64 bits, into this register
    let loads =
        |word: &u32, register: u32, number: u32| word & 0x7fff_ffff == 0x5280_0000 | number << 5 | register;
    let is_call = |word: &u32| word >> 26 == 0x25 || *word == 0xd400_0001; // bl; svc
    let is_request = |i: usize, first: u32| {
        let near = &words[i.saturating_sub(NEAR)..words.len().min(i + NEAR)];
        let behind = &words[i..words.len().min(i + NEAR)];
        near.iter().any(|word| loads(word, first + 1, PR_TSC_SIGSEGV)) && behind.iter().any(is_call)
    };
    // prctl(26, 2), and syscall(167, 26, 2)
    words
        .iter()
        .enumerate()
        .any(|(i, word)| (0..2).any(|first| loads(word, first, PR_SET_TSC) && is_request(i, first)))
}

/// A place where the arguments of such a request are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// For prctl(2), if that is called behind.
    Prctl { at: usize },
    /// For syscall(2).
    Syscall { at: usize },
    /// For the kernel, whose call stands behind.
    Raw,
}

/// `mov` of a constant to the register.
const EDI: u8 = 0xbf;
const ESI: u8 = 0xbe;
const EDX: u8 = 0xba;
const EAX: u8 = 0xb8;

fn requests(code: &[u8]) -> impl Iterator<Item = Request> + '_ {
    /// Loads of what is asked of prctl(2), and of its own number, which syscall(2) takes.
    const LOADS: [[u8; 5]; 3] =
        [[EDI, PR_SET_TSC as u8, 0, 0, 0], [EDI, PR_SET_SECCOMP as u8, 0, 0, 0], [EDI, PRCTL as u8, 0, 0, 0]];
    LOADS.iter().flat_map(|load| memmem::find_iter(code, load)).filter_map(|at| {
        let first = u32::from_le_bytes(code[at + 1..at + 5].try_into().ok()?);
        let near = &code[at.saturating_sub(NEAR)..(at + NEAR).min(code.len())];
        let is_loaded = |register: u8, value: u32| {
            let [a, b, c, d] = value.to_le_bytes();
            near.windows(5).any(|w| w == [register, a, b, c, d])
        };
        if first == PRCTL {
            let is_one = REQUESTS.iter().any(|[what, how]| is_loaded(ESI, *what) && is_loaded(EDX, *how));
            return is_one.then_some(Request::Syscall { at });
        }
        let [_, how] = REQUESTS.iter().find(|[what, _]| *what == first)?;
        if !is_loaded(ESI, *how) {
            return None;
        }
        let is_raw = is_loaded(EAX, PRCTL) && near.windows(2).any(|w| w == [0x0f, 0x05]);
        Some(if is_raw { Request::Raw } else { Request::Prctl { at } })
    })
}

/// A function of libc's as an image reaches it.
struct Callee {
    /// Where its address lies.
    slots: BTreeSet<u64>,
    /// Itself, in an image that has it.
    own: BTreeSet<u64>,
}

impl Callee {
    fn of(image: &ElfImage, name: &str) -> Callee {
        let slots: BTreeSet<u64> = image.import_slots(name).map(|import| import.slot.0).collect();
        let is_it = |f: &&image::Function| f.names.iter().any(|n| *n.text == *name);
        let own = match image.is_static() {
            true => image.functions().iter().filter(is_it).map(|f| f.addr.0).collect(),
            false => BTreeSet::new(),
        };
        Callee { slots, own }
    }

    /// Whether it is called shortly behind the instruction at `at` of `code`, which begins at `start`.
    fn is_called_near(&self, image: &ElfImage, start: ImageAddr, code: &[u8], at: usize) -> bool {
        if self.slots.is_empty() && self.own.is_empty() {
            return false;
        }
        let end = (at + 5 + NEAR).min(code.len());
        (at + 5..end).any(|at| {
            let here = start.0.wrapping_add(at as u64);
            match &code[at..] {
                [0xff, 0x15, rest @ ..] => {
                    relative(here + 2, rest).is_some_and(|slot| self.slots.contains(&slot))
                }
                // A jump is a tail call.
                [0xe8 | 0xe9, rest @ ..] => relative(here + 1, rest).is_some_and(|to| self.is(image, to)),
                _ => false,
            }
        })
    }

    /// Whether the function at `to` is it, or a stub of the procedure linkage table that leads there.
    fn is(&self, image: &ElfImage, to: u64) -> bool {
        /// More than any stub has before its jump: endbr64, bnd.
        const STUB: usize = 16;
        let stub = image.bytes(ImageAddr(to), STUB).unwrap_or_default();
        let jump = stub.windows(2).position(|w| w == [0xff, 0x25]);
        let slot = jump.and_then(|at| relative(to.wrapping_add(at as u64 + 2), &stub[at + 2..]));
        self.own.contains(&to) || slot.is_some_and(|slot| self.slots.contains(&slot))
    }
}

/// What a distance of four bytes, which stands at `here`, leads to.
fn relative(here: u64, bytes: &[u8]) -> Option<u64> {
    let distance = i32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
    Some(here.wrapping_add(4).wrapping_add_signed(i64::from(distance)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &[&[u8]]) -> Vec<Request> {
        let mut code = code.concat();
        code.extend([0x90; 8]);
        requests(&code).collect()
    }

    #[test]
    fn a_request_is_known_by_its_constants_in_any_order() {
        let (what, how) = ([EDI, 26, 0, 0, 0], [ESI, 2, 0, 0, 0]);
        assert_eq!(found(&[&what, &how]), [Request::Prctl { at: 0 }]);
        assert_eq!(found(&[&how, &[0x31, 0xc0], &what]), [Request::Prctl { at: 7 }]);
        assert_eq!(found(&[&[EDI, 22, 0, 0, 0], &[ESI, 1, 0, 0, 0]]), [Request::Prctl { at: 0 }]);
        // To allow it again, to ask for it, and a filter.
        for (what, how) in [(26, 1), (25, 2), (22, 2)] {
            assert_eq!(found(&[&[EDI, what, 0, 0, 0], &[ESI, how, 0, 0, 0]]), []);
        }
        let call = [EAX, 157, 0, 0, 0];
        assert_eq!(found(&[&what, &how, &call, &[0x0f, 0x05]]), [Request::Raw]);
        assert_eq!(
            found(&[&[EDI, 157, 0, 0, 0], &[ESI, 26, 0, 0, 0], &[EDX, 2, 0, 0, 0]]),
            [Request::Syscall { at: 0 }]
        );
    }

    #[test]
    fn a_request_in_a64_code_is_known_by_its_constants() {
        let asks = |words: &[u32]| {
            let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            a64_asks(&code)
        };
        // mov w0, #26; mov w1, #2; bl
        assert!(asks(&[0x5280_0340, 0x5280_0041, 0x9400_0010]));
        // mov x1, #2; mov w0, #26; mov x8, #167; svc #0
        assert!(asks(&[0xd280_0041, 0x5280_0340, 0xd280_14e8, 0xd400_0001]));
        // To allow it again; to ask for it; without a call.
        assert!(!asks(&[0x5280_0340, 0x5280_0021, 0x9400_0010]));
        assert!(!asks(&[0x5280_0320, 0x5280_0041, 0x9400_0010]));
        assert!(!asks(&[0x5280_0340, 0x5280_0041, 0xd65f_03c0]));
    }

    #[test]
    fn a_distance_leads_from_its_end() {
        assert_eq!(relative(0x1000, &(-4i32).to_le_bytes()), Some(0x1000));
        assert_eq!(relative(0x1000, &[1, 2]), None);
    }
}
