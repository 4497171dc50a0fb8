//! One site: planned, then armed.
//!
//! For:     attach and detach.
//! State:   the trampoline and the patches that lead to it.
//! Context: control.
//! Keeps:   S1 `original` is what the file has at each patched byte.
//! Checked: attach compares with the live bytes before it writes, detach after it restored.

use crate::facts::program::PROGRAM_CELLS;
use insn::{Placement, Rung, Unreachable};
use std::ops::Range;
use text::{Body, JUMP_LEN, Patch, Request, Trampoline, Ways, island_jump, jump};
use wire::{HandlerKind, TRACE_GO, TRACE_JUMP, latency, walk_cell};

/// What happens at each hit of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// One count, compiled into the trampoline.
    Count,
    /// Consumers called by the agent, in this order.
    Consumers(Vec<Consumer>),
}

/// A handler with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    /// Counts.
    Count,
    /// A histogram by powers of two of the register at this byte offset of `pt_regs`.
    Log2Histogram {
        /// Byte offset.
        register: u32,
    },
    /// Opens a call of function number `function`; has its cells.
    Enter {
        /// Number in the plan.
        function: u32,
        /// It is Go code.
        is_go: bool,
    },
    /// Reports a call of function number `function` that begins, or one that ends.
    Trace {
        /// Number in the plan.
        function: u32,
        /// It is Go code.
        is_go: bool,
        /// At an exit.
        is_exit: bool,
        /// With the stack that led to it; at an entry alone.
        walks: bool,
        /// The exit is a jump to another function, so that what is returned is not known there.
        is_jump: bool,
    },
    /// Counts by stack.
    CountStack {
        /// What the walk begins with: [`wire::WALK_AT_ENTRY`], [`wire::WALK_IN_GO`].
        flags: u32,
    },
    /// Waits for the controller.
    Ring,
    /// Says who is about to exec, and waits for the controller.
    RingBeforeExec,
    /// Closes a call of function number `function`.
    Leave {
        /// Number in the plan.
        function: u32,
        /// It is Go code.
        is_go: bool,
    },
    /// Runs a program.
    Program {
        /// Its place in the session's [`Programs`](crate::Programs).
        program: u32,
        /// What it gets as its cookie: its own at each site.
        cookie: u64,
    },
}

/// What several sites see together, and none of them alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whole {
    /// The calls of function number so-and-so of the plan.
    Calls(u32),
    /// The returns of the function at this address.
    Returns(u64),
}

impl Consumer {
    /// Cells that it needs.
    pub(crate) fn cells(self) -> u32 {
        match self {
            Consumer::Count | Consumer::Ring | Consumer::RingBeforeExec => 1,
            Consumer::Trace { .. } => TRACE_CELLS,
            Consumer::Log2Histogram { .. } => HISTOGRAM_CELLS,
            Consumer::CountStack { .. } => walk_cell::CELLS,
            Consumer::Enter { .. } => latency::CELLS,
            Consumer::Leave { .. } => 0,
            Consumer::Program { .. } => PROGRAM_CELLS,
        }
    }

    /// Which program it runs, and its cookie.
    pub fn program(self) -> Option<(u32, u64)> {
        match self {
            Consumer::Program { program, cookie } => Some((program, cookie)),
            _ => None,
        }
    }

    /// The function whose cells it has or uses.
    pub(crate) fn function(self) -> Option<u32> {
        match self {
            Consumer::Enter { function, .. } | Consumer::Leave { function, .. } => Some(function),
            _ => None,
        }
    }

    /// What its handler reads of the registers that are saved only where that is asked for, as bits: those of a
    /// histogram's argument, and r14, where Go keeps the goroutine.
    pub(crate) fn reads(self) -> u16 {
        match self {
            // gcc may have the frame in r10.
            Consumer::CountStack { .. } | Consumer::Trace { walks: true, .. } => 1 << 10 | 1 << 14,
            // From r11 down to r8, in the order of the kernel's `pt_regs`.
            Consumer::Log2Histogram { register } => match (register & wire::ARG_OFFSET) / 8 {
                place @ 6..=9 => 1 << (17 - place),
                _ => 0,
            },
            Consumer::Enter { is_go: true, .. }
            | Consumer::Leave { is_go: true, .. }
            | Consumer::Trace { is_go: true, .. } => 1 << 14,
            _ => 0,
        }
    }

