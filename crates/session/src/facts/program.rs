//! Programs that a session's consumers run.
//!
//! For:     whoever attaches with programs.
//! State:   machine code that can be placed anywhere, and what a run of it needs.
//! Context: control.
//! Keeps:   G1 a program that is made here runs on the thread's stack with no more than [`OWN_STACK_MAX`] bytes; with more, its
//!             stack is a workspace's.
//!          G2 none writes to the saved registers.
//!          G3 a guard holds for a hit where the program, begun there, would do something.
//! Checked: tests below; testkit `programs`; bpf's guards (G3).

use crate::arch;
use bpf::{Cond, Width};
use jit::{Compiled, Compiler, Level, Meaning, Options, Refused, Stack};
use std::fmt;
use std::sync::Arc;
use text::{GUARDS_MAX, Guard};
use wire::maps::NearTable;
use wire::{Helper, needs, program_cell};

/// Fuel of a run of which nothing else is said.
pub const FUEL: u64 = 100_000;
/// Bytes that a program's code may need on the thread's stack, helpers apart.
pub const OWN_STACK_MAX: u32 = 256;
/// Cells of a consumer that is a program, by [`wire::program_cell`].
pub(crate) const PROGRAM_CELLS: u32 = program_cell::COUNT;
/// Scratch memory of one run, at most.
pub const SCRATCH_MAX: usize = 1 << 22;

/// What becomes of the hits of a consumer that is a program; all that there were are in one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// Ran to the end.
    pub ran: u64,
    /// Skipped: the thread was inside the same program, and a signal handler came in between.
    pub nested: u64,
    /// Skipped: no workspace was free.
    pub no_workspace: u64,
    /// Ended: the fuel was used up.
    pub fuel: u64,
    /// Ended: it did what it may not.
    pub fault: u64,
    /// Skipped: in a forked child that is not followed. Such hits are counted with the children's.
    pub child: u64,
}

impl Runs {
    /// From a consumer's cells, in their order: as [`Settled::removed`](crate::Settled::removed) has them.
    pub fn of(cells: &[u64]) -> Runs {
        let cell = |number: u32| cells.get(number as usize).copied().unwrap_or(0);
        Runs {
            ran: cell(program_cell::RAN),
            nested: cell(program_cell::NESTED),
            no_workspace: cell(program_cell::NO_WORKSPACE),
            fuel: cell(program_cell::FUEL),
            fault: cell(program_cell::FAULT),
            child: cell(program_cell::CHILD),
        }
    }

    /// Hits that did not run to their end.
    pub fn skipped(&self) -> u64 {
        let Runs { ran: _, nested, no_workspace, fuel, fault, child } = *self;
        [nested, no_workspace, fuel, fault, child].into_iter().fold(0, u64::saturating_add)
    }

    /// All hits.
    pub fn hits(&self) -> u64 {
        self.ran.saturating_add(self.skipped())
    }
}

/// What a program is wanted for.
pub struct Wanted<'a> {
    /// For messages.
    pub name: &'a str,
    /// How far it is believed.
    pub level: Level,
    /// Instructions of one run.
    pub fuel: u64,
    /// Bytes of scratch memory of one run.
    pub scratch: usize,
    /// What its wide immediates mean.
    pub meaning: &'a dyn Fn(bpf::Wide) -> Option<Meaning>,
    /// Which of them are tables that a program of our own may look in by itself: [`Options::near`].
    pub near: &'a dyn Fn(bpf::Wide) -> Option<NearTable>,
}

impl Default for Wanted<'_> {
    fn default() -> Self {
        Wanted {
            name: "a program",
            level: Level::Checked,
            fuel: FUEL,
            scratch: 0,
            meaning: &|_| None,
            near: &|_| None,
        }
    }
}

impl fmt::Debug for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wanted { name, level, fuel, scratch, .. } = self;
        write!(f, "Wanted {{ {name}, {level:?}, fuel: {fuel}, scratch: {scratch} }}")
    }
}

