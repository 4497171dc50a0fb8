//! Programs run one instruction at a time: the reference for everything else that runs them.
//!
//! For:     differential tests of compilers, and programs where no compiler is.
//! State:   registers, frames and the stack of one run.
//! Context: control.
//! Keeps:   V1 no access outside the stack that the host did not allow; no panic whatever the program.
//!          V2 what the RFC leaves open has one answer here: a register that nobody has set is 0, so are r1 to r5 after a call,
//!             and a new frame is zeros.
//!          V3 a run ends: each instruction costs one unit of fuel.
//! Checked: `tests/semantics.rs`; `tests/mutated.rs`; the public bpf_conformance suite through `nanoprobe bpf exec`.
//! Source:  RFC 9669, sections 4 and 5.

use crate::op::{Alu, Atomic, Callee, Cond, Operand, Order, Size, Wide, Width};
use crate::{Op, Program, Reg};
use std::fmt;

/// Bytes of stack that each function has.
pub const FRAME_LEN: usize = 512;
/// Functions that may be inside each other.
pub const FRAMES_MAX: usize = 8;
/// Where the stack lies in a program's view of memory.
const STACK: u64 = 0x7ff0_0000_0000;

/// Why a run ended before its last `exit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Memory that the program may not touch so.
    Access {
        /// The address.
        addr: u64,
        /// Bytes.
        len: usize,
    },
    /// An atomic access at an address that is not a multiple of its size.
    Unaligned {
        /// The address.
        addr: u64,
    },
    /// No helper with this number.
    NoHelper {
        /// The number, or what a register had.
        number: u64,
    },
    /// More functions inside each other than [`FRAMES_MAX`].
    TooDeep,
    /// A wide immediate that this host has no meaning for.
    NoMeaning(Wide),
    /// As many instructions as were paid for were run.
    FuelOut,
}

/// A fault, and the instruction that met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faulted {
    /// The instruction's number.
    pub at: usize,
    /// What it met.
    pub why: Fault,
}

impl fmt::Display for Faulted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {}: ", self.at)?;
        match self.why {
            Fault::Access { addr, len } => write!(f, "{len} bytes at {addr:#x} are not the program's"),
            Fault::Unaligned { addr } => write!(f, "an atomic access at {addr:#x} is not aligned"),
            Fault::NoHelper { number } => write!(f, "there is no helper {number}"),
            Fault::TooDeep => write!(f, "more than {FRAMES_MAX} functions inside each other"),
            Fault::NoMeaning(wide) => write!(f, "{wide:?} means nothing here"),
            Fault::FuelOut => write!(f, "out of fuel"),
        }
    }
}

impl std::error::Error for Faulted {}

/// So often one atomic access is tried again that others come before.
const EXCHANGES_MAX: usize = 1 << 16;

/// What a program finds outside its own registers and stack.
pub trait Host {
    /// Fills `to` from memory at `addr`.
    ///
    /// # Errors
    /// [`Fault::Access`], if the program may not read it.
    fn read(&mut self, addr: u64, to: &mut [u8]) -> Result<(), Fault>;

    /// Writes memory at `addr`.
    ///
    /// # Errors
    /// [`Fault::Access`], if the program may not write it.
    fn write(&mut self, addr: u64, from: &[u8]) -> Result<(), Fault>;

    /// Writes the number `new` to memory at `addr`, which is a multiple of its size, if `old` is there: as one access where others
    /// use that memory too. False if something else is there.
    ///
    /// # Errors
    /// [`Fault::Access`], if the program may not write it.
    fn exchange(&mut self, addr: u64, size: Size, old: u64, new: u64) -> Result<bool, Fault> {
        let _ = old;
        self.write(addr, &new.to_le_bytes()[..size.bytes()]).map(|()| true)
    }

    /// Calls a helper. `stack` is the program's own memory, for pointers into it.
    ///
    /// # Errors
    /// [`Fault::NoHelper`], if there is none with this number; [`Fault::Access`] for a bad pointer.
    fn call(&mut self, number: u64, args: [u64; 5], stack: &mut Stack) -> Result<u64, Fault>;

    /// What a wide immediate stands for.
    ///
    /// # Errors
    /// [`Fault::NoMeaning`], if nothing.
    fn meaning(&mut self, wide: Wide) -> Result<u64, Fault>;
}