    /// The agent's handler, and what it is told.
    pub(crate) fn handler(self) -> (HandlerKind, u32) {
        match self {
            Consumer::Count => (HandlerKind::Count, 0),
            Consumer::Ring => (HandlerKind::Ring, 0),
            Consumer::CountStack { flags } => (HandlerKind::CountStack, flags),
            Consumer::RingBeforeExec => (HandlerKind::RingBeforeExec, 0),
            Consumer::Trace { function, is_go, is_exit, walks, is_jump } => {
                let kind = match (is_exit, walks) {
                    (true, _) => HandlerKind::TraceLeave,
                    (false, true) => HandlerKind::TraceEnterStack,
                    (false, false) => HandlerKind::TraceEnter,
                };
                let bit = |is_set, bit| if is_set { bit } else { 0 };
                (kind, function | bit(is_go, TRACE_GO) | bit(is_jump, TRACE_JUMP))
            }
            Consumer::Log2Histogram { register } => (HandlerKind::Log2Histogram, register),
            Consumer::Enter { function, is_go: false } => (HandlerKind::Enter, function),
            Consumer::Enter { function, is_go: true } => (HandlerKind::EnterGo, function),
            Consumer::Leave { function, is_go: false } => (HandlerKind::Leave, function),
            Consumer::Leave { function, is_go: true } => (HandlerKind::LeaveGo, function),
            // What it is told is the program's, not the consumer's.
            Consumer::Program { .. } => (HandlerKind::Program, 0),
        }
    }
}

/// Events written, and events lost.
const TRACE_CELLS: u32 = wire::TRACE_LOST + 1;

/// Buckets of a histogram by powers of two: zero, and one for each bit.
pub const HISTOGRAM_CELLS: u32 = map::Buckets::Log2.count();

impl Action {
    /// Whether the program that the kernel runs for a site alone can do this.
    pub(crate) fn suits_kernel(&self) -> bool {
        match self {
            Action::Count => true,
            Action::Consumers(list) => {
                matches!(list.as_slice(), [Consumer::Count | Consumer::Log2Histogram { .. }])
            }
        }
    }

    /// Cells that it needs.
    pub(crate) fn cells(&self) -> u32 {
        match self {
            Action::Count => 1,
            Action::Consumers(list) => list.iter().map(|c| c.cells()).sum(),
        }
    }

    pub(crate) fn consumers(&self) -> &[Consumer] {
        match self {
            Action::Count => &[],
            Action::Consumers(list) => list,
        }
    }
}

/// A site that can be armed.
#[derive(Clone, Debug)]
pub struct SitePlan {
    /// What to call it.
    pub name: String,
    /// File that it is in, as the process sees it.
    pub module: String,
    /// Addresses of the whole module in the process.
    pub module_range: Range<u64>,
    /// What the process adds to the placement's addresses.
    pub bias: u64,
    /// How a jump stands there.
    pub placement: Placement,
    /// Bytes of the file at the site, as many as the jump covers.
    pub original: Vec<u8>,
    /// Bytes of the file at the island, if there is one.
    pub island_original: Vec<u8>,
    /// Address of the function that it is an exit of; all its exits have one name and one row.
    pub exit_of: Option<u64>,
    /// It stands at an exit that is a jump to another function: what is returned is not known there, and time ends there.
    pub is_tail_call: bool,
    /// What to do at each hook of the placement.
    pub actions: Vec<Action>,
    /// Address of the 16-bit count of tracers that must not be 0 for the program to come by.
    pub semaphore: Option<u64>,
    /// A specification names it, and not a pattern that fits many.
    pub is_named: bool,
    /// It is Go code, which runs on a stack that may be nearly full.
    pub is_go: bool,
    /// Where a function begins, or is left.
    pub(crate) is_edge: bool,
    /// Where its trampoline stands, if its jump is punned; found when it is armed.
    pub(crate) block: Option<u64>,
    /// Where its jump leads if it can lead to one address only: there a jump to the trampoline stands.
    pub(crate) landing: Option<u64>,
}