/// Why a program cannot run at hits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotProgram {
    /// It is not compiled.
    Refused(Refused),
    /// It needs so many bytes of the thread's stack.
    TooMuchStack(u32),
    /// So much scratch memory.
    TooMuchScratch(usize),
    /// It writes to the registers that were saved, which the target gets back.
    WritesRegisters,
}

impl fmt::Display for NotProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotProgram::Refused(refused) => refused.fmt(f),
            NotProgram::TooMuchStack(bytes) => {
                write!(
                    f,
                    "its code needs {bytes} bytes of the thread's stack; at most {OWN_STACK_MAX} are taken"
                )
            }
            NotProgram::TooMuchScratch(bytes) => {
                write!(f, "it needs {bytes} bytes of scratch memory; there are {SCRATCH_MAX} at most")
            }
            NotProgram::WritesRegisters => write!(f, "it writes to the registers of the process"),
        }
    }
}

impl std::error::Error for NotProgram {}

/// One program.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) name: String,
    pub(crate) code: Compiled,
    pub(crate) fuel: u64,
    pub(crate) scratch: usize,
    /// What it asks first.
    pub(crate) guards: [Option<Guard>; GUARDS_MAX],
}

impl Program {
    /// Compiles a program whose context, in r1, is the kernel's `pt_regs`. It may call the helpers of [`wire::Helper`].
    ///
    /// # Errors
    /// Why it cannot run at hits.
    pub fn new(
        compiler: &mut Compiler,
        program: &bpf::Program,
        wanted: &Wanted<'_>,
    ) -> Result<Program, NotProgram> {
        if wanted.scratch > SCRATCH_MAX {
            return Err(NotProgram::TooMuchScratch(wanted.scratch));
        }
        let helpers: Vec<u32> =
            Helper::ALL.into_iter().filter(|helper| helper.is_for_programs()).map(Helper::number).collect();
        let &Wanted { level, meaning, near, .. } = wanted;
        let mut options = Options { level, given: 1, helpers: &helpers, meaning, near, ..Options::default() };
        let mut code = compiler.compile(program, &options).map_err(NotProgram::Refused)?;
        if code.passed.stack > OWN_STACK_MAX && !code.is_given_stack {
            options.stack = Stack::Given;
            code = compiler.compile(program, &options).map_err(NotProgram::Refused)?;
        }
        if code.passed.stack > OWN_STACK_MAX {
            return Err(NotProgram::TooMuchStack(code.passed.stack));
        }
        // One that is checked cannot.
        if code.context.is_written && !code.is_checked {
            return Err(NotProgram::WritesRegisters);
        }
        let (name, fuel, scratch) = (wanted.name.to_owned(), wanted.fuel, wanted.scratch);
        Ok(Program { name, code, fuel, scratch, guards: guards(program) })
    }

    /// For messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its machine code.
    pub fn code(&self) -> &Compiled {
        &self.code
    }

    /// Bits of [`wire::needs`].
    pub(crate) fn needs(&self) -> u64 {
        let context = &self.code.context;
        let reads =
            |offsets: &[u32]| self.code.is_checked || offsets.iter().any(|offset| context.reads(*offset));
        let mut bits = 0;
        bits |= if self.walks() || reads(arch::KEPT_WORDS) { needs::KEPT } else { 0 };
        bits |= if reads(arch::PLACE_WORDS) { needs::FRAME } else { 0 };
        bits |= if self.needs_workspace() { needs::WORKSPACE } else { 0 };
        bits |= if self.code.can_end_early { needs::FUEL } else { 0 };
        bits | if self.code.is_checked { needs::CHECKED } else { 0 }
    }

    /// The same in a process whose programs read the counter as a clock, or not.
    pub(crate) fn needs_with(&self, has_counter: bool) -> u64 {
        self.needs() | if has_counter { needs::COUNTER } else { 0 }
    }

