//! The general path: registers saved in the kernel's `pt_regs` layout, the site's consumers called.
//!
//! For:     handlers that are more than one add.
//! State:   a frame of `FRAME` bytes on the thread's stack.
//! Context: built in control; run in a hit.
//! Keeps:   H1 as in the parent.
//!          H4 no vector register is touched, here or in the agent.
//!          H5 every run of consumers on the list is called once, between the reader's two counts.
//!          H7 as in the parent: asked once a hit; handlers are told, and where in doubt all adds are locked.
//!          H8 the plain adds of a hit go to one copy, which the first of them finds. Before each later one it is asked, in
//!          its section, whether that still is the copy of the CPU; if not, the add is a locked one.
//!          H9 a reader leaves the rank that it entered, which rbx keeps in its low byte. A change of rank in between is
//!          seen by the table's entry, which is then another one: the leaving is a locked add.
//! Checked: testkit `counting` with `hist`, `bench trig-uprobe-nop` (hits = calls),
//!          session `the_agent_writes_no_vector_register_and_has_no_string_instruction`,
//!          `a_hit_whose_rank_changes_inside_leaves_the_rank_that_it_entered` (H9).
//! Source:  kernel handler_chain(), kernel-facts 1.8; reader as srcu_read_lock_fast.
//!
//! Reader and list walk stand here, and not in the agent, because constants of the site (the table, the rseq
//! offset) then cost nothing: 5.7 ns a hit with the walk in the agent, under 4 so (2026-11, CONTRACT 2).
//!
//! What costs is stores, of which AMD family 25 retires one a cycle: four registers that no handler of the site writes are
//! not saved. And chains of loads: the rseq area's address in a register instead of fs, or each add with a look-up of
//! its own, cost 0.6 to 2 ns (2026-11).

use super::{Builder, Flavour, Guarded, RED_ZONE, Rollback, SavedReg, Threads, slow};
use crate::assemble::{Code, RAX, RBX, RCX, RDI, RDX, RSI, Reg};
use insn::{RegSet, Unreachable};
use percpu::emit::Form;
use wire::{ConsumerDesc, SiteDesc, cell, table};

/// Two rseq sections for each body and what belongs to them, which stand before the entry.
pub(super) const fn before_guards(bodies: usize) -> usize {
    stubs(bodies) + bodies * (2 * STUB + NOBODY)
}
/// The part of `pt_regs` above the registers that a call may change: orig_rax, rip, cs, flags, rsp, ss; who reads those writes
/// them first. And two words of the trampoline's own.
const ABOVE: u16 = 48 + OWN;
/// Bytes of the trampoline's own between the saved registers and the program's stack pointer, or its red zone.
pub(super) const OWN: u16 = 16;
/// The part below the five that are always pushed: r8 to r11, and the registers that a call keeps. Of these only rbx is
/// written, which is an argument in Go, and r14 where it is asked for; no handler reads the others yet.
const BELOW: u16 = 80;
/// Where the flags go in the form of `lahf; seto al`: just above the registers.
const SLOT_FLAGS: u16 = BELOW + 5 * 8 + 48;
const SLOT_RBX: u16 = 40;
const SLOT_R14: u16 = 8;
/// Where the consumer that is being called is kept.
const SLOT_CONSUMER: u16 = SLOT_FLAGS + 8;

/// Registers that are always pushed, in the order of their slots from above.
const PUSHED: [Reg; 5] = [RDI, RSI, RDX, RCX, RAX];
/// Registers that a call may change too, from their slots below those; saved where a handler writes or reads them.
const STORED: [(Reg, u16); 4] = [(Reg(8), 72), (Reg(9), 64), (Reg(10), 56), (Reg(11), 48)];

const _: () = assert!(core::mem::offset_of!(SiteDesc, first) == 0);
const _: () = assert!(core::mem::offset_of!(ConsumerDesc, next) == 0);
const _: () = assert!(core::mem::offset_of!(ConsumerDesc, handler) == 8);

/// Out-of-line parts: a descriptor of 32 bytes for each section, then for each the signature and its slow way, then for
/// each body the way of a thread whose rseq area is not known.
const fn stubs(bodies: usize) -> usize {
    2 * bodies * 32
}

const STUB: usize = 24;
const STUB_SLOW: usize = 4;
const NOBODY: usize = 24;