impl SitePlan {
    /// Where its jump stands in the process: the probed address, but in plans of programs.
    pub fn addr(&self) -> u64 {
        self.placement.site.wrapping_add(self.bias)
    }

    /// The address in the process of the instruction before which action number so-and-so runs; of a landing pad, behind which the
    /// jump stands, the pad's.
    pub fn hook_addr(&self, action: usize) -> u64 {
        let offset = self.placement.hooks.get(action).map_or(0, |hook| hook.offset);
        self.addr().wrapping_add(offset.into()).wrapping_sub(self.placement.pad.into())
    }

    /// Cells that it needs.
    pub(crate) fn cells(&self) -> u32 {
        self.actions.iter().map(Action::cells).sum()
    }

    /// All its consumers.
    pub(crate) fn consumers(&self) -> impl Iterator<Item = Consumer> + '_ {
        self.actions.iter().flat_map(Action::consumers).copied()
    }

    /// A program may turn hits down before registers are saved for it: it is the only consumer of a hook. Where a jump is punned
    /// room is scarce, and none does.
    pub(crate) fn may_be_guarded(&self) -> bool {
        let is_one = |action: &Action| matches!(action, Action::Consumers(list) if matches!(list[..], [Consumer::Program { .. }]));
        self.placement.pun.is_none() && self.actions.iter().any(is_one)
    }

    /// A hit walks the thread's stack.
    pub(crate) fn walks(&self) -> bool {
        self.consumers()
            .any(|c| matches!(c, Consumer::CountStack { .. } | Consumer::Trace { walks: true, .. }))
    }

    /// Its hits are counted in the trampoline, without a handler.
    pub fn is_compiled_count(&self) -> bool {
        self.actions == [Action::Count] && self.placement.rung != Rung::Kernel
    }

    /// It is the kernel's, and each hit traps twice: the kernel steps the instruction.
    pub fn is_stepped(&self) -> bool {
        let way = crate::arch::kernel_way(&self.original);
        self.placement.rung == Rung::Kernel && way == Some(insn::KernelWay::Steps)
    }

    /// It only closes calls that another site opens.
    pub fn is_exit(&self) -> bool {
        let mut consumers = self.consumers();
        consumers.all(|c| matches!(c, Consumer::Leave { .. } | Consumer::Trace { is_exit: true, .. }))
            && self.actions != [Action::Count]
    }

    /// What it sees a part of: the calls that begin or end here, the returns of a function that has several exits.
    pub(crate) fn wholes(&self) -> impl Iterator<Item = Whole> + '_ {
        let calls = self.consumers().filter_map(|c| match c {
            Consumer::Enter { function, .. }
            | Consumer::Leave { function, .. }
            | Consumer::Trace { function, .. } => Some(Whole::Calls(function)),
            _ => None,
        });
        calls.chain(self.exit_of.map(Whole::Returns))
    }

    /// The function whose calls it reports the beginning of.
    pub fn traces(&self) -> Option<u32> {
        self.consumers().find_map(|c| match c {
            Consumer::Trace { function, is_exit: false, .. } => Some(function),
            _ => None,
        })
    }

    /// The function's name, of an exit without what tells it from others.
    pub fn function_name(&self) -> &str {
        self.name.split(" at ").next().unwrap_or_default().trim_end_matches("%return")
    }

    /// The function of which it reports ends, and cannot say whether one is a jump to another function.
    pub fn unsure_return(&self) -> Option<u32> {
        let is_unsure = self.is_tail_call && self.placement.rung == Rung::Kernel;
        self.consumers().filter(|_| is_unsure).find_map(|c| match c {
            Consumer::Trace { function, is_exit: true, .. } => Some(function),
            _ => None,
        })
    }

    /// It reports calls of goroutines, which change their threads.
    pub fn traces_in_go(&self) -> bool {
        self.consumers().any(|c| matches!(c, Consumer::Trace { is_go: true, .. }))
    }

    /// The function that it opens calls of.
    pub fn opens(&self) -> Option<u32> {
        self.consumers().find_map(|c| match c {
            Consumer::Enter { function, .. } => Some(function),
            _ => None,
        })
    }

    /// The bytes that its jumps and displaced instructions cover. The last instruction may reach beyond the jump: with another
    /// jump there, our copy of it would go past that one's probe, and its detach would not find its jump.
    pub(crate) fn covered(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let (site, placement) = (self.addr(), &self.placement);
        let len = u64::from(placement.patch_len.max(placement.displaced_len));
        let island = placement.island.map(|island| island.wrapping_add(self.bias));
        [Some(site..site + len), island.map(|at| at..at + JUMP_LEN as u64)].into_iter().flatten()
    }

    /// Where the displaced instructions go on behind the jump at the site, and what the file has there.
    pub(crate) fn displaced_behind(&self) -> (u64, Vec<u8>) {
        let bytes = self.placement.displaced.iter().flat_map(insn::Insn::bytes);
        let patch = self.placement.patch_len;
        (self.addr() + u64::from(patch), bytes.skip(patch.into()).copied().collect())
    }

    /// What the file has where the 5-byte jump goes.
    fn jump_original(&self) -> [u8; JUMP_LEN] {
        let bytes = if self.placement.island.is_some() { &self.island_original } else { &self.original };
        bytes.as_slice().try_into().unwrap_or_default()
    }

    /// What the file has where the 2-byte jump goes.
    fn short_original(&self) -> Option<[u8; 2]> {
        self.placement.island.and_then(|_| self.original.as_slice().try_into().ok())
    }
}