    /// What it reads of the registers that are saved where someone reads them, as bits.
    pub(crate) fn reads(&self) -> u16 {
        let is_read = |offset: u32| {
            self.code.is_checked
                || self.code.context.reads(offset)
                || self.walks() && Some(offset) == arch::FRAME_OF_SOME
        };
        let read = arch::SAVED_ON_WISH.iter().filter(|(_, offset)| is_read(*offset));
        read.fold(0, |bits, (reg, _)| bits | 1 << reg)
    }

    /// It reads the register that a function leaves its result in.
    pub fn reads_result(&self) -> bool {
        self.code.is_checked || self.code.context.reads(arch::RESULT_WORD)
    }

    /// It asks for the thread's stack.
    pub(crate) fn walks(&self) -> bool {
        self.code.helpers().contains(&Helper::UserStack.number())
    }

    /// It may run on a goroutine's stack, of which Go makes sure of some hundred bytes: its own code needs no more than
    /// [`OWN_STACK_MAX`], and helpers up to a thousand.
    pub(crate) fn suits_goroutine(&self) -> bool {
        self.code.helpers().is_empty()
    }

    /// Its runs need more than the thread's stack.
    pub(crate) fn needs_workspace(&self) -> bool {
        self.code.is_given_stack || self.scratch > 0
    }
}

/// What a program asks first, as far as a trampoline can ask it.
fn guards(program: &bpf::Program) -> [Option<Guard>; GUARDS_MAX] {
    let mut asked = bpf::guards(program).into_iter().map_while(|guard| in_registers(&guard));
    std::array::from_fn(|_| asked.next())
}

fn in_registers(guard: &bpf::Guard) -> Option<Guard> {
    let reg = *arch::GUARDED.get(guard.word as usize / 8)?;
    Some(Guard {
        reg,
        is_wide: guard.width == Width::W64,
        is_masked: guard.cond == Cond::Set,
        constant: guard.constant,
        // Of two that follow one another each is the other's opposite.
        goes_on: arch::condition(guard.cond) ^ u8::from(!guard.goes_on),
    })
}

/// All programs of a session, by number, and their maps.
#[derive(Clone, Debug, Default)]
pub struct Programs(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    programs: Vec<Program>,
    maps: Vec<u8>,
}

impl Programs {
    /// Programs, of which consumers name each by its place here, and the bytes of their maps.
    ///
    /// The bytes are copied into the memory that the session shares with its process, at [`wire::MAPS`] from its start, before
    /// any site is armed: a program reaches them by [`Meaning::Arena`].
    pub fn new(programs: Vec<Program>, maps: Vec<u8>) -> Programs {
        Programs(Arc::new(Inner { programs, maps }))
    }

    /// The same programs with other contents of their maps, which must be as long.
    pub fn with_maps(&self, maps: Vec<u8>) -> Programs {
        Programs(Arc::new(Inner { programs: self.0.programs.clone(), maps }))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.programs.len()
    }

    /// No program.
    pub fn is_empty(&self) -> bool {
        self.0.programs.is_empty()
    }

    /// Number so-and-so.
    pub fn get(&self, number: u32) -> Option<&Program> {
        self.0.programs.get(number as usize)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Program> {
        self.0.programs.iter()
    }

    /// Bytes of their maps; helpers of programs without any find a head of zeros.
    pub(crate) fn maps_len(&self) -> usize {
        if self.is_empty() { 0 } else { self.0.maps.len().max(wire::maps::HANDLES) }
    }

    pub(crate) fn maps(&self) -> &[u8] {
        &self.0.maps
    }

    /// One of them asks for stacks.
    pub(crate) fn walk(&self) -> bool {
        self.iter().any(Program::walks)
    }

    /// What one of them asks of the kernel at each hit, in a process whose programs read the counter as a clock, or not.
    pub(crate) fn asks_the_kernel(&self, has_counter: bool) -> Option<&'static str> {
        self.helpers().filter(|helper| !has_counter || !is_of_time(*helper)).find_map(asked)
    }

    /// One of them signals its process or changes its memory.
    pub(crate) fn changes(&self) -> bool {
        self.helpers().any(|helper| matches!(helper, Helper::SendSignal | Helper::WriteUser))
    }

