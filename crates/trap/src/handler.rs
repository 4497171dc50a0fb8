//! The handlers that the kernel calls.
//!
//! For:     `actions`, which installs them.
//! State:   how deep this thread is in consumers, and in changes of probes.
//! Context: signal, with all other signals blocked but faults, in `on_trap`; with what the program asked for in
//!          `on_signal`.
//! Keeps:   H1 errno is the program's afterwards.
//!          H2 the program's handlers see no address of ours, in the registers or in what they are told.
//!          H3 a breakpoint that is not ours is the program's.
//! Checked: `tests/engine.rs`, `tests/signals.rs`.
//! Source:  kernel `handle_swbp`, `uprobe_deny_signal`, `handle_singlestep` (v7.0). Departs: a signal that comes in a
//!          step is not held back; the thread is taken out of its slot, and goes on with the step afterwards.

use crate::actions::{self, Delivered};
use crate::engine::{Inner, Lookup, running};
use crate::jump::Jump;
use crate::show::{self, Shown, When};
use crate::site::Site;
use coll::Key;
use probe::{Hit, Regs};
use std::cell::Cell;
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed};
use sys::signal::{Context, Info, bit, sig};
use text::xol::Settled;

thread_local! {
    pub(crate) static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Consumers of a jump run: the program's signals wait.
    pub(crate) static IN_JUMP: Cell<bool> = const { Cell::new(false) };
    /// A signal waits, blocked, for the end of the hit.
    pub(crate) static DEFERRED: Cell<bool> = const { Cell::new(false) };
    /// What was blocked before.
    pub(crate) static ORIGINAL_MASK: Cell<u64> = const { Cell::new(0) };
}

/// From here to the drop, hits of this thread run their instruction and are counted as nested: it is in a consumer, or
/// changes what a hit would walk through.
pub(crate) struct Busy(());

