//! The one word that leads an A64 site to its trampoline, and the island that it may need.
//!
//! For:     arming and disarming.
//! State:   none.
//! Context: control.
//! Keeps:   P1 a patch is one word at the site, so no window of several instructions ever exists.
//!          P2 an island gives its trampoline x16 and x17 on the stack and changes nothing else.
//!          P3 it is said when the word may not be swapped while other threads run.
//!          P4 an island is published for all threads before the word that leads there is written; what stands at the
//!          site is compared before it is replaced.
//! Checked: tests below; tests/model (P4); tests/aarch64_hits.rs runs islands, patches under running threads, and
//!          patches of guarded pages.
//! Source:  Arm ARM (DDI 0487) B2.2.5: which instructions may be swapped while they are executed; D8.4.6: guarded
//!          pages.

use super::cache::{CacheType, Flush, Written, publish};
use super::slot::Port;
use core::fmt;
use insn::aarch64::{
    BRANCH_REACH, FAR_WORDS, NOP, Relative, Verdict, b, decode, far, is_landing_pad, kernel_errno, verdict_at,
};
use insn::{Code, Forbidden};

/// The word of a trapping site: brk with a number that neither the kernel nor debuggers use.
pub const TRAP: u32 = brk(0x6e70);
/// The word by which a thread leaves a slot.
pub const TRAP_EXIT: u32 = brk(0x6e71);
/// No island is longer.
pub const ISLAND_MAX_WORDS: usize = FAR_WORDS;

const fn brk(number: u16) -> u32 {
    0xd420_0000 | (number as u32) << 5
}

/// Where a patch is to go.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The code around it.
    pub code: Code<'a>,
    /// The probed instruction, an address of `code`.
    pub addr: u64,
    /// The trampoline.
    pub trampoline: u64,
    /// Room for [`ISLAND_MAX_WORDS`] in a page of ours near by, if there is some.
    pub island: Option<u64>,
    /// The page is guarded (PROT_BTI): branches by register must land on a landing pad.
    pub is_guarded: bool,
}

/// How a site diverts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A branch to the trampoline.
    Branch,
    /// A branch to an island, and the island's words.
    Island {
        /// Where it stands.
        at: u64,
        /// Its words, then zeros.
        words: [u32; ISLAND_MAX_WORDS],
    },
    /// A trap: nothing reaches, or a landing pad must stay one.
    Trap,
}

/// A patch, ready to be written: islands first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Diverted {
    /// What stands there and what will.
    pub old: u32,
    /// The new word.
    pub new: u32,
    /// How it diverts.
    pub way: Way,
    /// Threads must be kept from executing the word while it is replaced: the architecture promises nothing else.
    pub needs_stop: bool,
}

/// Why nothing can stand at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotDiverted {
    /// The site.
    pub addr: u64,
    /// What stands there.
    pub what: Forbidden,
    /// With which error (positive) the kernel refuses a uprobe there, where it does.
    pub errno: i32,
}

impl fmt::Display for NotDiverted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:#x} stands {}", self.addr, self.what)
    }
}

impl std::error::Error for NotDiverted {}

/// The word for a site: a branch if it reaches, else one to an island, else a trap.
///
/// # Errors
/// No probe may stand there.
pub fn divert(site: &Site<'_>) -> Result<Diverted, NotDiverted> {
    let old = site.code.from_addr(site.addr).first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    if let Verdict::Refused(what) = verdict_at(&site.code, site.addr) {
        return Err(NotDiverted { addr: site.addr, what, errno: kernel_errno(old) });
    }
    // A branch by register that lands on another direct branch faults in a guarded page; on brk it traps.
    let (way, new) = if site.is_guarded && is_landing_pad(old) {
        (Way::Trap, TRAP)
    } else {
        reach(site).unwrap_or((Way::Trap, TRAP))
    };
    Ok(Diverted { old, new, way, needs_stop: !can_swap_live(old, new) })
}

fn reach(site: &Site<'_>) -> Option<(Way, u32)> {
    if let Some(word) = b(site.addr, site.trampoline) {
        return Some((Way::Branch, word));
    }
    let at = site.island?;
    let words = island(at, site.trampoline);
    Some((Way::Island { at, words }, b(site.addr, at)?))
}

/// The words of an island at `at`: x16 and x17 are pushed, and the trampoline is gone to by x16.
///
/// A direct branch would do where it reaches; but then the trampoline could not know what was pushed.
pub fn island(at: u64, trampoline: u64) -> [u32; ISLAND_MAX_WORDS] {
    far(at, trampoline)
}

/// The site held another word than the one that was to be replaced; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The site.
    pub addr: u64,
    /// What should have stood there.
    pub expected: u32,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:#x} no longer stands {:#010x}", self.addr, self.expected)
    }
}

impl std::error::Error for Changed {}

impl Diverted {
    /// Writes the patch at `addr`, the island first. The trampoline must have been published before.
    ///
    /// With [`Diverted::needs_stop`] no thread may be able to execute the word meanwhile.
    ///
    /// # Errors
    /// The site holds another word than the original.
    pub fn arm(&self, addr: u64, port: &impl Port, cache: CacheType) -> Result<(), Changed> {
        if let Way::Island { at, words } = &self.way {
            put(port, cache, *at, words);
        }
        swap(port, cache, addr, self.old, self.new)
    }