    /// One of them asks what time it is.
    pub(crate) fn asks_the_time(&self) -> bool {
        self.helpers().any(is_of_time)
    }

    fn helpers(&self) -> impl Iterator<Item = Helper> {
        self.iter().flat_map(|p| p.code.helpers()).filter_map(Helper::of)
    }

    /// Bytes of scratch memory of the one that needs most; `None` if none needs a workspace.
    pub(crate) fn scratch(&self) -> Option<usize> {
        self.iter().filter(|p| p.needs_workspace()).map(|p| p.scratch).max()
    }

    /// Bytes that their code takes in a region, each at a multiple of 16.
    pub(crate) fn placed_len(&self) -> usize {
        self.iter().map(|p| p.code.placed_len().next_multiple_of(16)).sum()
    }
}

/// True for a helper that needs a clock and nothing else that the kernel knows.
fn is_of_time(helper: Helper) -> bool {
    use Helper::{KtimeGetBootNs, KtimeGetNs, KtimeGetTaiNs, PrandomU32, RingbufOutput};
    matches!(helper, KtimeGetNs | KtimeGetBootNs | KtimeGetTaiNs | PrandomU32 | RingbufOutput)
}

/// What a helper asks of the kernel at each call, if it does.
fn asked(helper: Helper) -> Option<&'static str> {
    Some(match helper {
        Helper::KtimeGetNs | Helper::KtimeGetBootNs | Helper::KtimeGetTaiNs => "the time",
        Helper::PrandomU32 => "a random number",
        Helper::UidGid => "the user",
        Helper::Comm => "the thread's name",
        Helper::About => "the process",
        Helper::RingbufOutput => "the time of what it prints",
        Helper::SendSignal => "a signal",
        Helper::WriteUser => "a write to the process's memory",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_helper_of_the_agent_has_the_number_that_programs_call_it_by() {
        use bpf::helper as number;
        let numbers = [
            (Helper::KtimeGetNs, number::KTIME_GET_NS),
            (Helper::PidTgid, number::PID_TGID),
            (Helper::SmpProcessorId, number::SMP_PROCESSOR_ID),
            (Helper::MapLookup, number::MAP_LOOKUP),
            (Helper::MapUpdate, number::MAP_UPDATE),
            (Helper::MapDelete, number::MAP_DELETE),
            (Helper::PrandomU32, number::PRANDOM_U32),
            (Helper::UidGid, number::UID_GID),
            (Helper::Comm, number::COMM),
            (Helper::NumaNodeId, number::NUMA_NODE_ID),
            (Helper::ProbeReadUser, number::PROBE_READ_USER),
            (Helper::ProbeReadOwn, number::PROBE_READ_OWN),
            (Helper::KtimeGetBootNs, number::KTIME_GET_BOOT_NS),
            (Helper::RingbufOutput, number::RINGBUF_OUTPUT),
            (Helper::KtimeGetTaiNs, number::KTIME_GET_TAI_NS),
            (Helper::LookupOrInit, number::LOOKUP_OR_INIT),
            (Helper::Aggregate, number::AGGREGATE),
            (Helper::Aggregated, number::AGGREGATED),
            (Helper::MapNext, number::MAP_NEXT),
            (Helper::MapLen, number::MAP_LEN),
            (Helper::StrCompare, number::STR_COMPARE),
            (Helper::MemCompare, number::MEM_COMPARE),
            (Helper::StrFind, number::STR_FIND),
            (Helper::StrLen, number::STR_LEN),
            (Helper::MemZero, number::MEM_ZERO),
            (Helper::About, number::ABOUT),
            (Helper::StrAppend, number::STR_APPEND),
            (Helper::Child, number::CHILD),
            (Helper::StrTidy, number::STR_TIDY),
            (Helper::ProbeReadText, number::PROBE_READ_TEXT),
            (Helper::SendSignal, number::SEND_SIGNAL),
            (Helper::WriteUser, number::WRITE_USER),
            (Helper::UserStack, number::USER_STACK),
            (Helper::FuncIp, number::FUNC_IP),
            (Helper::Vector, number::VECTOR),
            (Helper::WordLookup, number::WORD_LOOKUP),
            (Helper::WordLookupOrInit, number::WORD_LOOKUP_OR_INIT),
            (Helper::WordUpdate, number::WORD_UPDATE),
            (Helper::WordDelete, number::WORD_DELETE),
            (Helper::WordAggregate, number::WORD_AGGREGATE),
        ];
        for (helper, number) in numbers {
            assert_eq!(helper.number(), number, "{helper:?}");
        }
        // The cookie has BPF's own number, which the list of the language has not.
        let for_programs = Helper::ALL.iter().filter(|helper| helper.is_for_programs());
        assert_eq!(numbers.len() + 1, for_programs.count());
    }

    fn of(text: &str, level: Level) -> Result<Program, NotProgram> {
        let program = bpf::Program::new(bpf::assemble(text).unwrap()).unwrap();
        Program::new(&mut Compiler::new().unwrap(), &program, &Wanted { level, ..Wanted::default() })
    }

    #[test]
    fn a_program_needs_what_it_reads_and_a_workspace_for_a_long_stack() {
        assert_eq!(of("ldxdw %r0, [%r1+112]\nexit", Level::Own).unwrap().needs(), 0);
        assert_eq!(of("ldxdw %r0, [%r1+32]\nexit", Level::Own).unwrap().needs(), needs::KEPT);
        assert_eq!(of("ldxdw %r0, [%r1+152]\nexit", Level::Own).unwrap().needs(), needs::FRAME);
        assert_eq!(of("stdw [%r10-64], 1\nldxdw %r0, [%r10-64]\nexit", Level::Own).unwrap().needs(), 0);
        let long = "stdw [%r10-512], 1\ncall 5\nldxdw %r0, [%r10-512]\nexit";
        assert_eq!(of(long, Level::Own).unwrap().needs(), needs::WORKSPACE);
        let checked = of("mov %r0, 0\nexit", Level::Checked).unwrap();
        let all = needs::CHECKED | needs::WORKSPACE | needs::KEPT | needs::FRAME;
        assert_eq!(checked.needs(), all);
        // What can end before its exit: by an access, a loop, a function of its own, a helper that is not there.
        let reads = of("ldxdw %r0, [%r1+112]\nexit", Level::Checked).unwrap();
        assert_eq!(reads.needs(), all | needs::FUEL);
        for text in [
            "mov %r0, 0\nagain:\nadd %r0, 1\njne %r0, 9, again\nexit",
            "call local on\nexit\non:\nmov %r0, 0\nexit",
            "mov %r6, 5\ncall %r6\nexit",
        ] {
            assert_eq!(of(text, Level::Own).unwrap().needs() & needs::FUEL, needs::FUEL, "{text}");
        }
    }

    #[test]
    fn what_a_program_asks_first_is_asked_of_the_registers() {
        let text = "ldxdw %r2, [%r1+112]\nldxdw %r3, [%r1+72]\njle %r2, 1000, out\njset %r3, 4, on\nout:\nexit\non:\ncall 14\nexit";
        let wanted = [
            Guard { reg: 7, is_wide: true, is_masked: false, constant: 1000, goes_on: 7 },
            Guard { reg: 8, is_wide: true, is_masked: true, constant: 4, goes_on: 5 },
        ];
        assert_eq!(of(text, Level::Own).unwrap().guards, wanted.map(Some));
        // The stack pointer is in no register of these.
        let text = "ldxdw %r2, [%r1+152]\njle %r2, 1000, out\ncall 14\nout:\nexit";
        assert_eq!(of(text, Level::Own).unwrap().guards, [None, None]);
    }

    #[test]
    fn what_cannot_run_at_a_hit_is_refused() {
        assert_eq!(of("stdw [%r1+112], 1\nexit", Level::Own).unwrap_err(), NotProgram::WritesRegisters);
        assert!(matches!(of("call 77777\nexit", Level::Own), Err(NotProgram::Refused(_))));
    }
}
