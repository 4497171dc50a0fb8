//! Addresses that threads will come back to, out of signal handlers.
//!
//! For:     not changing code under a thread that is away in a handler, and not unmapping it.
//! State:   none.
//! Context: control, in a stopped world.
//! Keeps:   K1 an address saved in a signal frame above a thread's stack pointer, up to the end of its stack's mapping,
//!             is found. (The frame of a signal that is over may still lie there whole: then we wait.) Where a stack lies
//!             in a mapping with other things that goes on for more than `STACK_MAX`, as stacks of goroutines do in the
//!             heap, `DEPTH` bytes are searched.
//!          K2 so is one on another stack that such a frame leads to: a handler on an alternate stack may have
//!             interrupted another handler on the thread's own.
//!          K3 of a thread of Go's the stack ends where its runtime says: what lies above are stacks of others, and among them
//!             those on which handlers of threads that are asleep ran long ago.
//!          K4 other words are not: each hit of the general path leaves an address of ours below the stack pointer,
//!             which lies inside some later frame for as long as that lasts.
//! Checked: tests below, with a frame that the kernel made; testkit `signals` (K3: `frames_of_handlers_that_have_ended_keep_no_memory_of_ours_in_go`).
//!
//! Not seen: a context that a handler moved elsewhere, as schedulers that preempt by signal may do.

use crate::arch::FRAME_WORDS;
use crate::arch::is_saved_in_frame;
use crate::find::memory::Memory;
use crate::hold::world::World;
use image::Mapping;
use std::ops::Range;

/// No mapping that is a stack alone goes on for longer above a stack pointer, but for the first thread's, which has a name.
const STACK_MAX: u64 = 256 << 20;
/// How far above the stack pointer we look in a mapping that is no stack alone.
const DEPTH: u64 = 4 << 20;
/// How much is read at a time.
const CHUNK: u64 = 256 << 10;
/// Words of one chunk that are searched again with the next: a frame may lie across.
const OVERLAP: u64 = (FRAME_WORDS as u64 - 1) * 8;
/// After so many stacks that are not Go's nobody is asked any more: the process stands still meanwhile.
const GO_TRIES: usize = 16;
/// How many stacks of one thread we look at: its own, and those that its handlers run on.
const STACKS: usize = 8;

/// Finds the addresses that threads will come back to and for which `wanted` is true. A thread with
/// handlers within handlers has several.
pub(crate) fn find(
    memory: &Memory,
    world: &World,
    mappings: &[Mapping],
    bounds: Range<u64>,
    wanted: impl Fn(u64) -> bool,
) -> Vec<ComeBack> {
    let mut found = Vec::new();
    let standing = world.threads().map(|t| (t.tid, t.regs.sp(), Some(t.regs.thread_pointer())));
    let asleep = world.sleepers().map(|s| (s.tid, s.at.sp, s.fs_base));
    let mut tries = GO_TRIES;
    for (tid, sp, base) in standing.chain(asleep) {
        let mut seen: Vec<Range<u64>> = Vec::new();
        let mut stacks = vec![sp & !7];
        while let Some(from) = stacks.pop() {
            if seen.len() == STACKS || seen.iter().any(|s| s.contains(&from)) {
                continue;
            }
            let go = base.filter(|_| tries > 0).and_then(|base| end_by_go(base, from, |at| memory.word(at)));
            tries = if go.is_some() { usize::MAX } else { tries.saturating_sub(1) };
            let stack = go.map_or_else(|| stack_above(mappings, from), |end| from..end);
            seen.push(from..stack.end.max(from + 8));
            for (at, frame) in frames_in(memory, stack) {
                if bounds.contains(&frame.pc) && wanted(frame.pc) {
                    found.push(ComeBack { tid, pc: frame.pc, at });
                }
                stacks.push(frame.sp & !7);
            }
        }
    }
    found
}

/// What of the stack with this stack pointer is in use.
fn stack_above(mappings: &[Mapping], from: u64) -> Range<u64> {
    let after = mappings.partition_point(|m| m.range.end.0 <= from);
    let Some(mapping) = mappings.get(after).filter(|m| m.range.start.0 <= from) else { return from..from };
    let end = mapping.range.end.0;
    let is_stack = mapping.path.as_os_str() == "[stack]" || end - from <= STACK_MAX;
    from..if is_stack { end } else { from + DEPTH }
}

