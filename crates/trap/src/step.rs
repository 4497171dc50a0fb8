//! Running the displaced instruction.
//!
//! For:     the handler.
//! State:   none of its own.
//! Context: signal. No lock, no allocation; sleeps if all slots are taken, outside of every reader.
//! Keeps:   T1 the instruction runs exactly once for each time that the thread came to it.
//!          T2 a store of an emulated instruction that would fault is left to a copy of the instruction, which does.
//! Checked: `tests/engine.rs`, `tests/signals.rs`, `torture xol`.

use crate::actions;
use crate::engine::Inner;
use crate::site::Site;
use coll::{Key, TreeNode};
use insn::{RSP, Registers, Store};
use rcu::{Fast, Flavour, Lite, Normal, Reader, Sigsafe};
use sys::signal::{Context, Info, sig};
use text::xol::{Area, Settled};

/// The processor stops after each instruction.
const TRAP_FLAG: u64 = 0x100;

/// The registers of a thread that is interrupted.
pub(crate) fn registers(context: &Context, rip: u64) -> Registers {
    Registers { general: context.general(), flags: context.flags(), rip }
}

/// Gives it others.
pub(crate) fn set_registers(context: &mut Context, regs: &Registers) {
    context.set_general(&regs.general);
    context.set_flags(regs.flags);
    context.set_rip(regs.rip);
}

/// What became of a step.
enum Step {
    /// The context says how the thread goes on.
    Done,
    /// All slots of the area are taken.
    Full(&'static Area),
}

impl Inner {
    /// Runs `body` with the site at an address, inside the reader that keeps it.
    #[inline]
    pub fn with_site<T>(&self, at: u64, body: impl FnOnce(&TreeNode<Site>) -> T) -> Option<T> {
        // SAFETY: inside the reader that `Engine::collect` waits for. Writers block signals, so that a lookup never
        // waits for the thread that it interrupts.
        self.read(|| unsafe { self.sites.find(Key(at, 0)) }.map(body)).flatten()
    }

    /// Runs `body` inside the engine's reader.
    #[inline(always)]
    pub fn read<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        match self.flavour {
            Flavour::Normal => self.read_as::<Normal, T>(body),
            Flavour::Sigsafe => self.read_as::<Sigsafe, T>(body),
            Flavour::Lite => self.read_as::<Lite, T>(body),
            _ => self.read_as::<Fast, T>(body),
        }
    }

    #[inline(always)]
    fn read_as<F: Reader, T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        let rank = self.domain.lock::<F>().ok()?;
        let got = body();
        // SAFETY: entered above, and left once: nothing unwinds here, the registry catches panics of consumers.
        unsafe { self.domain.unlock::<F>(rank) };
        Some(got)
    }

    /// Lets the thread go on with the instruction at `at`; if its site is gone, at the instruction itself.
    ///
    /// # Safety
    /// The context must be that of the calling thread, which is in the handler.
    pub unsafe fn step(&self, at: u64, context: &mut Context) {
        // SAFETY: the caller's duty.
        let tried = self.with_site(at, |node| unsafe { advance(&node.value, at, context) });
        let Some(Step::Full(area)) = tried else {
            if tried.is_none() {
                context.set_rip(at);
            }
            return;
        };
        area.wait(|| {
            // SAFETY: the caller's duty.
            match self.with_site(at, |node| unsafe { advance(&node.value, at, context) }) {
                Some(Step::Full(_)) => None,
                Some(Step::Done) => Some(()),
                None => {
                    context.set_rip(at);
                    Some(())
                }
            }
        });
    }

    /// Takes the thread out of a slot, if it is in one.
    ///
    /// # Safety
    /// As for `step`.
    pub unsafe fn settle(&self, context: &mut Context) -> Settled {
        let Some(area) = self.areas().find(|area| area.holds(context.rip())) else {
            return Settled::Elsewhere;
        };
        let mut regs = registers(context, context.rip());
        // SAFETY: the caller's duty.
        let settled = unsafe { area.settle(&mut regs) };
        if settled != Settled::Elsewhere {
            set_registers(context, &regs);
            self.counters.settled.inc();
        }
        settled
    }
}

/// # Safety
/// As for `step`.
#[inline]
unsafe fn advance(site: &Site, at: u64, context: &mut Context) -> Step {
    if let Some(emulation) = &site.emulation {
        let mut regs = registers(context, at);
        let stored = emulation.run(&mut regs);
        // SAFETY: the caller's duty: it is this thread's stack, as the program's own instruction would use it.
        if stored.is_none_or(|stored| unsafe { store(stored, context.general()[RSP]) }) {
            set_registers(context, &regs);
            if regs.flags & TRAP_FLAG != 0 {
                single_stepped(context);
            }
            return Step::Done;
        }
    }
    let Some(code) = &site.code else { return Step::Done };
    match site.area.enter(code, &site.binding) {
        Some(slot) => {
            context.set_rip(slot);
            Step::Done
        }
        None => Step::Full(site.area),
    }
}

/// Stores what an emulated instruction pushes; false if that would fault.
///
/// # Safety
/// The address must be on the calling thread's stack as the program has it.
#[inline]
unsafe fn store(store: Store, stack_pointer: u64) -> bool {
    let here = std::ptr::from_ref(&store) as u64;
    // The kernel's frame for this handler begins 128 bytes below the program's stack pointer: what lies in the same page
    // can be written.
    if stack_pointer > here && stack_pointer - here < 1 << 16 && stack_pointer & 0xfff > 128 + 8 {
        // SAFETY: the caller's duty; the page holds the kernel's signal frame, too.
        unsafe { (store.addr as *mut u64).write_unaligned(store.value) };
        return true;
    }
    let pid = sys::getpid() as i32;
    // SAFETY: the caller's duty; the kernel refuses what cannot be written.
    unsafe { sys::remote::write_process(pid, store.addr, &store.value.to_le_bytes()) == Ok(8) }
}

/// The program steps itself: it gets the trap that follows each instruction.
fn single_stepped(context: &mut Context) {
    const TRACE: i32 = 2;
    let mut info = Info::new(sig::TRAP, TRACE, context.rip());
    // SAFETY: both are this handler's.
    unsafe { actions::deliver(sig::TRAP, &mut info, context) };
}
