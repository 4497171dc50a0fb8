//! From registers to the addresses of a stack's calls.
//!
//! For:     a hit that wants to know who called.
//! State:   the registers of the frame that the walk has come to.
//! Context: hit, signal; any thread, in the middle of any function. Nothing is allocated, nothing is called but the
//!          reader of the stack.
//! Keeps:   W1 at most as many frames as asked for, and a bounded number of steps: each goes up the stack, but those that
//!          leave a signal's frame, and these are counted too.
//!          W2 memory is read through [`Stack`] alone, which says no where it does not know.
//!          W3 a frame that is given is one that the table, or a frame pointer, leads to; where neither does, the walk ends and
//!          says why.
//!          W4 what is found hangs on nothing else than what the reader of the stack is told: a walk may be remembered.
//! Checked: tests/steps: instructions of programs that are stepped, beside the calls that were seen (W4 too); tests/tables.rs.

use crate::rule::{Kind, LOST, REGS, Reg, Rule, SAME, SAVED};
use crate::tables::{Module, Tables, Way};

/// The most frames that are walked, as many as the kernel's.
pub const FRAMES_MAX: usize = 127;

/// Memory that is known to be a thread's stack.
pub trait Stack {
    /// The word at this address, `None` if it cannot be said that reading it is safe.
    fn word(&mut self, addr: u64) -> Option<u64>;

    /// This word and the next one.
    #[inline(always)]
    fn two_words(&mut self, addr: u64) -> Option<[u64; 2]> {
        Some([self.word(addr)?, self.word(addr.wrapping_add(8))?])
    }

    /// The walk goes on here, where a signal has interrupted: this may be another stack.
    fn switch(&mut self, sp: u64) {
        let _ = sp;
    }

    /// The walk has met an address that no table speaks of.
    fn unknown(&mut self, pc: u64) {
        let _ = pc;
    }

    /// What was kept of an address under tables of this number, if it is still known. A look-up is a chain of reads, each of which waits
    /// for the one before; this is one.
    fn way(&mut self, pc: u64, tables: u32) -> Option<Way> {
        let _ = (pc, tables);
        None
    }

    /// The walk has looked this up.
    fn keep_way(&mut self, pc: u64, tables: u32, way: Way) {
        let _ = (pc, tables, way);
    }

    /// What the walk finds hangs on this word: if the stack pointer, all words that are told and all registers that are told are as
    /// they were, and the tables too, and the stack reaches as far, then so is what it finds. Not told behind a [`switch`](Self::switch).
    fn hangs_on(&mut self, addr: u64, value: u64) {
        let _ = (addr, value);
    }

    /// The same of two words.
    #[inline(always)]
    fn hangs_on_two(&mut self, first: [u64; 2], second: [u64; 2]) {
        self.hangs_on(first[0], first[1]);
        self.hangs_on(second[0], second[1]);
    }

    /// The same of what a register had where the walk began.
    fn hangs_on_register(&mut self, reg: Reg, value: u64) {
        let _ = (reg, value);
    }
}

/// What a walk begins with, and goes on with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Registers {
    /// The address of the next instruction.
    pub pc: u64,
    values: [u64; REGS],
    /// Which word of the stack each was read from; 0 for one that was given at the beginning.
    origins: [u64; REGS],
    /// A bit for each that is known.
    known: u8,
}

impl Registers {
    /// Of these two nothing can be walked without; the others are not known.
    #[inline(always)]
    pub fn new(pc: u64, sp: u64) -> Registers {
        let mut values = [0; REGS];
        values[Reg::Rsp as usize] = sp;
        Registers { pc, values, origins: [0; REGS], known: 1 << Reg::Rsp as u8 }
    }

    /// The same with this register too.
    #[inline(always)]
    pub fn with(mut self, reg: Reg, value: u64) -> Registers {
        self.set(reg as usize, value);
        self
    }