    /// Writes the original back. The island stays as it is: a thread may be in it.
    ///
    /// # Errors
    /// The site holds another word than the patch.
    pub fn disarm(&self, addr: u64, port: &impl Port, cache: CacheType) -> Result<(), Changed> {
        swap(port, cache, addr, self.new, self.old)
    }
}

fn swap(port: &impl Port, cache: CacheType, addr: u64, from: u32, to: u32) -> Result<(), Changed> {
    if !port.holds(addr, &[from]) {
        return Err(Changed { addr, expected: from });
    }
    put(port, cache, addr, &[to]);
    Ok(())
}

/// Words that other threads may come to by a branch.
fn put(port: &impl Port, cache: CacheType, run_at: u64, words: &[u32]) {
    let written_at = port.write(run_at, words);
    let code = Written { run_at, written_at, len_bytes: 4 * words.len() as u64 };
    publish(port, cache, code, Flush::Broadcast);
}

/// Where the branch in `word` at `from` leads, if it is one.
pub fn branch_target(from: u64, word: u32) -> Option<u64> {
    match decode(word, from) {
        Some(Relative::Jump { target }) => Some(target),
        _ => None,
    }
}

/// The architecture lets one of these words be replaced by another while it is executed: a thread does the one or the
/// other. For all others, what happens is not defined.
pub fn can_swap_live(old: u32, new: u32) -> bool {
    is_swappable(old) && is_swappable(new)
}

/// b, bl, brk, hvc, isb, nop, smc, svc.
fn is_swappable(word: u32) -> bool {
    let is_branch = word & 0x7c00_0000 == 0x1400_0000;
    let is_call_up = word & 0xffe0_001c == 0xd400_0000 && word & 3 != 0;
    let is_brk = word & 0xffe0_001f == 0xd420_0000;
    let is_isb = word & 0xffff_f0ff == 0xd503_30df;
    is_branch || is_call_up || is_brk || is_isb || word == NOP
}

/// How far from a site an island or a trampoline may be mapped, to be in reach wherever in its page it lies.
pub const REACH_BYTES: u64 = BRANCH_REACH - 2 * 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const ADD: u32 = 0x9100_0400;
    const PACIASP: u32 = 0xd503_233f;
    const BASE: u64 = 0x5555_0000_0000;
    const FAR: u64 = 0x7fff_0000_0000;

    fn at(
        words: [u32; 2],
        trampoline: u64,
        island: Option<u64>,
        is_guarded: bool,
    ) -> Result<Diverted, NotDiverted> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let code = Code { base: BASE, bytes: &bytes };
        divert(&Site { code, addr: BASE, trampoline, island, is_guarded })
    }

    #[test]
    fn a_branch_is_used_where_it_reaches_then_an_island_then_a_trap() {
        let near = at([ADD; 2], BASE + BRANCH_REACH - 4, None, false).unwrap();
        assert_eq!((near.way, near.old), (Way::Branch, ADD));
        assert_eq!(branch_target(BASE, near.new), Some(BASE + BRANCH_REACH - 4));
        let far = at([ADD; 2], FAR, Some(BASE + 0x1000), false).unwrap();
        assert_eq!(branch_target(BASE, far.new), Some(BASE + 0x1000));
        assert!(matches!(far.way, Way::Island { at, .. } if at == BASE + 0x1000));
        for island in [None, Some(BASE + BRANCH_REACH)] {
            let none = at([ADD; 2], FAR, island, false).unwrap();
            assert_eq!((none.way, none.new), (Way::Trap, TRAP));
        }
    }

    #[test]
    fn a_landing_pad_of_a_guarded_page_becomes_a_trap_and_no_branch() {
        assert_eq!(at([PACIASP, ADD], BASE + 64, None, true).unwrap().way, Way::Trap);
        assert_eq!(at([PACIASP, ADD], BASE + 64, None, false).unwrap().way, Way::Branch);
        assert_eq!(at([ADD, ADD], BASE + 64, None, true).unwrap().way, Way::Branch);
    }

    #[test]
    fn only_words_of_the_architectures_list_are_swapped_under_running_threads() {
        assert!(at([ADD; 2], BASE + 64, None, false).unwrap().needs_stop);
        assert!(!at([NOP, ADD], BASE + 64, None, false).unwrap().needs_stop);
        for word in [b(0, 64).unwrap(), 0x9400_0001, TRAP, TRAP_EXIT, NOP, 0xd503_3fdf, 0xd400_0001] {
            assert!(is_swappable(word), "{word:#x}");
        }
        for word in [ADD, 0xd65f_03c0, 0x5400_0040, 0xd440_0000, 0xd400_0000, 0xd503_3f9f] {
            assert!(!is_swappable(word), "{word:#x}");
        }
    }

    #[test]
    fn a_refusal_names_the_instruction_and_the_kernels_error() {
        let refused = at([0xd400_0001, ADD], BASE + 64, None, false).unwrap_err();
        assert_eq!((refused.what, refused.errno), (Forbidden::Exception, 22));
        assert_eq!(refused.to_string(), "at 0x555500000000 stands an instruction that raises an exception");
        let between = at([ADD, 0xc803_7c41], BASE + 64, None, false).unwrap_err();
        assert_eq!(between.what, Forbidden::InExclusive);
    }
}