/// Where the stack with this stack pointer ends, by the runtime of Go; `None`: no thread of Go's, or one between two stacks.
///
/// A thread's word for its goroutine lies just below its thread pointer, or where C code has such words too a few further. A
/// goroutine begins with the bounds of its stack and names its thread's record, which begins with the thread's own
/// goroutine, which names it again. Handlers run on a goroutine of their own. (AArch64 keeps the word elsewhere.)
fn end_by_go(thread_pointer: u64, sp: u64, word: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    const THREAD: u64 = 6 * 8;
    const WORDS: u64 = 8;
    let end = |goroutine: u64| {
        let thread = word(goroutine.checked_add(THREAD)?).filter(|thread| *thread != 0)?;
        let own = word(thread)?;
        let is_one = word(own.checked_add(THREAD)?)? == thread;
        let stack = word(goroutine)?..word(goroutine.checked_add(8)?)?;
        (is_one && stack.contains(&sp) && stack.end - sp <= STACK_MAX).then_some(stack.end)
    };
    (1..=WORDS).find_map(|i| end(word(thread_pointer.checked_sub(i * 8)?)?))
}

/// All that looks like a signal frame in there, each with the address of its program counter.
fn frames_in(memory: &Memory, stack: Range<u64>) -> Vec<(u64, Saved)> {
    let mut found = Vec::new();
    let mut at = stack.start;
    while at < stack.end {
        let len = (stack.end - at).min(CHUNK);
        // A hole is a part that was unmapped since: nothing comes back from there.
        let bytes = memory.read_vec(at, len as usize).unwrap_or_default();
        let words = bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default()));
        let words: Vec<u64> = words.collect();
        found.extend(saved_in_frames(&words).map(|f| (at + f.word as u64 * 8, f)));
        at = if len < CHUNK { stack.end } else { at + CHUNK - OVERLAP };
    }
    found
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

/// The stack pointer and the program counter in all that looks like the registers in a signal frame.
fn saved_in_frames(words: &[u64]) -> impl Iterator<Item = Saved> + '_ {
    let all = words.windows(FRAME_WORDS).enumerate().filter(|(_, w)| is_saved_in_frame(w));
    all.map(|(i, w)| Saved { sp: w[0], pc: w[1], word: i + 1 })
}

#[cfg(test)]
mod tests {
    use super::{end_by_go, saved_in_frames};
    use std::collections::BTreeMap;
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
        let machine = unsafe { (*context).uc_mcontext };
        #[cfg(target_arch = "x86_64")]
        let saved = [libc::REG_RSP, libc::REG_RIP].map(|register| machine.gregs[register as usize] as u64);
        #[cfg(target_arch = "aarch64")]
        let saved = [machine.sp, machine.pc];
        if let Ok(mut seen) = SEEN.lock() {
            *seen = (words, Some((saved[0], saved[1])));
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

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_return_address_is_no_frame() {
        let words =
            [0x5555_5555_1234, 0x7fff_1234_5678, 0x33, 0x5555_5555_1234, 0x246, 0x7ffe_0000_0033_0033];
        assert_eq!(saved_in_frames(&words[..3]).count(), 0);
        assert_eq!(saved_in_frames(&words[2..]).count(), 1);
    }

    #[test]
    fn a_stack_of_go_ends_where_its_goroutine_says_and_only_if_all_words_agree() {
        const FS_BASE: u64 = 0x10_0000;
        let good = [
            (FS_BASE - 8, 0x5000),
            (0x5000, 0x8000),
            (0x5008, 0x9000),
            (0x5030, 0x6000),
            (0x6000, 0x7000),
            (0x7030, 0x6000),
        ];
        let of = |changes: &[(u64, u64)], sp| {
            let words: BTreeMap<u64, u64> = good.iter().chain(changes).copied().collect();
            end_by_go(FS_BASE, sp, |at| words.get(&at).copied())
        };
        assert_eq!(of(&[], 0x8100), Some(0x9000));
        assert_eq!(of(&[(FS_BASE - 8, 1), (FS_BASE - 24, 0x5000)], 0x8100), Some(0x9000));
        for (changes, sp) in [
            (&[][..], 0x7fff),
            (&[], 0x9000),
            (&[(0x7030, 0x6008)], 0x8100),
            (&[(0x5030, 0)], 0x8100),
            (&[(0x5008, 0x7000)], 0x8100),
            (&[(0x5008, u64::MAX)], 0x8100),
            (&[(FS_BASE - 8, u64::MAX - 3)], 0x8100),
        ] {
            assert_eq!(of(changes, sp), None, "{changes:x?} {sp:x}");
        }
    }
}