    /// The stack pointer.
    #[inline(always)]
    pub fn sp(&self) -> u64 {
        self.values[Reg::Rsp as usize]
    }

    #[inline(always)]
    fn get(&self, number: usize) -> Option<u64> {
        let value = self.values.get(number)?;
        (self.known >> number & 1 != 0).then_some(*value)
    }

    /// What a frame is found by.
    #[inline(always)]
    fn base(&self, reg: Reg, stack: &mut impl Stack) -> Option<u64> {
        let value = self.get(reg as usize)?;
        match self.origins.get(reg as usize).copied().unwrap_or(0) {
            // The stack pointer follows from all before.
            _ if reg == Reg::Rsp => {}
            0 => stack.hangs_on_register(reg, value),
            addr => stack.hangs_on(addr, value),
        }
        Some(value)
    }

    #[inline(always)]
    fn set(&mut self, number: usize, value: u64) {
        if let Some(to) = self.values.get_mut(number) {
            *to = value;
            self.known |= 1 << number;
        }
    }

    /// The same of a register that was saved there.
    #[inline(always)]
    fn restore(&mut self, number: usize, addr: u64, value: u64) {
        self.set(number, value);
        if let Some(origin) = self.origins.get_mut(number) {
            *origin = addr;
        }
    }

    #[inline(always)]
    fn forget(&mut self, number: usize) {
        self.known &= !(1 << number);
    }
}

/// Why a walk ended.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nobody has called the last frame: the stack is whole.
    Outermost = 0,
    /// There may be more; no more was asked for.
    Depth = 1,
    /// The next word is not known to be the stack's.
    NotStack = 2,
    /// Code without a table, and its frame pointer leads nowhere.
    NoFrame = 3,
    /// The table says what is not understood here, or needs a register that is not known.
    Unknown = 4,
    /// The next frame would not lie above this one.
    NotUp = 5,
}

impl Stop {
    /// The reason of this number.
    #[inline(always)]
    pub fn of(number: u32) -> Stop {
        match number {
            0 => Stop::Outermost,
            1 => Stop::Depth,
            2 => Stop::NotStack,
            3 => Stop::NoFrame,
            4 => Stop::Unknown,
            _ => Stop::NotUp,
        }
    }
}

/// Where the kernel's frame of a signal has the interrupted registers, from the stack pointer at its return: a `ucontext`.
const SIGNAL: [(Reg, u64); REGS] = [
    (Reg::R10, 56),
    (Reg::R12, 72),
    (Reg::R13, 80),
    (Reg::R14, 88),
    (Reg::R15, 96),
    (Reg::Rbp, 120),
    (Reg::Rbx, 128),
    (Reg::Rsp, 160),
];
const SIGNAL_PC: u64 = 168;

/// Gives the address of each call with its number, from `registers.pc` outwards; how many, and why no more. `is_entry`: the first
/// one is where a function begins, or the instruction that leaves it: without a table its return address is on top of the stack.
#[inline(always)]
pub fn walk(
    tables: Tables<'_>,
    mut registers: Registers,
    stack: &mut impl Stack,
    is_entry: bool,
    most: usize,
    mut take: impl FnMut(usize, u64),
) -> (usize, Stop) {
    let mut last = Module::default();
    // The first address is the instruction's own; a return address is that of the one behind the call.
    let mut is_own = true;
    let mut given = 0;
    loop {
        if given >= most {
            return (given, Stop::Depth);
        }
        take(given, registers.pc);
        given += 1;
        let at = registers.pc.wrapping_sub(u64::from(!is_own));
        let way = match stack.way(at, tables.generation()) {
            Some(way) => way,
            None => {
                let way = tables.way(at, &mut last);
                stack.keep_way(at, tables.generation(), way);
                way
            }
        };
        is_own = false;
        let is_first = is_entry && given == 1;
        let left = match way {
            Way::FRAMED => leave_framed(&mut registers, stack),
            Way::BARE | Way::NO_TABLE => {
                if way == Way::NO_TABLE {
                    stack.unknown(at);
                }
                match is_first {
                    true => return_from(&mut registers, stack),
                    false => leave_by_frame_pointer(&mut registers, stack),
                }
            }
            _ => {
                let rule = tables.rule_of(way).unwrap_or(Rule::bare(Kind::Unknown));
                is_own = rule.kind() == Kind::Signal;
                match rule.kind() {
                    Kind::Unknown if is_first => return_from(&mut registers, stack),
                    _ => leave(&rule, &mut registers, stack),
                }
            }
        };
        if left.is_ok() && way.is_framed() {
            given = climb(tables, &mut registers, stack, given, most, &mut take);
        }
        match left {
            Ok(()) if registers.pc == 0 => return (given, Stop::Outermost),
            Ok(()) => {}
            Err(stop) => return (given, stop),
        }
    }
}

