//! The general path: registers saved in the kernel's `pt_regs` layout, the site's consumers called.
//!
//! For:     handlers that are more than one add.
//! State:   a frame of `FRAME` bytes on the thread's stack.
//! Context: built in control; run in a hit.
//! Keeps:   H1 as in the parent.
//!          H4 no vector register is touched, here or in the agent.
//!          H5 every run of consumers on the list is called once, between the reader's two counts.
//!          H7 as in the parent: the address of the rseq area is found once, and is that of nobody's area where in doubt.
//! Checked: testkit `counting` with `hist`, `bench trig-uprobe-nop` (hits = calls),
//!          session `the_agent_uses_no_vector_register`.
//! Source:  kernel handler_chain(), kernel-facts 1.8; reader as srcu_read_lock_fast.
//!
//! Reader and list walk stand here, and not in the agent, because constants of the site (the table, the rseq
//! offset) then cost nothing: 5.7 ns a hit with the walk in the agent, under 4 so (2026-11, CONTRACT 2).

use super::{Builder, HEADER_LEN, RED_ZONE, Rollback, SavedReg, Threads};
use crate::assemble::{Code, RAX, RBX, RCX, RDI, RDX, RSI, Reg};
use insn::Unreachable;
use wire::{ConsumerDesc, SiteDesc, cell, table};

/// Offset of the entry: two rseq sections for each body stand before it.
pub(super) const fn entry(bodies: usize) -> usize {
    (stubs(bodies) + bodies * (2 * STUB + NOBODY) + HEADER_LEN).next_multiple_of(64)
}
/// The part of `pt_regs` above the registers that a call may change: orig_rax, rip, cs, flags, rsp, ss.
const ABOVE: u16 = 48;
/// The part below: the registers that a call keeps. Of these only rbx is written, which is an argument in Go, and
/// r14 where it is asked for; no handler reads the others yet.
const BELOW: u16 = 48;
/// Where the flags go in the form of `lahf; seto al`: the place of orig_rax, just above the registers.
const SLOT_FLAGS: u16 = BELOW + 9 * 8;
const SLOT_RBX: u16 = 40;
const SLOT_R14: u16 = 8;
/// Where the consumer that is being called is kept: the place of `ss`.
const SLOT_CONSUMER: u16 = SLOT_FLAGS + 40;
/// Where the address of the thread's rseq area is kept, for the handlers too: the place of `cs`.
const SLOT_AREA: u16 = wire::SLOT_AREA as u16;

/// Registers that a call may change, in the order of their slots from above.
const CALLER_SAVED: [Reg; 9] = [RDI, RSI, RDX, RCX, RAX, Reg(8), Reg(9), Reg(10), Reg(11)];

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
const NOBODY: usize = 16;

