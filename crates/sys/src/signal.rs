//! Signal actions and masks as the kernel has them, and the registers of an interrupted thread.
//!
//! For:     the in-process trap engine, whose handlers move threads about.
//! State:   none.
//! Context: hit, signal, target.
//! Keeps:   I1 an action that is set returns through code that unwinders know by its bytes.
//!          I2 `Context` and `Info` lie over what the kernel passes to a handler on x86-64.
//! Checked: tests below; `trap`'s tests run every field of them.

use crate::{Errno, check, nr, syscall};

/// Numbers of signals (table).
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod sig {
    pub const ILL: i32 = 4;
    pub const TRAP: i32 = 5;
    pub const BUS: i32 = 7;
    pub const FPE: i32 = 8;
    pub const KILL: i32 = 9;
    pub const SEGV: i32 = 11;
    pub const STOP: i32 = 19;
    /// The highest.
    pub const MAX: i32 = 64;
}

/// The handler gets three arguments.
pub const SA_SIGINFO: u64 = 4;
/// It runs on the alternate stack, if there is one.
pub const SA_ONSTACK: u64 = 0x0800_0000;
/// Interrupted system calls go on.
pub const SA_RESTART: u64 = 0x1000_0000;
/// The signal itself is not blocked meanwhile.
pub const SA_NODEFER: u64 = 0x4000_0000;
/// The action is the default one from the first signal on.
pub const SA_RESETHAND: u64 = 0x8000_0000;
const SA_RESTORER: u64 = 0x0400_0000;

/// The default action.
pub const SIG_DFL: usize = 0;
/// No action.
pub const SIG_IGN: usize = 1;

/// What the kernel does when a signal comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Action {
    /// [`SIG_DFL`], [`SIG_IGN`] or the address of a function.
    pub handler: usize,
    /// `SA_` bits.
    pub flags: u64,
    restorer: usize,
    /// Signals blocked meanwhile: bit `n - 1` for signal `n`.
    pub mask: u64,
}

impl Action {
    /// An action with the handler, `SA_` bits and blocked signals given.
    pub const fn new(handler: usize, flags: u64, mask: u64) -> Action {
        Action { handler, flags, restorer: 0, mask }
    }

    /// True if a function of the program is called.
    pub const fn is_function(&self) -> bool {
        self.handler > SIG_IGN
    }
}

/// The bit of a signal in a mask.
pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".globl nanoprobe_signal_return",
    ".hidden nanoprobe_signal_return",
    ".type nanoprobe_signal_return, @function",
    // Unwinders look at the byte before a return address, too.
    "nop",
    "nanoprobe_signal_return:",
    // The long form of `mov`: the bytes by which libgcc and gdb know the end of a handler.
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0",
    "syscall",
    "ud2",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn nanoprobe_signal_return();
}

/// Address of the code that ends a handler.
#[cfg(target_arch = "x86_64")]
fn restorer() -> usize {
    nanoprobe_signal_return as *const () as usize
}

#[cfg(not(target_arch = "x86_64"))]
fn restorer() -> usize {
    0
}

/// Reads the action of a signal and, if one is given, sets a new one.
///
/// # Safety
/// A new handler must be a function that may run at any instruction of any thread, for as long as it is set.
pub unsafe fn action(signal: i32, new: Option<Action>) -> Result<Action, Errno> {
    let new = new.map(|a| Action { flags: a.flags | SA_RESTORER, restorer: restorer(), ..a });
    let at = new.as_ref().map_or(0, |a| &raw const *a as usize);
    let mut old = Action::default();
    let args = [signal as usize, at, &raw mut old as usize, 8, 0, 0];
    // SAFETY: the kernel reads one action and writes another, both outlive the call; the handler is the caller's duty.
    check(unsafe { syscall(nr::RT_SIGACTION, args) })?;
    Ok(Action { flags: old.flags & !SA_RESTORER, restorer: 0, ..old })
}

/// Sets the calling thread's blocked signals and returns those before.
pub fn set_mask(mask: u64) -> u64 {
    const SETMASK: usize = 2;
    let mut old = 0u64;
    let args = [SETMASK, &raw const mask as usize, &raw mut old as usize, 8, 0, 0];
    // SAFETY: the kernel reads and writes eight bytes each, which outlive the call. It cannot fail with these.
    let _ = unsafe { syscall(nr::RT_SIGPROCMASK, args) };
    old
}

/// The calling thread's blocked signals.
pub fn mask() -> u64 {
    let mut old = 0u64;
    // SAFETY: the kernel writes eight bytes, which outlive the call.
    let _ = unsafe { syscall(nr::RT_SIGPROCMASK, [0, 0, &raw mut old as usize, 8, 0, 0]) };
    old
}