/// Goes on by frame pointers as long as that is remembered of the code, and nothing is in the way: what [`leave_framed`] and
/// [`leave_by_frame_pointer`] do, in registers of the processor. How many addresses were given by then.
#[inline(always)]
fn climb(
    tables: Tables<'_>,
    registers: &mut Registers,
    stack: &mut impl Stack,
    from: usize,
    most: usize,
    take: &mut impl FnMut(usize, u64),
) -> usize {
    const RBP: usize = Reg::Rbp as usize;
    let (mut given, mut pc, mut sp, mut is_bare) = (from, registers.pc, registers.sp(), false);
    let Some((mut base, mut origin)) = registers.get(RBP).zip(registers.origins.get(RBP).copied()) else {
        return given;
    };
    let generation = tables.generation();
    // What is not plain is left to the others.
    while pc != 0 && given < most && origin != 0 && base >= sp && base & 7 == 0 {
        let at = pc.wrapping_sub(1);
        let Some(way) = stack.way(at, generation).filter(|way| way.is_framed()) else { break };
        let Some([caller, next]) = stack.two_words(base) else { break };
        take(given, pc);
        given += 1;
        if way != Way::FRAMED {
            is_bare = true;
            if way == Way::NO_TABLE {
                stack.unknown(at);
            }
        }
        stack.hangs_on_two([origin, base], [base.wrapping_add(8), next]);
        (origin, sp, base, pc) = (base, base.wrapping_add(16), caller, next);
    }
    if given > from {
        if is_bare {
            registers.known = 0;
        }
        registers.pc = pc;
        registers.set(Reg::Rsp as usize, sp);
        registers.restore(RBP, origin, base);
        registers.forget(Reg::R10 as usize);
    }
    given
}

/// Leaves a function of which nothing has run, or nothing is left to run.
#[inline(always)]
fn return_from(registers: &mut Registers, stack: &mut impl Stack) -> Result<(), Stop> {
    let sp = registers.sp();
    registers.pc = followed(sp, stack, Stop::NotStack)?;
    registers.set(Reg::Rsp as usize, sp.wrapping_add(8));
    registers.forget(Reg::R10 as usize);
    Ok(())
}

/// A word that the walk goes on by.
#[inline(always)]
fn followed(addr: u64, stack: &mut impl Stack, or: Stop) -> Result<u64, Stop> {
    let pc = stack.word(addr).ok_or(or)?;
    stack.hangs_on(addr, pc);
    Ok(pc)
}

