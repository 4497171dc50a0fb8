//! What the program's handlers are shown of a thread that is on its way through a jump.
//!
//! For:     the handlers that the kernel calls.
//! State:   none; what is put back afterwards.
//! Context: signal.
//! Keeps:   V1 the program counter and the registers are those of the probed code: of the site before the consumers were
//!          asked and before the displaced instructions run, of the instruction whose copy runs after that.
//!          V2 a handler that leaves them so lets the thread go on where it was; one that changes them has its way.
//! Checked: `tests/jumps.rs`.

use crate::engine::Inner;
use crate::handler::{DEFERRED, IN_JUMP, ORIGINAL_MASK, set_regs, to_regs};
use crate::jump::Jump;
use crate::routine::{Frame, Standing, standing};
use insn::Origin;
use sys::signal::{Context, Info, bit};
use text::GatePlace;

const RSP: usize = 4;
const RBP: usize = 5;
const RDI: usize = 7;

/// How the thread goes on afterwards.
#[derive(Clone, Copy)]
pub(crate) enum Shown {
    /// Nothing of ours.
    Nothing,
    /// As the context says: the hit begins again, or is over.
    AsIs,
    /// At `pc`, with the stack pointer so much lower, if the handler leaves the program counter at `at`.
    Back { at: u64, pc: u64, below: u64 },
    /// On its way out of the routine, whose frame gets the registers.
    Frame { at: u64, pc: u64, general: [u64; 16], flags: u64 },
}

/// What to do with a signal that comes to a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Now,
    /// Consumers run, or are about to.
    Later,
}

/// Whether a signal that is no fault must wait.
pub(crate) fn when(context: &Context) -> When {
    let general = context.general();
    let is_entering = standing(context.rip(), general[RSP], general[RBP]) == Some(Standing::Entering);
    if is_entering || IN_JUMP.get() { When::Later } else { When::Now }
}

/// Sends the signal again, blocked, for after the hit. False: it cannot be queued.
pub(crate) fn defer(signal: i32, info: &Info, context: &mut Context) -> bool {
    const RT_TGSIGQUEUEINFO: usize = 297;
    let before = context.mask;
    let (process, thread) = (sys::getpid() as usize, sys::gettid() as usize);
    let args = [process, thread, signal as usize, std::ptr::from_ref(info) as usize, 0, 0];
    // It must not come while we are here: the handler's own mask blocks it, or not (SA_NODEFER).
    let now = sys::signal::set_mask(!bit(sys::signal::sig::TRAP));
    // SAFETY: the kernel reads the info, which outlives the call.
    let sent = unsafe { sys::syscall(RT_TGSIGQUEUEINFO, args) };
    if sent >= 0 {
        context.mask |= bit(signal);
        if !DEFERRED.get() {
            ORIGINAL_MASK.set(before);
            DEFERRED.set(true);
        }
    }
    sys::signal::set_mask(now | if sent >= 0 { bit(signal) } else { 0 });
    sent >= 0
}

impl Inner {
    /// Shows the thread as it would be without the jump.
    ///
    /// # Safety
    /// The context must be that of the calling thread, which is in a handler.
    pub unsafe fn show(&self, context: &mut Context) -> Shown {
        let (pc, mut general) = (context.rip(), context.general());
        if let Some(jump) = self.blocks.jump_at(pc) {
            return show_in_gate(jump, pc, context);
        }
        match standing(pc, general[RSP], general[RBP]) {
            Some(Standing::Leaving(frame)) => {
                // SAFETY: the routine made it there, and the thread has not left it yet.
                let frame = unsafe { &*(frame as *const Frame) };
                let flags = context.flags();
                set_regs(&frame.regs, context);
                Shown::Frame { at: frame.regs.rip, pc, general, flags }
            }
            Some(Standing::Returning) => {
                // SAFETY: the return address and the program's rdi, which the gate pushed.
                let [back, rdi] = unsafe { *(general[RSP] as *const [u64; 2]) };
                let Some(jump) = self.blocks.jump_at(back) else { return Shown::Nothing };
                general[RSP] += 16 + jump.zone;
                general[RDI] = rdi;
                context.set_general(&general);
                context.set_rip(jump.at);
                Shown::Back { at: jump.at, pc: jump.gate.tail_addr(), below: 0 }
            }
            _ => Shown::Nothing,
        }
    }

