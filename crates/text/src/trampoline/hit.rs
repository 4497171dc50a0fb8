//! The general path: registers saved in the kernel's `pt_regs` layout, the agent called.
//!
//! For:     handlers that are more than one add.
//! State:   a frame of `FRAME` bytes on the thread's stack.
//! Context: built in control; run in a hit.
//! Keeps:   H1 as in the parent.
//!          H4 no vector register is touched, here or in the agent.
//! Checked: tests (roll-back of every step), session `the_agent_uses_no_vector_register`.

use super::{Builder, RAX, RDI, RDX, RED_ZONE, RSI, Reg, SavedReg, Unreachable};

/// `sizeof(struct pt_regs)`.
const FRAME: u16 = 168;
/// Slots in it. The flags go where the kernel has the system call number, in the form of `lahf; seto al`.
const SLOT_FLAGS: u16 = 120;
const SLOT_RIP: u16 = 128;
const SLOT_RSP: u16 = 152;

/// Registers that a call may change, with their slots; rax first, it is needed as scratch.
const CALLER_SAVED: [(Reg, u16); 9] = [
    (RAX, 80),
    (Reg(1), 88),
    (RDX, 96),
    (RSI, 104),
    (RDI, 112),
    (Reg(8), 72),
    (Reg(9), 64),
    (Reg(10), 56),
    (Reg(11), 48),
];
/// Registers that a call keeps: saved for handlers to read, never loaded back.
const CALLEE_SAVED: [(Reg, u16); 6] =
    [(Reg(3), 40), (Reg(5), 32), (Reg(12), 24), (Reg(13), 16), (Reg(14), 8), (Reg(15), 0)];

impl Builder<'_> {
    /// Stack: `FRAME` + 8 bytes below the red zone, and what the agent uses.
    pub(super) fn hit(&mut self, hit: u64, desc: u64) -> Result<(), Unreachable> {
        let red_zone = if self.request.placement.is_entry { 0 } else { RED_ZONE };
        let frame = FRAME + red_zone;
        self.code.add_rsp(-i32::from(frame));
        self.step(|now| now.rsp_add = frame);
        self.save_all(frame)?;
        self.code.put(&[0x48, 0x89, 0xe7]); // mov rdi, rsp
        self.code.put(&[0x48, 0xbe]); // mov rsi, desc
        self.code.put(&desc.to_le_bytes());
        self.code.call_to(hit)?;
        self.step(|now| now.counted = true);
        self.load_all();
        self.code.add_rsp(i32::from(frame));
        self.step(|now| {
            now.rsp_add = 0;
            now.saved.clear();
            now.flags = None;
        });
        Ok(())
    }

    fn save_all(&mut self, frame: u16) -> Result<(), Unreachable> {
        for (reg, slot) in CALLER_SAVED.into_iter().chain(CALLEE_SAVED) {
            self.code.store_rsp(slot, reg);
        }
        self.step(|now| {
            now.saved = CALLER_SAVED.iter().map(|(r, slot)| SavedReg { number: r.0, slot: *slot }).collect();
        });
        if !self.request.placement.flags_dead {
            self.code.flags_to_ax();
            self.code.store_rsp(SLOT_FLAGS, RAX);
            self.step(|now| now.flags = Some(SLOT_FLAGS));
        }
        self.code.lea_rip(RAX, self.site())?;
        self.code.store_rsp(SLOT_RIP, RAX);
        self.code.lea_rsp(RAX, frame);
        self.code.store_rsp(SLOT_RSP, RAX);
        Ok(())
    }

    fn load_all(&mut self) {
        if !self.request.placement.flags_dead {
            self.code.load_rsp(RAX, SLOT_FLAGS);
            self.code.flags_from_ax();
        }
        for (reg, slot) in CALLER_SAVED {
            self.code.load_rsp(reg, slot);
        }
    }
}
