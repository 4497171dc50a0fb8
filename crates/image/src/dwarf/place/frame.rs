//! The frame of a function at one instruction.
//!
//! For:     locations that are counted from the frame.
//! State:   none.
//! Context: control.
//! Keeps:   F1 the frame's address is what the unwind table says at this instruction; without one, it is known at the first alone.
//! Checked: dwarf/tests.rs.

use crate::dwarf::{Slice, Unit};
use crate::loc::STACK_POINTER;
use crate::{ElfImage, ImageAddr};
use gimli::{
    AttributeValue, BaseAddresses, CfaRule, EhFrame, LittleEndian, Operation, UnwindContext, UnwindSection,
};

pub struct Frame<'a> {
    pub image: &'a ElfImage,
    pub pc: ImageAddr,
    /// The first instruction of the function.
    pub is_entry: bool,
}

impl Frame<'_> {
    /// What the frame base of a function is here: a register and what is added.
    pub fn base(&self, unit: &Unit<'_>, base: &AttributeValue<Slice<'_>>) -> Option<(u8, i64)> {
        let AttributeValue::Exprloc(expression) = base else { return None };
        match expression.operations(unit.encoding()).next().ok()?? {
            Operation::CallFrameCFA => self.cfa(),
            Operation::Register { register } => Some((u8::try_from(register.0).ok().filter(|n| *n < 16)?, 0)),
            _ => None,
        }
    }

    /// The frame's address: a register and what is added.
    pub fn cfa(&self) -> Option<(u8, i64)> {
        if self.is_entry {
            return Some((STACK_POINTER, 8));
        }
        let section = self.image.section(".eh_frame")?;
        let bytes = self.image.section_bytes(section)?;
        let frames = EhFrame::new(bytes, LittleEndian);
        let mut bases = BaseAddresses::default().set_eh_frame(section.range.start.0);
        if let Some(text) = self.image.section(".text") {
            bases = bases.set_text(text.range.start.0);
        }
        let mut context = UnwindContext::new();
        let row =
            frames.unwind_info_for_address(&bases, &mut context, self.pc.0, EhFrame::cie_from_offset).ok()?;
        match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                Some((u8::try_from(register.0).ok().filter(|n| *n < 16)?, *offset))
            }
            CfaRule::Expression(_) => None,
        }
    }
}