/// Where the memory of a [`Buffer`] lies in the program's view.
pub const BUFFER_ADDR: u64 = 0x1000_0000;

/// A host with one piece of memory and no helpers but those of a function.
#[derive(Debug)]
pub struct Buffer<'a, F> {
    bytes: &'a mut [u8],
    helpers: F,
}

impl<'a, F: FnMut(u64, [u64; 5]) -> Option<u64>> Buffer<'a, F> {
    /// `helpers` answers a helper's number and arguments; `None` for a number that it does not know.
    pub fn new(bytes: &'a mut [u8], helpers: F) -> Self {
        Buffer { bytes, helpers }
    }

    fn range(&mut self, addr: u64, len: usize) -> Result<&mut [u8], Fault> {
        within(self.bytes, BUFFER_ADDR, addr, len).ok_or(Fault::Access { addr, len })
    }
}

impl<F: FnMut(u64, [u64; 5]) -> Option<u64>> Host for Buffer<'_, F> {
    fn read(&mut self, addr: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.range(addr, to.len()).map(|bytes| to.copy_from_slice(bytes))
    }

    fn write(&mut self, addr: u64, from: &[u8]) -> Result<(), Fault> {
        self.range(addr, from.len()).map(|bytes| bytes.copy_from_slice(from))
    }

    fn call(&mut self, number: u64, args: [u64; 5], _: &mut Stack) -> Result<u64, Fault> {
        (self.helpers)(number, args).ok_or(Fault::NoHelper { number })
    }

    fn meaning(&mut self, wide: Wide) -> Result<u64, Fault> {
        Err(Fault::NoMeaning(wide))
    }
}

/// The bytes at `addr`, if all of them lie in `bytes`, which begins at `base`.
fn within(bytes: &mut [u8], base: u64, addr: u64, len: usize) -> Option<&mut [u8]> {
    let from = usize::try_from(addr.checked_sub(base)?).ok()?;
    bytes.get_mut(from..from.checked_add(len)?)
}

/// The stack of a run, a frame for each function that is inside.
#[derive(Debug)]
pub struct Stack {
    bytes: Vec<u8>,
}

impl Stack {
    fn new() -> Stack {
        Stack { bytes: vec![0; FRAME_LEN] }
    }

    /// The bytes at `addr`; `None` if not all of them are the stack's.
    pub fn bytes(&mut self, addr: u64, len: usize) -> Option<&mut [u8]> {
        within(&mut self.bytes, STACK, addr, len)
    }

    /// r10 of the innermost function. Frames grow upwards here, which no program can tell.
    fn top(&self) -> u64 {
        STACK + self.bytes.len() as u64
    }
}

/// What a function gets back when the one that it called exits.
struct Caller {
    returns_to: usize,
    kept: [u64; 4],
}

struct Run<'a, H> {
    program: &'a Program,
    host: &'a mut H,
    regs: [u64; 11],
    stack: Stack,
    callers: Vec<Caller>,
}

/// Runs a program with r1 to r5 as given; r0 at its end.
///
/// # Errors
/// What the program did that it may not, or no more `fuel`.
pub fn run<H: Host>(program: &Program, host: &mut H, args: [u64; 5], fuel: u64) -> Result<u64, Faulted> {
    let stack = Stack::new();
    let mut regs = [0; 11];
    regs[1..6].copy_from_slice(&args);
    regs[Reg::FRAME.index()] = stack.top();
    let mut run = Run { program, host, regs, stack, callers: Vec::new() };
    let mut at = 0;
    for _ in 0..fuel {
        // A program's control never leaves it (P1 of `Program`), and a value is never jumped to.
        let Some(op) = program.op(at) else { break };
        match run.step(at, op).map_err(|why| Faulted { at, why })? {
            Some(next) => at = next,
            None => return Ok(run.regs[0]),
        }
    }
    Err(Faulted { at, why: Fault::FuelOut })
}