#[inline(always)]
fn leave(rule: &Rule, registers: &mut Registers, stack: &mut impl Stack) -> Result<(), Stop> {
    let (kind, sp) = (rule.kind(), registers.sp());
    let base = match kind {
        Kind::Plain | Kind::Deref | Kind::Plt => {
            Reg::of(rule.base).and_then(|reg| registers.base(reg, stack)).ok_or(Stop::Unknown)?
        }
        Kind::Signal => return leave_signal(registers, stack),
        Kind::Outermost => return Err(Stop::Outermost),
        Kind::FramePointer => return leave_by_frame_pointer(registers, stack),
        Kind::Unknown => return Err(Stop::Unknown),
    };
    let at = base.wrapping_add_signed(rule.offset.into());
    let (frame, ra) = match kind {
        Kind::Deref => (followed(at, stack, Stop::NotStack)?, rule.ra),
        Kind::Plt => (at.wrapping_add(if registers.pc & 15 >= rule.ra as u64 { 8 } else { 0 }), -1),
        _ => (at, rule.ra),
    };
    if frame <= sp {
        return Err(Stop::NotUp);
    }
    let place = |words: i16, from: u64| from.wrapping_add_signed(i64::from(words) * 8);
    registers.pc = followed(place(ra, frame), stack, Stop::NotStack)?;
    let from = if rule.is_at_rbp { registers.base(Reg::Rbp, stack).ok_or(Stop::Unknown)? } else { frame };
    let is_kept = if kind == Kind::Plt { [SAME; SAVED] } else { rule.saved };
    for (number, words) in (Reg::Rbp as usize..).zip(is_kept) {
        let value = match words {
            SAME => continue,
            LOST => None,
            // What is not in the frame is not there yet, or has been taken back, which few tables say.
            words if !(sp..frame).contains(&place(words, from)) => continue,
            words => stack.word(place(words, from)),
        };
        match value {
            Some(value) => registers.restore(number, place(words, from), value),
            None => registers.forget(number),
        }
    }
    registers.set(Reg::Rsp as usize, frame);
    registers.forget(Reg::R10 as usize);
    Ok(())
}

/// Code that has made a frame, as its table says: what [`leave`] does by such a rule.
#[inline(always)]
fn leave_framed(registers: &mut Registers, stack: &mut impl Stack) -> Result<(), Stop> {
    let (sp, base) = (registers.sp(), registers.base(Reg::Rbp, stack).ok_or(Stop::Unknown)?);
    let frame = base.wrapping_add(16);
    if frame <= sp {
        return Err(Stop::NotUp);
    }
    registers.pc = followed(base.wrapping_add(8), stack, Stop::NotStack)?;
    if base >= sp {
        match stack.word(base) {
            Some(value) => registers.restore(Reg::Rbp as usize, base, value),
            None => registers.forget(Reg::Rbp as usize),
        }
    }
    registers.set(Reg::Rsp as usize, frame);
    registers.forget(Reg::R10 as usize);
    Ok(())
}

/// Code without a table, which is believed to keep a frame pointer: what lies there must look like a frame above.
#[inline(always)]
fn leave_by_frame_pointer(registers: &mut Registers, stack: &mut impl Stack) -> Result<(), Stop> {
    let sp = registers.sp();
    let frame = registers.base(Reg::Rbp, stack).ok_or(Stop::NoFrame)?;
    if frame == 0 {
        return Err(Stop::Outermost);
    }
    if frame < sp || frame & 7 != 0 {
        return Err(Stop::NoFrame);
    }
    let caller = stack.word(frame).ok_or(Stop::NoFrame)?;
    registers.pc = followed(frame.wrapping_add(8), stack, Stop::NoFrame)?;
    // Whether it has changed the others nobody says.
    registers.known = 1 << Reg::Rsp as u8;
    registers.set(Reg::Rsp as usize, frame.wrapping_add(16));
    registers.restore(Reg::Rbp as usize, frame, caller);
    Ok(())
}

#[inline(always)]
fn leave_signal(registers: &mut Registers, stack: &mut impl Stack) -> Result<(), Stop> {
    let sp = registers.sp();
    registers.pc = stack.word(sp.wrapping_add(SIGNAL_PC)).ok_or(Stop::NotStack)?;
    for (reg, at) in SIGNAL {
        let value = stack.word(sp.wrapping_add(at)).ok_or(Stop::NotStack)?;
        registers.set(reg as usize, value);
    }
    stack.switch(registers.sp());
    Ok(())
}