/// Why a planned site was not armed after all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missed {
    /// The process has other bytes there than the file.
    Changed {
        /// What was found.
        found: Vec<u8>,
    },
    /// A thread will come back into the window, out of a signal handler.
    ThreadInside {
        /// The thread.
        tid: i32,
    },
    /// Another nanoprobe has a probe under the same jump, but before another instruction.
    OtherHook,
    /// A breakpoint stands under the jump: a kernel uprobe's, or a debugger's.
    Breakpoint,
    /// The kernel's breakpoint would stand in a jump of another nanoprobe.
    UnderJump,
    /// A thread that is still in the trampoline of another nanoprobe, which has left, will come out inside the window.
    Leaving,
    /// No jump fits, and what is to be done there is a program, which a session has no kernel's probe run.
    ProgramByKernel,
    /// A goroutine has too little stack for the helpers that the program calls.
    LittleStack,
    /// The kernel cannot place it either. Why.
    Kernel(String),
    /// Another probe of the function whose calls are timed or shown, or whose returns are counted, was missed.
    Incomplete,
    /// The process has unmapped its module since it was planned.
    Unmapped,
    /// The process has no room left where alone the jump could lead.
    NoRoom,
    /// Another probe of the same session covers its bytes.
    Covered {
        /// What that one is called.
        by: String,
    },
    /// The session was attached with nothing near its module.
    NoRegion,
    /// What it displaces refers to something too far away.
    TooFar(Unreachable),
}