    /// Lets the thread go on, unless the program sent it elsewhere.
    ///
    /// # Safety
    /// As for `show`.
    pub unsafe fn hide(&self, shown: Shown, context: &mut Context) {
        match shown {
            Shown::Back { at, pc, below } if context.rip() == at => {
                let mut general = context.general();
                general[RSP] -= below;
                context.set_general(&general);
                context.set_rip(pc);
            }
            Shown::Frame { at, pc, general, flags } if context.rip() == at => {
                let is_moved = standing(pc, general[RSP], general[RBP]);
                let Some(Standing::Leaving(frame)) = is_moved else { return };
                // SAFETY: as in `show`: handlers run below it.
                let frame = unsafe { &mut *(frame as *mut Frame) };
                let old = frame.regs;
                let new = to_regs(context, at);
                frame.set(probe::Regs { orig_rax: old.orig_rax, cs: old.cs, ss: old.ss, ..new });
                context.set_general(&general);
                context.set_flags(flags);
                context.set_rip(pc);
            }
            _ => {}
        }
    }

    /// The program steps itself, and has just run an instruction of ours.
    pub fn is_step_of_ours(&self, context: &Context) -> bool {
        let (pc, general) = (context.rip(), context.general());
        let in_gate = self.blocks.jump_at(pc).and_then(|jump| jump.gate.place_of(pc));
        match in_gate {
            Some(GatePlace::Call { .. }) => true,
            Some(GatePlace::Displaced(origin)) => !origin.is_at_start || origin.offset == 0,
            None => IN_JUMP.get() || standing(pc, general[RSP], general[RBP]).is_some(),
        }
    }

    /// The int3 at the routine's end: all registers are set at once, and signals that waited come.
    ///
    /// # Safety
    /// As for `show`.
    pub unsafe fn leave(&self, context: &mut Context) -> bool {
        let general = context.general();
        if standing(context.rip(), general[RSP], general[RBP]) != Some(Standing::Left) {
            return false;
        }
        // SAFETY: the routine made it, and its int3 was just run.
        let frame = unsafe { &*(general[RSP] as *const Frame) };
        let jump = self.blocks.jump_at(frame.back());
        set_regs(&frame.regs, context);
        if let Some(jump) = jump.filter(|jump| jump.at == frame.regs.rip) {
            context.set_rip(jump.gate.tail_addr());
        }
        if DEFERRED.replace(false) {
            context.mask = ORIGINAL_MASK.get();
        }
        true
    }
}

fn show_in_gate(jump: &Jump, pc: u64, context: &mut Context) -> Shown {
    let mut general = context.general();
    match jump.gate.place_of(pc) {
        None => Shown::Nothing,
        Some(GatePlace::Call { is_done, rsp_add, is_rdi_saved }) => {
            if is_rdi_saved {
                // SAFETY: the gate pushed it, and the thread has not popped it yet.
                general[RDI] = unsafe { *(general[RSP] as *const u64) };
            }
            general[RSP] += u64::from(rsp_add);
            context.set_general(&general);
            context.set_rip(jump.at);
            match is_done {
                true => Shown::Back { at: jump.at, pc: jump.gate.tail_addr(), below: 0 },
                // Not asked yet: the jump is taken again.
                false => Shown::AsIs,
            }
        }
        Some(GatePlace::Displaced(origin)) => show_displaced(jump, pc, origin, context),
    }
}

fn show_displaced(jump: &Jump, pc: u64, origin: Origin, context: &mut Context) -> Shown {
    if !origin.is_restartable && origin.leads_to.is_none() {
        return Shown::Nothing;
    }
    let below = u64::from(origin.stack_shift_bytes);
    let at = origin.leads_to.unwrap_or(jump.at + u64::from(origin.offset));
    let mut general = context.general();
    general[RSP] += below;
    context.set_general(&general);
    context.set_rip(at);
    if origin.offset == jump.placement.displaced_len && origin.is_at_start {
        return Shown::AsIs; // the jump back: the program's own code comes next
    }
    Shown::Back { at, pc, below }
}