impl Busy {
    pub fn begin() -> Busy {
        DEPTH.set(DEPTH.get() + 1);
        Busy(())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

unsafe extern "C" {
    fn __errno_location() -> *mut i32;
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> i32;
}

const INT3_TRAP: u64 = 3;
const STEP_TRAP: u64 = 1;
const INT3: u8 = 0xcc;
/// A breakpoint that is found neither at the first look nor behind it, and stands there still, is not ours: one of ours can
/// be found before it stands.
const LOOKS: usize = 2;

/// Keeps errno over a handler.
pub(crate) struct Errno(i32);

impl Errno {
    pub fn save() -> Errno {
        // SAFETY: libc gives each thread's own word.
        let at = unsafe { __errno_location() };
        // SAFETY: as above.
        Errno(unsafe { *at })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as in `save`.
        let at = unsafe { __errno_location() };
        // SAFETY: as above.
        unsafe { *at = self.0 };
    }
}

/// SIGTRAP.
pub(crate) extern "C" fn on_trap(_: i32, info: *mut Info, context: *mut Context) {
    let _errno = Errno::save();
    // SAFETY: the kernel passes a valid context, which is ours until we return.
    let context = unsafe { &mut *context };
    // SAFETY: likewise the info.
    let info = unsafe { &mut *info };
    let Some(inner) = running() else { return };
    if context.trap_number() == INT3_TRAP && info.code > 0 {
        // SAFETY: the context is this thread's.
        if unsafe { inner.leave(context) } {
            return;
        }
        let at = context.rip() - 1;
        for _ in 0..LOOKS {
            // SAFETY: as above.
            if unsafe { inner.on_breakpoint(at, context) } {
                return;
            }
            let mut byte = [0];
            let read = sys::remote::read_process(sys::getpid() as i32, at, &mut byte);
            if read != Ok(1) || byte[0] != INT3 {
                // The breakpoint went between the trap and our look: what stands there now is run.
                inner.counters.raced.inc();
                return context.set_rip(at);
            }
        }
    }
    if context.trap_number() == STEP_TRAP && info.code > 0 && inner.is_step_of_ours(context) {
        return; // the program steps itself, and has not come to an instruction of its own
    }
    // SAFETY: as above. A single step that ended in a slot is shown where it would have ended.
    let settled = unsafe { inner.settle(context) };
    inner.counters.foreign.inc();
    // SAFETY: as above.
    unsafe { deliver_and_go_on(inner, sig::TRAP, settled, info, context) };
}

/// Every other signal for which the program has a function, and faults in any case.
pub(crate) extern "C" fn on_signal(signal: i32, info: *mut Info, context: *mut Context) {
    let _errno = Errno::save();
    // SAFETY: the kernel passes a valid context, which is ours until we return.
    let context = unsafe { &mut *context };
    // SAFETY: likewise the info.
    let info = unsafe { &mut *info };
    let Some(inner) = running() else { return };
    let is_fault = info.code > 0 && actions::FAULTS.contains(&signal);
    if !is_fault && show::when(context) == When::Later && show::defer(signal, info, context) {
        return;
    }
    let in_slot = context.rip();
    // SAFETY: the context is this thread's.
    let settled = unsafe { inner.settle(context) };
    if settled != Settled::Elsewhere && info.code > 0 {
        if settled == Settled::After && matches!(signal, sig::SEGV | sig::BUS) {
            return; // on the way out of the slot, where the stack was too small: the rest was done here
        }
        if info.addr == in_slot {
            info.addr = context.rip();
        }
    }
    // SAFETY: as above.
    unsafe { deliver_and_go_on(inner, signal, settled, info, context) };
}

/// Gives the signal to the program; then the step that it interrupted goes on, unless the program went elsewhere.
///
/// # Safety
/// Info and context must be those of the handler that runs.
unsafe fn deliver_and_go_on(
    inner: &Inner,
    signal: i32,
    settled: Settled,
    info: &mut Info,
    context: &mut Context,
) {
    let was = context.rip();
    let shown = match settled {
        // SAFETY: the caller's duty.
        Settled::Elsewhere => unsafe { inner.show(context) },
        _ => Shown::Nothing,
    };
    let at = context.rip();
    if info.code > 0 && info.addr == was && signal != sig::TRAP {
        info.addr = at;
    }
    // SAFETY: the caller's duty.
    let delivered = unsafe { actions::deliver(signal, info, context) };
    // SAFETY: likewise.
    unsafe { inner.hide(shown, context) };
    // A blocked SIGTRAP would kill at the next breakpoint.
    context.mask &= !bit(sig::TRAP);
    if settled == Settled::Before && delivered == Delivered::Called && context.rip() == at {
        // SAFETY: as above.
        unsafe { inner.step(at, context) };
    }
}

impl Inner {
    /// Handles a breakpoint at `at`; false if it is none of ours.
    ///
    /// # Safety
    /// The context must be that of the calling thread, which is in the handler.
    #[inline]
    unsafe fn on_breakpoint(&self, at: u64, context: &mut Context) -> bool {
        let found = self.with_site(at, |node| match node.value.jump() {
            // The jump is being written or taken away: its gate asks the consumers.
            Some(jump) => {
                context.set_rip(jump.gate.entry_addr());
                false
            }
            None => self.call_consumers(&node.value, at, context),
        });
        let Some(goes_on) = found else { return self.go_inside(at, context) };
        if goes_on {
            // SAFETY: the caller's duty.
            unsafe { self.step(at, context) };
        }
        true
    }

    /// Sends a thread that came to an instruction under a jump to the copy of it; false if there is none.
    fn go_inside(&self, at: u64, context: &mut Context) -> bool {
        // SAFETY: inside the reader that `Engine::collect` waits for.
        let found = self.read(|| unsafe { self.inside.find(Key(at, 0)) }.map(|node| node.value));
        found.flatten().inspect(|copy| context.set_rip(*copy)).is_some()
    }

    /// A hit by jump: calls the consumers.
    #[inline]
    pub fn on_jump(&self, jump: &Jump, regs: &mut Regs) {
        let asked = self.read(|| {
            // [TRAP-16] Orders the pointer before the site. Pairs with [TRAP-17].
            // SAFETY: null, or freed after the reader that we are in.
            let site = unsafe { jump.site.load(Acquire).as_ref() }?;
            let hit = self.ask(&site.value, jump.at, regs);
            self.note(&site.value, hit);
            Some(hit)
        });
        if asked.flatten().is_none() {
            self.counters.raced.inc();
        }
    }

    /// Asks the uprobe of a site.
    #[inline]
    fn ask(&self, site: &Site, at: u64, regs: &mut Regs) -> Hit {
        match site.lookup {
            Lookup::Site => site.uprobe.hit(regs),
            Lookup::Mapping => {
                // SAFETY: the caller is inside the engine's reader.
                match unsafe { self.modules.find(at) } {
                    Some(module) => self.registry.hit_and_stay(module.file, module.offset_of(at), regs),
                    None => Hit::Skipped,
                }
            }
        }
    }

    /// Counts what became of a hit.
    #[inline]
    fn note(&self, site: &Site, hit: Hit) {
        match hit {
            Hit::Handled | Hit::Remove => self.counters.handled.inc(),
            Hit::Unknown | Hit::Skipped => self.counters.skipped.inc(),
            Hit::Restart => {}
        }
        if hit == Hit::Remove {
            site.is_unwanted.store(true, Relaxed);
        }
    }

    /// Calls the consumers. True: the instruction is to be run now.
    #[inline]
    fn call_consumers(&self, site: &Site, at: u64, context: &mut Context) -> bool {
        if DEPTH.get() > 0 {
            self.counters.nested.inc();
            return true;
        }
        let busy = Busy::begin();
        let mut regs = to_regs(context, at);
        let before = regs;
        let hit = self.ask(site, at, &mut regs);
        drop(busy);
        if regs != before {
            set_regs(&regs, context);
        }
        self.note(site, hit);
        if hit == Hit::Restart {
            context.set_rip(at);
            return false;
        }
        regs.rip == at
    }
}

pub(crate) fn to_regs(context: &Context, at: u64) -> Regs {
    let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = context.general();
    let (cs, ss) = context.segments();
    let orig_rax = u64::MAX;
    let (flags, cs, ss) = (context.flags(), cs.into(), ss.into());
    Regs {
        r15,
        r14,
        r13,
        r12,
        rbp,
        rbx,
        r11,
        r10,
        r9,
        r8,
        rax,
        rcx,
        rdx,
        rsi,
        rdi,
        orig_rax,
        rip: at,
        cs,
        flags,
        rsp,
        ss,
    }
}

pub(crate) fn set_regs(regs: &Regs, context: &mut Context) {
    let Regs {
        r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, rip, flags, rsp, ..
    } = *regs;
    context.set_general(&[rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15]);
    context.set_flags(flags);
    context.set_rip(rip);
}

/// SIGTRAP is not blocked in this thread and those that it will make.
pub(crate) fn prepare_thread() {
    sys::signal::set_mask(sys::signal::mask() & !bit(sig::TRAP));
}

/// A child of fork gets slots of its own before it can come to a breakpoint outside of libc.
pub(crate) fn watch_forks() {
    // SAFETY: the function fits the prototype and stays in the program.
    unsafe { pthread_atfork(None, None, Some(in_child)) };
}

unsafe extern "C" fn in_child() {
    let Some(inner) = running() else { return };
    for area in inner.areas() {
        // SAFETY: a forked child has one thread, and that is here.
        unsafe { area.renew() };
    }
    inner.space.reopen();
}
