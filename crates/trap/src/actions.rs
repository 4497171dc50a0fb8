//! The program's signal actions, while the kernel has ours.
//!
//! For:     handlers, which pass on what is not theirs; embedders, who set actions through us.
//! State:   for each signal what the program asked for, readable in a handler.
//! Context: `deliver`: signal. The rest: target.
//! Keeps:   A1 what the program asks for is what it is told it had, and what is called.
//!          A2 the kernel's action for SIGTRAP and for faults is ours; for others that have a function, ours too.
//!          A3 SIGTRAP is never blocked through here: Linux kills a process that traps then.
//! Checked: `tests/signals.rs`.

use crate::engine::{lock, running};
use crate::handler::{on_signal, on_trap};
#[doc(hidden)]
pub use crate::interpose::{
    CAction, pthread_sigmask as c_pthread_sigmask, sigaction as c_sigaction, signal as c_signal,
    sigprocmask as c_sigprocmask,
};
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use sys::Errno;
use sys::signal::{self, Action, Context, Info, SIG_DFL, SIG_IGN, bit, sig};

/// What the program asked for; written under `WRITING` with all signals blocked, read in handlers.
struct Entry {
    /// Odd while it is written.
    seq: AtomicU32,
    handler: AtomicUsize,
    flags: AtomicU64,
    mask: AtomicU64,
}

impl Entry {
    const fn new() -> Entry {
        Entry {
            seq: AtomicU32::new(0),
            handler: AtomicUsize::new(SIG_DFL),
            flags: AtomicU64::new(0),
            mask: AtomicU64::new(0),
        }
    }

    fn read(&self) -> Action {
        loop {
            // [TRAP-8] Orders the number before the entry. Pairs with [TRAP-9], [TRAP-10].
            let seq = self.seq.load(Acquire);
            let got =
                Action::new(self.handler.load(Acquire), self.flags.load(Acquire), self.mask.load(Acquire));
            if seq & 1 == 0 && self.seq.load(Relaxed) == seq {
                return got;
            }
            std::hint::spin_loop();
        }
    }

    fn write(&self, action: Action) {
        // [TRAP-10] Orders the odd number before the entry. Pairs with [TRAP-8].
        self.seq.fetch_add(1, Acquire);
        self.handler.store(action.handler, Release);
        self.flags.store(action.flags, Release);
        self.mask.store(action.mask, Release);
        // [TRAP-9] Orders the entry before its number. Pairs with [TRAP-8].
        self.seq.fetch_add(1, Release);
    }
}

static ENTRIES: [Entry; 65] = [const { Entry::new() }; 65];
static WRITING: Mutex<()> = Mutex::new(());

pub(crate) const FAULTS: [i32; 4] = [sig::SEGV, sig::BUS, sig::FPE, sig::ILL];
/// libc's own.
const RESERVED: [i32; 2] = [32, 33];

fn fault_mask() -> u64 {
    FAULTS.iter().fold(0, |mask, signal| mask | bit(*signal))
}

/// Runs `work` with every signal blocked that can be, faults and SIGTRAP excepted.
pub(crate) fn with_all_blocked<T>(work: impl FnOnce() -> T) -> T {
    let before = signal::set_mask(!(fault_mask() | bit(sig::TRAP)));
    let got = work();
    signal::set_mask(before);
    got
}

/// Makes the kernel's actions ours, and remembers the program's.
pub(crate) fn take_over() {
    with_all_blocked(|| {
        let _writing = lock(&WRITING);
        for number in (1..=sig::MAX).filter(|n| !RESERVED.contains(n) && ![sig::KILL, sig::STOP].contains(n))
        {
            // SAFETY: nothing is set.
            if let Ok(action) = unsafe { signal::action(number, None) } {
                ENTRIES[number as usize].write(action);
                let _ = install(number, action);
            }
        }
    });
}