impl Builder<'_> {
    /// `uses`: a bit for each register that the site's handlers write or read, beyond those that are always saved.
    ///
    /// `guard`: what is asked first.
    ///
    /// Stack: 184 + 8 bytes below the red zone, and what the handlers use.
    pub(super) fn hit(&mut self, desc: u64, uses: RegSet, guard: Option<Guarded>) -> Result<(), Unreachable> {
        let asked = guard.map(|guarded| self.ask(&guarded).map(|asked| (guarded, asked))).transpose()?;
        self.general(desc, uses)?;
        match asked {
            Some((guarded, asked)) => self.turned_down(&guarded, asked),
            None => Ok(()),
        }
    }

    fn general(&mut self, desc: u64, uses: RegSet) -> Result<(), Unreachable> {
        let above = self.above();
        self.code.add_rsp(-i32::from(above));
        self.step(|now| now.rsp_add += above);
        PUSHED.into_iter().for_each(|reg| self.push_always(reg));
        self.code.add_rsp(-i32::from(BELOW));
        self.step(|now| {
            now.rsp_add += BELOW;
            now.saved.iter_mut().for_each(|s: &mut SavedReg| s.slot += BELOW);
        });
        for (reg, slot) in stored(uses).chain([(RBX, SLOT_RBX)]) {
            self.code.store_rsp(slot, reg);
            self.step(|now| now.saved.push(SavedReg { number: reg.0, slot }));
        }
        if uses.contains(14) {
            self.code.store_rsp(SLOT_R14, Reg(14));
        }
        if !self.hook().flags_dead {
            self.code.flags_to_ax();
            self.code.store_rsp(SLOT_FLAGS, RAX);
            self.step(|now| now.flags = Some(SLOT_FLAGS));
        }
        let doubt = match self.request.ways.threads {
            Some(threads) => Some(self.ask_for_a_block(threads)?),
            None => None,
        };
        self.count_entered()?;
        if let Some(stub) = doubt {
            self.doubtful(stub)?;
        }
        self.fence();
        // Once entered, the hit runs to its end: its consumers and its leaving count too.
        self.run_only();
        self.walk(desc);
        self.fence();
        self.count_left()?;
        self.counted_from_here();
        self.restore(uses)
    }

    /// What lies between the frame and the program's stack pointer; one instruction skips the red zone with it.
    fn above(&self) -> u16 {
        if self.hook().is_red_zone_free { ABOVE } else { ABOVE + RED_ZONE }
    }

    /// Leaves if fs leads to something else than a thread's block. Returns where to: the offset of a stub.
    ///
    /// Clobbers: rdx, flags.
    fn ask_for_a_block(&mut self, threads: Threads) -> Result<usize, Unreachable> {
        let bodies = self.request.bodies.len();
        let stub = stubs(bodies) + 2 * bodies * STUB + self.stage * NOBODY;
        let doubtful = self.request.at + stub as u64;
        self.code.load_fs(RDX, 0);
        self.code.compare_fs(RDX, threads.self_offset);
        self.code.jump_if_not_zero(doubtful)?;
        self.code.compare_fs(RDX, super::NOT_SELF);
        self.code.jump_if_zero(doubtful)?;
        Ok(stub)
    }

    /// The way of a thread without such a block, from the check to behind the first count: a locked one, and no copy.
    fn doubtful(&mut self, stub: usize) -> Result<(), Unreachable> {
        let back = self.code.pos();
        let mut code = Code::new(self.request.at + stub as u64);
        code.set_32(RBX, wire::COPY_UNKNOWN as u32);
        code.call_to(self.request.slow + slow::ENTER)?;
        let called = stub + code.pos();
        code.jump_to(self.request.at + back as u64)?;
        self.code.bytes[stub..stub + code.bytes.len()].copy_from_slice(&code.bytes);
        // A thread that is stopped there has everything in its slots.
        let (before, after) = (Some(self.now.clone()), None);
        self.steps.extend([(stub, before), (called, after.clone()), (stub + NOBODY, after)]);
        self.steps.sort_by_key(|(from, _)| *from);
        Ok(())
    }

    /// rdx: the consumer. The handler gets rdi: registers, rsi: site, rdx: consumer, rcx: the copy.
    fn walk(&mut self, desc: u64) {
        self.code.put(&[0x48, 0xbe]); // mov rsi, desc
        self.code.put(&desc.to_le_bytes());
        // [WIRE-2] A plain load, which x86 keeps before the loads that depend on it: an acquire.
        // Pairs with [WIRE-1].
        self.code.put(&[0x48, 0x8b, 0x16]); // mov rdx, [rsi]
        self.code.put(&[0x48, 0x85, 0xd2]); // test rdx, rdx
        let skip = self.code.pos();
        self.code.put(&[0x74, 0]); // jz to the end
        let again = self.code.pos();
        self.code.store_rsp(SLOT_CONSUMER, RDX);
        self.code.put(&[0x48, 0x89, 0xe7]); // mov rdi, rsp
        self.code.put(&[0x48, 0x89, 0xd9]); // mov rcx, rbx
        self.code.put(&[0x48, 0x83, 0xe1, !((table::RANK | table::CHILD) as u8)]); // and rcx, the copy alone
        self.code.put(&[0xff, 0x52, 0x08]); // call [rdx + 8]
        self.code.load_rsp(RDX, SLOT_CONSUMER);
        self.code.put(&[0x48, 0x8b, 0x12]); // mov rdx, [rdx]
        self.code.put(&[0x48, 0x85, 0xd2]); // test rdx, rdx
        let out = self.code.pos();
        self.code.put(&[0x74, 0]); // jz to the end
        self.code.put(&[0x48, 0xbe]); // mov rsi, desc
        self.code.put(&desc.to_le_bytes());
        self.code.short(0xeb, again);
        let end = self.code.pos();
        for at in [skip, out] {
            self.code.bytes[at + 1] = (end - at - 2) as u8;
        }
    }

    /// `None` where readers are counted by locked adds.
    fn threads_of_readers(&self) -> Option<Threads> {
        self.request.ways.threads.filter(|_| self.request.ways.flavour != Flavour::Sigsafe)
    }

    /// What who waits for readers need not do for them: the count before it is ordered before all that the hit reads, or
    /// that before the count behind it. Locked counts are such fences by themselves.
    fn fence(&mut self) {
        if self.threads_of_readers().is_some() && self.request.ways.flavour == Flavour::Normal {
            self.code.put(&[0xf0, 0x83, 0x4c, 0x24, 0xf8, 0]); // lock or dword [rsp - 8], 0
        }
    }

    /// The reader's first count, which leaves the table's entry in rbx; rax, rcx and the flags are free.
    fn count_entered(&mut self) -> Result<(), Unreachable> {
        let slow = self.count(Form::Enter, cell::READERS_ENTERED)?;
        // From there on all adds of the hit are locked.
        self.enter_slowly(slow)
    }

    /// The second count, into the same copy if we are on its CPU still and its rank has not changed.
    fn count_left(&mut self) -> Result<(), Unreachable> {
        // Who has no copy leaves slowly: of a thread in doubt no area is named.
        let slow = self.stub_of(1) + STUB_SLOW;
        self.code.put(&[0x48, 0x83, 0xfb, 0x7f]); // cmp rbx, 127
        self.code.jump_if_not_above(self.request.at + slow as u64)?;
        self.count(Form::Leave, cell::READERS_LEFT)?;
        self.leave_slowly(slow)
    }

    /// One of the two, with a section of its own where it is restartable. Returns where its slow way is to stand.
    fn count(&mut self, form: Form, cell: u32) -> Result<usize, Unreachable> {
        let second = usize::from(form == Form::Leave);
        let (section, stub) = (2 * self.stage + second, self.stub_of(second));
        let (slow, threads) = (stub + STUB_SLOW, self.threads_of_readers());
        let (start, end) = self.add(form, section, threads, cell, slow)?;
        if threads.is_some() {
            self.descriptor(section, start, end, slow);
            self.code.bytes[stub..slow].copy_from_slice(&super::RSEQ_SIGNATURE.to_le_bytes());
        }
        Ok(slow)
    }

    /// Where the slow way of this section stands, behind the signature.
    fn stub_of(&self, section: usize) -> usize {
        stubs(self.request.bodies.len()) + (2 * self.stage + section) * STUB
    }

    /// Writes the slow way of entering at `at`, which comes back to here.
    fn enter_slowly(&mut self, at: usize) -> Result<(), Unreachable> {
        let mut code = Code::new(self.request.at + at as u64);
        code.set_32(RBX, wire::COPY_NONE as u32);
        code.call_to(self.request.slow + slow::ENTER)?;
        self.slow_way(at, code)
    }

    /// Writes the slow way of leaving at `at`, which comes back to here.
    fn leave_slowly(&mut self, at: usize) -> Result<(), Unreachable> {
        let mut code = Code::new(self.request.at + at as u64);
        code.call_to(self.request.slow + slow::LEAVE)?;
        self.slow_way(at, code)
    }

    fn slow_way(&mut self, at: usize, mut code: Code) -> Result<(), Unreachable> {
        code.jump_to(self.request.at + self.code.pos() as u64)?;
        self.code.bytes[at..at + code.bytes.len()].copy_from_slice(&code.bytes);
        Ok(())
    }

    fn restore(&mut self, uses: RegSet) -> Result<(), Unreachable> {
        if !self.hook().flags_dead {
            self.code.load_rsp(RAX, SLOT_FLAGS);
            self.code.flags_from_ax();
        }
        for (reg, slot) in stored(uses).chain([(RBX, SLOT_RBX)]) {
            self.code.load_rsp(reg, slot);
        }
        self.code.add_rsp(i32::from(BELOW));
        self.step(|now: &mut Rollback| {
            now.rsp_add -= BELOW;
            now.flags = None;
            now.saved.retain(|s| s.slot >= BELOW);
            now.saved.iter_mut().for_each(|s| s.slot -= BELOW);
        });
        PUSHED.into_iter().rev().for_each(|reg| self.pop_always(reg));
        let above = self.above();
        self.code.add_rsp(i32::from(above));
        self.step(|now| now.rsp_add -= above);
        Ok(())
    }
}

/// Those of [`STORED`] that are saved.
fn stored(uses: RegSet) -> impl Iterator<Item = (Reg, u16)> {
    STORED.into_iter().filter(move |(reg, _)| uses.contains(reg.0))
}