impl<H: Host> Run<'_, H> {
    fn reg(&self, reg: Reg) -> u64 {
        self.regs[reg.index()]
    }

    fn set(&mut self, reg: Reg, value: u64) {
        self.regs[reg.index()] = value;
    }

    fn operand(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Reg(reg) => self.reg(reg),
            Operand::Imm(imm) => i64::from(imm).cast_unsigned(),
        }
    }

    /// Runs one instruction; the number of the next, `None` at the end.
    fn step(&mut self, at: usize, op: Op) -> Result<Option<usize>, Fault> {
        let next = at + op.slots();
        match op {
            Op::Alu { width, alu, dst, src } => {
                let value = compute(width, alu, self.reg(dst), self.operand(src));
                self.set(dst, value);
            }
            Op::Neg { width, dst } => self.set(dst, truncated(width, self.reg(dst).wrapping_neg())),
            Op::Movsx { width, from, dst, src } => {
                self.set(dst, truncated(width, sign_extended(from, self.reg(src))));
            }
            Op::End { order, size, dst } => self.set(dst, reordered(order, size, self.reg(dst))),
            Op::Wide { dst, wide } => {
                let value = match wide {
                    Wide::Value(value) => value,
                    wide => self.host.meaning(wide)?,
                };
                self.set(dst, value);
            }
            Op::Load { size, signed, dst, src, offset } => {
                let value = self.load(moved(self.reg(src), offset), size)?;
                self.set(dst, if signed { sign_extended(size, value) } else { value });
            }
            Op::Store { size, dst, offset, src } => {
                self.store(moved(self.reg(dst), offset), size, self.operand(src))?;
            }
            Op::Atomic { size, atomic, dst, offset, src } => {
                self.atomic(size, atomic, moved(self.reg(dst), offset), src)?;
            }
            Op::Ja { distance, .. } => return Ok(self.program.target(at, distance)),
            Op::Jump { width, cond, dst, src, offset } => {
                if holds(width, cond, self.reg(dst), self.operand(src)) {
                    return Ok(self.program.target(at, i32::from(offset)));
                }
            }
            Op::Call(callee) => return self.call(at, callee),
            Op::Exit => return Ok(self.exit()),
        }
        Ok(Some(next))
    }

    fn call(&mut self, at: usize, callee: Callee) -> Result<Option<usize>, Fault> {
        let number = match callee {
            Callee::Helper(number) => u64::from(number),
            Callee::Indirect(reg) => self.reg(reg),
            Callee::Btf(number) => return Err(Fault::NoHelper { number: i64::from(number).cast_unsigned() }),
            Callee::Local(distance) => return self.enter(at, distance),
        };
        let [_, args @ .., _, _, _, _, _] = self.regs;
        self.regs[0] = self.host.call(number, args, &mut self.stack)?;
        self.regs[1..6].fill(0);
        Ok(Some(at + 1))
    }

    fn enter(&mut self, at: usize, distance: i32) -> Result<Option<usize>, Fault> {
        if self.callers.len() + 1 >= FRAMES_MAX {
            return Err(Fault::TooDeep);
        }
        let [_, _, _, _, _, _, kept @ .., _] = self.regs;
        self.callers.push(Caller { returns_to: at + 1, kept });
        self.regs[0] = 0;
        self.regs[6..10].fill(0);
        self.stack.bytes.resize(self.stack.bytes.len() + FRAME_LEN, 0);
        self.set(Reg::FRAME, self.stack.top());
        Ok(self.program.target(at, distance))
    }

    fn exit(&mut self) -> Option<usize> {
        let caller = self.callers.pop()?;
        self.regs[1..6].fill(0);
        self.regs[6..10].copy_from_slice(&caller.kept);
        self.stack.bytes.truncate(self.stack.bytes.len() - FRAME_LEN);
        self.set(Reg::FRAME, self.stack.top());
        Some(caller.returns_to)
    }

    fn load(&mut self, addr: u64, size: Size) -> Result<u64, Fault> {
        let mut word = [0; 8];
        let to = &mut word[..size.bytes()];
        match self.stack.bytes(addr, to.len()) {
            Some(bytes) => to.copy_from_slice(bytes),
            None => self.host.read(addr, to)?,
        }
        Ok(u64::from_le_bytes(word))
    }

    fn store(&mut self, addr: u64, size: Size, value: u64) -> Result<(), Fault> {
        let word = value.to_le_bytes();
        let from = &word[..size.bytes()];
        match self.stack.bytes(addr, from.len()) {
            Some(bytes) => bytes.copy_from_slice(from),
            None => self.host.write(addr, from)?,
        }
        Ok(())
    }

    fn atomic(&mut self, size: Size, atomic: Atomic, addr: u64, src: Reg) -> Result<(), Fault> {
        if !addr.is_multiple_of(size.bytes() as u64) {
            return Err(Fault::Unaligned { addr });
        }
        let value = zero_extended(size, self.reg(src));
        for _ in 0..EXCHANGES_MAX {
            let old = self.load(addr, size)?;
            let new = match atomic {
                Atomic::Add { .. } => old.wrapping_add(value),
                Atomic::Or { .. } => old | value,
                Atomic::And { .. } => old & value,
                Atomic::Xor { .. } => old ^ value,
                Atomic::Xchg => value,
                Atomic::Cmpxchg if old == zero_extended(size, self.regs[0]) => value,
                Atomic::Cmpxchg => old,
            };
            if !self.exchange(addr, size, old, new)? {
                continue;
            }
            match atomic {
                Atomic::Cmpxchg => self.regs[0] = old,
                atomic if atomic.fetches() => self.set(src, old),
                _ => {}
            }
            return Ok(());
        }
        Err(Fault::FuelOut)
    }

    /// False if `old` is no longer there.
    fn exchange(&mut self, addr: u64, size: Size, old: u64, new: u64) -> Result<bool, Fault> {
        match self.stack.bytes(addr, size.bytes()) {
            Some(_) => self.store(addr, size, new).map(|()| true),
            None => self.host.exchange(addr, size, old, new),
        }
    }
}