/// Gives the kernel what stands for an action of the program.
fn install(number: i32, wanted: Action) -> Result<(), Errno> {
    let is_ours = wanted.is_function() || FAULTS.contains(&number);
    let action = match number {
        sig::TRAP => {
            let flags = signal::SA_SIGINFO | signal::SA_ONSTACK | signal::SA_NODEFER | signal::SA_RESTART;
            Action::new(on_trap as *const () as usize, flags, !(fault_mask() | bit(sig::TRAP)))
        }
        _ if is_ours => {
            let flags = if wanted.is_function() { wanted.flags } else { signal::SA_ONSTACK };
            let flags = (flags | signal::SA_SIGINFO) & !signal::SA_RESETHAND;
            Action::new(on_signal as *const () as usize, flags, wanted.mask & !bit(sig::TRAP))
        }
        _ => wanted,
    };
    // SAFETY: `on_trap` and `on_signal` may run anywhere and stay; the program vouches for its own.
    unsafe { signal::action(number, Some(action)) }.map(drop)
}

/// Sets the action of a signal, as sigaction(2) does, without taking it from the engine. The action before.
///
/// # Errors
/// `EINVAL`: no signal, or one whose action cannot be set.
///
/// # Safety
/// A function must be one that may run at any instruction of any thread.
pub unsafe fn set(number: i32, new: Option<Action>) -> Result<Action, Errno> {
    if !(1..=sig::MAX).contains(&number) || RESERVED.contains(&number) {
        return Err(Errno::EINVAL);
    }
    if running().is_none() || [sig::KILL, sig::STOP].contains(&number) {
        // SAFETY: the caller's duty.
        return unsafe { signal::action(number, new) };
    }
    with_all_blocked(|| {
        let _writing = lock(&WRITING);
        let entry = &ENTRIES[number as usize];
        let old = entry.read();
        let Some(new) = new else { return Ok(old) };
        entry.write(new);
        if let Err(errno) = install(number, new) {
            entry.write(old);
            return Err(errno);
        }
        Ok(old)
    })
}

/// Sets the calling thread's blocked signals, SIGTRAP excepted. Those before.
pub fn set_mask(mask: u64) -> u64 {
    let keep = if running().is_some() { bit(sig::TRAP) } else { 0 };
    signal::set_mask(mask & !keep)
}

/// What became of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivered {
    /// The program's function was called and returned.
    Called,
    /// The default action follows when our handler returns.
    Default,
    Ignored,
}

/// Does with a signal what the program asked for.
///
/// # Safety
/// Info and context must be those of the handler that runs.
pub(crate) unsafe fn deliver(number: i32, info: &mut Info, context: &mut Context) -> Delivered {
    let action = ENTRIES[number as usize].read();
    let is_forced = info.code > 0 && (FAULTS.contains(&number) || number == sig::TRAP);
    match action.handler {
        SIG_IGN if !is_forced => Delivered::Ignored,
        SIG_DFL | SIG_IGN => {
            // SAFETY: the default action. The signal comes again when this handler returns.
            let _ = unsafe { signal::action(number, Some(Action::new(SIG_DFL, 0, 0))) };
            context.mask &= !bit(number);
            let _ = signal::raise(number);
            Delivered::Default
        }
        handler => {
            // SAFETY: the caller's duty.
            unsafe { call(number, &action, handler, info, context) };
            Delivered::Called
        }
    }
}

/// # Safety
/// As for `deliver`; `handler` must be a function that the program set for the signal.
unsafe fn call(number: i32, action: &Action, handler: usize, info: &mut Info, context: &mut Context) {
    if action.flags & signal::SA_RESETHAND != 0 {
        let default = Action::new(SIG_DFL, 0, 0);
        ENTRIES[number as usize].write(default);
        let _ = install(number, default);
    }
    let all = signal::mask();
    if number == sig::TRAP {
        // The kernel blocked what `on_trap` wants; the program's function wants other ones.
        signal::set_mask((context.mask | action.mask) & !bit(sig::TRAP));
    }
    type Function = extern "C" fn(i32, *mut Info, *mut Context);
    // SAFETY: the program set this address as a handler; one that takes a single argument ignores the others.
    let function: Function = unsafe { std::mem::transmute(handler) };
    function(number, info, context);
    if number == sig::TRAP {
        signal::set_mask(all);
    }
}
