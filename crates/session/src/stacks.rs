//! Addresses that threads will come back to, out of signal handlers.
//!
//! For:     not changing code under a thread that is away in a handler, and not unmapping it.
//! State:   none.
//! Context: control, in a stopped world.
//! Keeps:   K1 an address saved in a signal frame within `DEPTH` bytes above a thread's stack pointer, on the
//!             same mapping, is found. (The frame of a signal that is over may still lie there whole: then we wait.)
//!          K2 so is one on another stack that such a frame leads to: a handler on an alternate stack may have
//!             interrupted another handler on the thread's own.
//!          K3 other words are not: each hit of the general path leaves an address of ours below the stack pointer,
//!             which lies inside some later frame for as long as that lasts.
//! Checked: tests below, with a frame that the kernel made; testkit `signals`.
//!
//! Not seen: a context that a handler moved elsewhere, as schedulers that preempt by signal may do.

use crate::world::World;
use image::Mapping;
use std::ops::Range;

/// How far above the stack pointer we look.
const DEPTH: u64 = 256 << 10;
/// How many stacks of one thread we look at: its own, and those that its handlers run on.
const STACKS: usize = 8;

/// Finds the addresses that threads will come back to and for which `wanted` is true. A thread with
/// handlers within handlers has several.
pub(crate) fn find(
    world: &World,
    mappings: &[Mapping],
    bounds: Range<u64>,
    wanted: impl Fn(u64) -> bool,
) -> Vec<ComeBack> {
    let mut found = Vec::new();
    let mut buffer = vec![0u8; DEPTH as usize];
    for thread in world.threads() {
        let mut seen: Vec<Range<u64>> = Vec::new();
        let mut stacks = vec![thread.regs.rsp & !7];
        while let Some(from) = stacks.pop() {
            if seen.len() == STACKS || seen.iter().any(|s| s.contains(&from)) {
                continue;
            }
            let words = words_above(world.pid, mappings, from, &mut buffer);
            seen.push(from..from + words.len().max(1) as u64 * 8);
            let frames: Vec<Saved> = saved_in_frames(&words).collect();
            let hits = frames.iter().filter(|f| bounds.contains(&f.pc) && wanted(f.pc));
            found.extend(hits.map(|f| ComeBack { tid: thread.tid, pc: f.pc, at: from + f.word as u64 * 8 }));
            stacks.extend(frames.iter().map(|f| f.sp & !7));
        }
    }
    found
}

/// The words from `from` on: [`DEPTH`] bytes, or up to the end of the mapping.
fn words_above(pid: i32, mappings: &[Mapping], from: u64, buffer: &mut [u8]) -> Vec<u64> {
    let mapping = mappings.iter().find(|m| m.range.start.0 <= from && from < m.range.end.0);
    let len = mapping.map_or(0, |m| (m.range.end.0 - from).min(DEPTH)) as usize;
    let got = sys::remote::read_process(pid, from, &mut buffer[..len]).unwrap_or(0);
    let words = buffer[..got].chunks_exact(8);
    words.map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default())).collect()
}

/// What a thread was doing when a signal came, in a signal frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Saved {
    sp: u64,
    pc: u64,
    /// Which of the words above the stack pointer `pc` is.
    word: usize,
}

/// An address that a thread will come back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComeBack {
    pub tid: i32,
    pub pc: u64,
    /// Where that is saved.
    pub at: u64,
}

/// The stack pointer and the program counter in all that looks like the registers in a signal frame: behind the two stand
/// the flags, then the selectors of 64-bit user code.
fn saved_in_frames(words: &[u64]) -> impl Iterator<Item = Saved> + '_ {
    /// Bits that are never set: reserved ones, and those above the processor's identification bit.
    const NO_FLAGS: u64 = !0x3f_7fd7;
    const ALWAYS_SET: u64 = 2;
    const CODE_SELECTOR: u64 = 0x33;
    let is_frame = |flags: u64, selectors: u64| {
        flags & NO_FLAGS == 0 && flags & ALWAYS_SET != 0 && selectors & 0xffff == CODE_SELECTOR
    };
    let all = words.windows(4).enumerate().filter(move |(_, w)| is_frame(w[2], w[3]));
    all.map(|(i, w)| Saved { sp: w[0], pc: w[1], word: i + 1 })
}

#[cfg(test)]
mod tests {
    use super::saved_in_frames;
    use std::sync::Mutex;

    /// Words of a frame; the stack pointer and the program counter in it.
    type Seen = (Vec<u64>, Option<(u64, u64)>);

    /// What the kernel put on the stack for the handler below.
    static SEEN: Mutex<Seen> = Mutex::new((Vec::new(), None));

    extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let context = context.cast::<libc::ucontext_t>();
        let len = size_of::<libc::ucontext_t>() / 8;
        // SAFETY: the kernel passes a whole context to a handler with SA_SIGINFO; it is read while the handler runs. The
        // test raises the signal itself, in a thread that holds no lock.
        let words = unsafe { std::slice::from_raw_parts(context.cast::<u64>(), len) }.to_vec();
        // SAFETY: as above.
        let registers = unsafe { (*context).uc_mcontext.gregs };
        let at = |register: i32| registers[register as usize] as u64;
        if let Ok(mut seen) = SEEN.lock() {
            *seen = (words, Some((at(libc::REG_RSP), at(libc::REG_RIP))));
        }
    }

    #[test]
    fn the_program_counter_of_a_frame_that_the_kernel_made_is_found_and_no_other_word() {
        // SAFETY: a struct of numbers, a mask and a pointer, for which zeros are values.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the handler has the type that SA_SIGINFO asks for; nothing else in this process uses the signal.
        assert_eq!(unsafe { libc::sigaction(libc::SIGWINCH, &action, std::ptr::null_mut()) }, 0);
        // SAFETY: raise takes a number.
        assert_eq!(unsafe { libc::raise(libc::SIGWINCH) }, 0);
        let (words, saved) = SEEN.lock().unwrap().clone();
        let (sp, pc) = saved.unwrap();
        assert!(pc != 0 && sp != 0);
        let found: Vec<_> = saved_in_frames(&words).map(|f| (f.sp, f.pc, words[f.word])).collect();
        assert_eq!(found, [(sp, pc, pc)]);
    }

    #[test]
    fn a_return_address_is_no_frame() {
        let words =
            [0x5555_5555_1234, 0x7fff_1234_5678, 0x33, 0x5555_5555_1234, 0x246, 0x7ffe_0000_0033_0033];
        assert_eq!(saved_in_frames(&words[..3]).count(), 0);
        assert_eq!(saved_in_frames(&words[2..]).count(), 1);
    }
}