fn moved(base: u64, offset: i16) -> u64 {
    base.wrapping_add_signed(i64::from(offset))
}

fn truncated(width: Width, value: u64) -> u64 {
    match width {
        Width::W32 => value & u64::from(u32::MAX),
        Width::W64 => value,
    }
}

fn zero_extended(size: Size, value: u64) -> u64 {
    let unused = 64 - size.bits();
    value << unused >> unused
}

fn sign_extended(size: Size, value: u64) -> u64 {
    let unused = 64 - size.bits();
    ((value << unused).cast_signed() >> unused).cast_unsigned()
}

fn reordered(order: Order, size: Size, value: u64) -> u64 {
    let value = zero_extended(size, value);
    match order {
        Order::Little => value,
        Order::Big | Order::Swap => value.swap_bytes() >> (64 - size.bits()),
    }
}

/// A value as a signed number of this width.
fn signed(width: Width, value: u64) -> i64 {
    match width {
        Width::W32 => i64::from(value as i32),
        Width::W64 => value.cast_signed(),
    }
}

/// What `dst alu src` is.
fn compute(width: Width, alu: Alu, dst: u64, src: u64) -> u64 {
    let (a, b) = (truncated(width, dst), truncated(width, src));
    let (sa, sb) = (signed(width, a), signed(width, b));
    let shift = (b & if width == Width::W32 { 31 } else { 63 }) as u32;
    let value = match alu {
        Alu::Add => a.wrapping_add(b),
        Alu::Sub => a.wrapping_sub(b),
        Alu::Mul => a.wrapping_mul(b),
        Alu::Div => a.checked_div(b).unwrap_or(0),
        Alu::Sdiv if b == 0 => 0,
        Alu::Sdiv => sa.wrapping_div(sb).cast_unsigned(),
        Alu::Or => a | b,
        Alu::And => a & b,
        Alu::Lsh => a << shift,
        Alu::Rsh => a >> shift,
        Alu::Mod => a.checked_rem(b).unwrap_or(a),
        Alu::Smod if b == 0 => a,
        Alu::Smod => sa.wrapping_rem(sb).cast_unsigned(),
        Alu::Xor => a ^ b,
        Alu::Mov => b,
        Alu::Arsh => (sa >> shift).cast_unsigned(),
    };
    truncated(width, value)
}

/// Whether a condition holds.
fn holds(width: Width, cond: Cond, dst: u64, src: u64) -> bool {
    let (a, b) = (truncated(width, dst), truncated(width, src));
    let (sa, sb) = (signed(width, a), signed(width, b));
    match cond {
        Cond::Eq => a == b,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Set => a & b != 0,
        Cond::Ne => a != b,
        Cond::Sgt => sa > sb,
        Cond::Sge => sa >= sb,
        Cond::Lt => a < b,
        Cond::Le => a <= b,
        Cond::Slt => sa < sb,
        Cond::Sle => sa <= sb,
    }
}