impl std::fmt::Display for Missed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Missed::Changed { found } => {
                let bytes: Vec<String> = found.iter().map(|b| format!("{b:02x}")).collect();
                write!(f, "the process has other bytes there than the file: {}", bytes.join(" "))
            }
            Missed::ThreadInside { tid } => write!(f, "thread {tid} may return into the window"),
            Missed::Incomplete => write!(f, "another probe of the same function was left out"),
            Missed::OtherHook => {
                write!(
                    f,
                    "another nanoprobe has an entry and a return probe, or another one, under the same jump"
                )
            }
            Missed::Unmapped => write!(f, "the process has unmapped its module meanwhile"),
            Missed::Breakpoint => {
                write!(f, "a breakpoint stands there already, a kernel uprobe's or a debugger's")
            }
            Missed::UnderJump => {
                write!(f, "another nanoprobe has a jump there that no second one can be chained to")
            }
            Missed::Leaving => write!(
                f,
                "a thread is still in the code of another nanoprobe that has left, and will come out inside the window"
            ),
            Missed::NoRoom => write!(f, "the process has no room left where alone the jump could lead"),
            Missed::Covered { by } => write!(f, "the session's probe of {by} covers its bytes"),
            Missed::NoRegion => write!(f, "the session was attached with nothing near its module"),
            Missed::LittleStack => write!(
                f,
                "it is Go code, whose stack may have some hundred bytes left, and the program calls helpers, which need more"
            ),
            Missed::ProgramByKernel => {
                write!(f, "no jump fits, and in the process there is nothing else that runs a program")
            }
            Missed::Kernel(why) => write!(f, "no jump fits, and {why}"),
            Missed::TooFar(e) => write!(f, "{e}"),
        }
    }
}

/// What must be known of an armed site to take its probe out.
#[derive(Clone, Debug)]
pub(crate) struct Link<'a> {
    pub name: &'a str,
    pub site: u64,
    pub entry: u64,
    /// Where the jump at the site leads, if not to the entry: a jump to that stands there.
    pub landing: Option<u64>,
    /// Where the first probe's code begins, behind the displaced instructions that run before it.
    pub body: u64,
    pub tail: u64,
    pub jump_at: u64,
    pub jump_original: [u8; JUMP_LEN],
    pub short_original: Option<[u8; 2]>,
    /// Its header has a note of what was done to a mark's semaphore.
    pub has_semaphore: bool,
    /// With it, threads can be moved out of the trampoline; without, they are waited for.
    pub trampoline: Option<&'a Trampoline>,
}

/// A site with its trampoline.
#[derive(Debug)]
pub(crate) struct Armed {
    pub plan: SitePlan,
    pub trampoline: Trampoline,
    /// The 5-byte jump, at the site or at the island.
    pub jump: Patch,
    /// The 2-byte jump to the island.
    pub short: Option<Patch>,
    /// First cell.
    pub cell: u32,
    /// Its hooks of the general path, by number.
    pub hooks: Range<u32>,
    /// The jump is in place.
    pub is_live: bool,
    /// It was, and will be again: it is out for a while.
    pub is_out: bool,
    pub missed: Option<Missed>,
}

impl Armed {
    /// Builds the trampoline at `at` and the patches that lead to it.
    pub fn build(
        plan: SitePlan,
        at: u64,
        table: u64,
        slow: u64,
        ways: Ways,
        cell: u32,
        bodies: &[Body],
    ) -> Result<Armed, (Box<SitePlan>, Unreachable)> {
        let request = Request {
            at,
            placement: &plan.placement,
            bias: plan.bias,
            jump_original: plan.jump_original(),
            short_original: plan.short_original(),
            table,
            slow,
            ways,
            bodies,
        };
        let built = Trampoline::build(&request).and_then(|t| {
            let jump = jump_patch(&plan, plan.landing.unwrap_or(t.entry_addr()))?;
            Ok((t, jump))
        });
        let (trampoline, jump) = match built {
            Ok(built) => built,
            Err(far) => return Err((Box::new(plan), far)),
        };
        let short = short_patch(&plan);
        let (is_live, is_out, missed) = (false, false, None);
        Ok(Armed { plan, trampoline, jump, short, cell, hooks: 0..0, is_live, is_out, missed })
    }