impl Builder<'_> {
    /// Stack: 168 + 8 bytes below the red zone, and what the handlers use.
    pub(super) fn hit(&mut self, desc: u64, reads_r14: bool) -> Result<(), Unreachable> {
        let above = self.above();
        self.code.add_rsp(-i32::from(above));
        self.step(|now| now.rsp_add += above);
        CALLER_SAVED.into_iter().for_each(|reg| self.push_always(reg));
        self.code.add_rsp(-i32::from(BELOW));
        self.step(|now| {
            now.rsp_add += BELOW;
            now.saved.iter_mut().for_each(|s: &mut SavedReg| s.slot += BELOW);
        });
        self.code.store_rsp(SLOT_RBX, RBX);
        if reads_r14 {
            self.code.store_rsp(SLOT_R14, Reg(14));
        }
        if !self.hook().flags_dead {
            self.code.flags_to_ax();
            self.code.store_rsp(SLOT_FLAGS, RAX);
            self.step(|now| now.flags = Some(SLOT_FLAGS));
        }
        if let Some(threads) = self.request.threads {
            self.find_area(threads)?;
        }
        self.count_reader(0, cell::READERS_ENTERED)?;
        // Once entered, the hit runs to its end: its consumers and its leaving count too.
        self.run_only();
        self.walk(desc);
        if self.request.threads.is_some() {
            self.code.load_rsp(RDX, SLOT_AREA);
        }
        self.count_reader(1, cell::READERS_LEFT)?;
        self.counted_from_here();
        self.restore()
    }

    /// What lies between the frame and the program's stack pointer; one instruction skips the red zone with it.
    fn above(&self) -> u16 {
        if self.hook().is_red_zone_free { ABOVE } else { ABOVE + RED_ZONE }
    }

    /// The address of the thread's rseq area into rdx and its slot; of nobody's, which says that there is no CPU, if fs
    /// leads to something else than a thread's block.
    ///
    /// Clobbers: rdx, flags.
    fn find_area(&mut self, threads: Threads) -> Result<(), Unreachable> {
        let bodies = self.request.bodies.len();
        let stub = stubs(bodies) + 2 * bodies * STUB + self.stage * NOBODY;
        let doubtful = self.request.at + stub as u64;
        self.code.load_fs(RDX, 0);
        self.code.compare_fs(RDX, threads.self_offset);
        self.code.jump_if_not_zero(doubtful)?;
        self.code.compare_fs(RDX, super::NOT_SELF);
        self.code.jump_if_zero(doubtful)?;
        self.code.add_offset(RDX, threads.rseq_offset);
        let back = self.code.pos();
        self.code.store_rsp(SLOT_AREA, RDX);
        let mut code = Code::new(doubtful);
        code.lea_rip(RDX, self.request.table + table::NOBODY as u64)?;
        code.jump_to(self.request.at + back as u64)?;
        self.code.bytes[stub..stub + code.bytes.len()].copy_from_slice(&code.bytes);
        // A thread that is stopped there has everything in its slots.
        let at_stub = self.steps.iter().rev().find(|(from, _)| *from <= back).and_then(|(_, r)| r.clone());
        self.steps.extend([(stub, at_stub), (stub + NOBODY, None)]);
        self.steps.sort_by_key(|(from, _)| *from);
        Ok(())
    }

    /// rdx: the consumer. The handler gets rdi: registers, rsi: site, rdx: consumer.
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

    /// One of the reader's two counts; rax, rcx and the flags are free, rdx has the rseq area.
    fn count_reader(&mut self, section: usize, cell: u32) -> Result<(), Unreachable> {
        let table = self.request.table + table::CPU0 as u64;
        let section = 2 * self.stage + section;
        let stub = stubs(self.request.bodies.len()) + section * STUB;
        let end = match self.request.threads {
            Some(_) => {
                self.code.lea_rip(RAX, self.request.at + section as u64 * 32)?;
                self.code.store_near(RDX, super::RSEQ_CS as u8, RAX);
                let start = self.code.pos();
                self.code.load_word(RAX, RDX, super::RSEQ_CPU_ID as u8);
                self.code.lea_rip(RCX, table)?;
                self.code.load_index8(RCX, RCX, RAX);
                self.code.put(&[0x48, 0x85, 0xc9]); // test rcx, rcx
                self.branch_to_slow(stub)?;
                self.code.put(&[0x48, 0xff, 0x81]); // inc qword [rcx + cell]
                self.code.put(&cell.to_le_bytes());
                let end = self.code.pos();
                self.descriptor(section, start, end, stub + STUB_SLOW);
                end
            }
            None => {
                self.code.cpu_to_ecx(self.request.has_rdpid);
                self.code.lea_rip(RAX, table)?;
                self.code.load_index8(RAX, RAX, RCX);
                self.code.test_rax();
                self.branch_to_slow(stub)?;
                self.code.locked_inc(RAX, cell);
                self.code.pos()
            }
        };
        // Where the kernel sends a thread that it interrupted, too.
        let mut code = Code::new(self.request.at + stub as u64);
        code.put(&super::RSEQ_SIGNATURE.to_le_bytes());
        code.set_ecx(cell);
        code.call_to(self.request.slow)?;
        code.jump_to(self.request.at + end as u64)?;
        self.code.bytes[stub..stub + code.bytes.len()].copy_from_slice(&code.bytes);
        Ok(())
    }

    /// jz, near form
    fn branch_to_slow(&mut self, stub: usize) -> Result<(), Unreachable> {
        self.code.jump_if_zero(self.request.at + (stub + STUB_SLOW) as u64)
    }

    fn restore(&mut self) -> Result<(), Unreachable> {
        if !self.hook().flags_dead {
            self.code.load_rsp(RAX, SLOT_FLAGS);
            self.code.flags_from_ax();
        }
        self.code.add_rsp(i32::from(BELOW));
        self.step(|now: &mut Rollback| {
            now.rsp_add -= BELOW;
            now.flags = None;
            now.saved.iter_mut().for_each(|s| s.slot -= BELOW);
        });
        CALLER_SAVED.into_iter().rev().for_each(|reg| self.pop_always(reg));
        let above = self.above();
        self.code.add_rsp(i32::from(above));
        self.step(|now| now.rsp_add -= above);
        Ok(())
    }
}