/// Sends a signal to the calling thread.
pub fn raise(signal: i32) -> Result<(), Errno> {
    let args = [crate::getpid() as usize, crate::gettid() as usize, signal as usize, 0, 0, 0];
    // SAFETY: tgkill takes numbers only.
    check(unsafe { syscall(nr::TGKILL, args) }).map(drop)
}

/// What a handler is told of its signal.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Info {
    /// Which signal.
    pub signal: i32,
    /// An error number, mostly 0.
    pub errno: i32,
    /// Where it came from: above 0 from the kernel.
    pub code: i32,
    pad: i32,
    /// For faults, the address.
    pub addr: u64,
    rest: [u64; 13],
}

impl Info {
    /// What the kernel would say of a fault.
    pub const fn new(signal: i32, code: i32, addr: u64) -> Info {
        Info { signal, errno: 0, code, pad: 0, addr, rest: [0; 13] }
    }
}

/// A thread as the kernel saved it before a handler, and as it restores it afterwards.
#[derive(Debug)]
#[repr(C)]
pub struct Context {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    saved: [u64; 23],
    fp: u64,
    reserved: [u64; 8],
    /// The signals that are blocked again afterwards.
    pub mask: u64,
}

/// Where the general registers lie in a context, by their number in instruction encodings.
const GENERAL: [usize; 16] = [13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7];
const RIP: usize = 16;
const FLAGS: usize = 17;
const SEGMENTS: usize = 18;
const TRAP_NUMBER: usize = 20;

impl Context {
    /// The general registers by their number in instruction encodings: rax, rcx, rdx, rbx, rsp, ...
    pub fn general(&self) -> [u64; 16] {
        GENERAL.map(|at| self.saved[at])
    }

    /// Sets them.
    pub fn set_general(&mut self, general: &[u64; 16]) {
        GENERAL.iter().zip(general).for_each(|(at, value)| self.saved[*at] = *value);
    }

    /// Where the thread goes on.
    pub fn rip(&self) -> u64 {
        self.saved[RIP]
    }

    /// Sets it.
    pub fn set_rip(&mut self, to: u64) {
        self.saved[RIP] = to;
    }

    /// The processor's flags.
    pub fn flags(&self) -> u64 {
        self.saved[FLAGS]
    }

    /// Sets them.
    pub fn set_flags(&mut self, flags: u64) {
        self.saved[FLAGS] = flags;
    }

    /// The code and the stack segment.
    pub fn segments(&self) -> (u16, u16) {
        (self.saved[SEGMENTS] as u16, (self.saved[SEGMENTS] >> 48) as u16)
    }

    /// The processor's number of the exception: 1 step, 3 int3, 14 page fault.
    pub fn trap_number(&self) -> u64 {
        self.saved[TRAP_NUMBER]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

    static SEEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

    extern "C" fn on_trap(signal: i32, info: *const Info, context: *mut Context) {
        // SAFETY: the kernel passes a valid context, which is ours until we return.
        let context = unsafe { &mut *context };
        SEEN[0].store(context.trap_number(), SeqCst);
        SEEN[1].store(context.general()[0], SeqCst);
        // SAFETY: the kernel passes a valid info.
        SEEN[2].store(unsafe { (*info).signal == signal } as u64, SeqCst);
        let mut general = context.general();
        general[1] = 77;
        context.set_general(&general);
        context.set_rip(context.rip() + 1); // past the nop
    }

    #[test]
    fn a_handler_sees_and_sets_registers_and_ends() {
        let new = Action::new(on_trap as *const () as usize, SA_SIGINFO, u64::MAX);
        // SAFETY: `on_trap` calls nothing and stores to atomics alone.
        let old = unsafe { action(sig::TRAP, Some(new)) }.unwrap();
        let rcx: u64;
        // SAFETY: `on_trap` is set; it goes on behind the nop and changes rcx alone, which is declared.
        unsafe { core::arch::asm!("int3", ".byte 0x90", inout("rax") 1234u64 => _, out("rcx") rcx) };
        assert_eq!(SEEN.each_ref().map(|n| n.load(SeqCst)), [3, 1234, 1]);
        assert_eq!(rcx, 77);
        // SAFETY: what was set before.
        let mine = unsafe { action(sig::TRAP, Some(old)) }.unwrap();
        assert_eq!(
            (mine.handler, mine.flags, mine.mask | bit(9) | bit(19)),
            (new.handler, new.flags, u64::MAX)
        );
    }

    #[test]
    fn a_mask_is_set_and_read() {
        let before = set_mask(bit(sig::FPE));
        assert_eq!((set_mask(before), mask()), (bit(sig::FPE), before));
    }
}