    /// Cell number `n` of each consumer that reports events; their cells follow one another.
    pub fn trace_cells(&self, n: u32) -> impl Iterator<Item = u32> {
        let traces = self.plan.consumers().filter(|c| matches!(c, Consumer::Trace { .. })).count() as u32;
        let first = self.cell;
        (0..traces).map(move |i| first + (i * TRACE_CELLS + n) * 8)
    }

    /// The bytes of the window that no thread may stand on when the jump is written: all starts of displaced
    /// instructions but the first.
    pub fn interior(&self) -> Range<u64> {
        let (site, placement) = (self.plan.addr(), &self.plan.placement);
        site + 1..site + u64::from(placement.patch_len.min(placement.displaced_len))
    }

    /// Where a thread goes on that has run the displaced instructions.
    pub fn comes_out(&self) -> u64 {
        self.plan.addr() + u64::from(self.plan.placement.displaced_len)
    }

    pub fn has_several_instructions(&self) -> bool {
        self.plan.placement.displaced_len > 0 && self.plan.placement.displaced.len() > 1
    }

    /// Where a thread goes on in the copy that stood at `pc` in the window.
    pub fn moved(&self, pc: u64) -> Option<u64> {
        let offset = u8::try_from(pc.checked_sub(self.plan.addr())?).ok()?;
        self.trampoline.copy_of(offset)
    }

    /// What stands where its jump leads, if that is not the trampoline: address and bytes.
    pub fn landing(&self) -> Option<(u64, [u8; JUMP_LEN])> {
        let at = self.plan.landing?;
        // Allotted within reach of each other.
        Some((at, jump(at, self.trampoline.entry_addr()).ok()?))
    }

    /// The site as `leave` sees it.
    pub fn link(&self) -> Link<'_> {
        Link {
            name: &self.plan.name,
            site: self.plan.addr(),
            entry: self.trampoline.entry_addr(),
            landing: self.plan.landing,
            body: self.trampoline.body_addr(),
            tail: self.trampoline.tail_addr(),
            jump_at: self.jump.addr,
            jump_original: self.plan.jump_original(),
            short_original: self.plan.short_original(),
            has_semaphore: self.plan.semaphore.is_some(),
            trampoline: Some(&self.trampoline),
        }
    }

    /// All bytes that change.
    pub fn patches(&self) -> impl Iterator<Item = &Patch> {
        std::iter::once(&self.jump).chain(&self.short)
    }
}

fn jump_patch(plan: &SitePlan, entry: u64) -> Result<Patch, Unreachable> {
    let (addr, old) = match plan.placement.island {
        Some(island) => (island.wrapping_add(plan.bias), &plan.island_original),
        None => (plan.addr(), &plan.original),
    };
    debug_assert_eq!(old.len(), JUMP_LEN);
    Ok(Patch { addr, old: old.clone(), new: jump(addr, entry)?.to_vec() })
}

fn short_patch(plan: &SitePlan) -> Option<Patch> {
    let island = plan.placement.island?.wrapping_add(plan.bias);
    let new = island_jump(plan.addr(), island)?.to_vec();
    Some(Patch { addr: plan.addr(), old: plan.original.clone(), new })
}

#[cfg(test)]
mod tests {
    use super::Consumer;

    #[test]
    fn a_histogram_of_r8_to_r11_reads_what_is_not_always_saved() {
        // Where the kernel's `pt_regs` has r11, r10, r9 and r8, then rax and rdi.
        let reads = [48, 56, 64, 72, 80, 112].map(|register| Consumer::Log2Histogram { register }.reads());
        assert_eq!(reads, [1 << 11, 1 << 10, 1 << 9, 1 << 8, 0, 0]);
        let of_32_bits = 72 | 32 << wire::ARG_SHIFT;
        assert_eq!(Consumer::Log2Histogram { register: of_32_bits }.reads(), 1 << 8);
        let go = Consumer::Enter { function: 3, is_go: true };
        assert_eq!((go.reads(), Consumer::Count.reads()), (1 << 14, 0));
    }
}
