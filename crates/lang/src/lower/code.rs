//! Instructions with labels.
//!
//! For:     the lowering.
//! State:   the instructions of one program so far.
//! Context: control.
//! Keeps:   1. A jump of any distance is written: where 16 bits do not reach, by a long jump.
//!          2. What is known of a register holds on every way that leads here.
//! Checked: tests below; every program is made by it.

use crate::ast::MapId;
use bpf::{Alu, Callee, Cond, Insn, Op, Operand, Program, Refused, Reg, Size, Wide, Width};

/// Where a jump leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

#[derive(Clone, Copy, Debug)]
enum Item {
    Op(Op),
    Ja(Label),
    Jump(Cond, Reg, Operand, Label),
}

/// A program in the making.
#[derive(Debug, Default)]
pub struct Code {
    items: Vec<Item>,
    /// The item that each label stands before.
    labels: Vec<usize>,
    /// The first jump to each label.
    first_jumps: Vec<usize>,
    /// Where r7 became the thread's number.
    thread: Option<usize>,
    /// Where r8 became what this map has for the thread's number.
    noted: Option<(MapId, usize)>,
}

/// The thread's number, once it is known.
pub const THREAD: Reg = r(7);
/// What a map has for it.
pub const NOTED: Reg = r(8);

/// Register `n`, 0 to 10.
pub const fn r(n: u8) -> Reg {
    match Reg::new(n) {
        Some(reg) => reg,
        None => Reg::R0,
    }
}

impl Code {
    /// A label that is not placed yet.
    pub fn label(&mut self) -> Label {
        self.labels.push(usize::MAX);
        self.first_jumps.push(usize::MAX);
        Label(self.labels.len() - 1)
    }

    /// Places a label here.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = self.items.len();
        // Who jumped here before something was known has not been where it became so.
        let first = self.first_jumps[label.0];
        self.thread = self.thread.filter(|known| *known <= first);
        // Whoever jumps here from below may have changed the map.
        self.noted = self.noted.filter(|(_, known)| *known <= first && first != usize::MAX);
    }

    /// r0 is the thread's number from here on, and is kept.
    pub fn keep_thread(&mut self) {
        self.mov(THREAD, r(0));
        self.thread = Some(self.items.len());
    }

    /// True where it is kept.
    pub fn knows_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// r0 is what a map has for the thread's number, and is kept.
    pub fn keep_noted(&mut self, map: MapId) {
        self.mov(NOTED, r(0));
        self.noted = Some((map, self.items.len()));
    }

    /// True where that is kept.
    pub fn knows_noted(&self, map: MapId) -> bool {
        self.noted.is_some_and(|(of, _)| of == map)
    }

    /// The map may have something else from here on.
    pub fn forget_noted(&mut self, map: MapId) {
        self.noted = self.noted.filter(|(of, _)| *of != map);
    }

    fn note_jump(&mut self, label: Label) {
        let first = &mut self.first_jumps[label.0];
        *first = (*first).min(self.items.len());
    }

    /// Adds an instruction.
    pub fn op(&mut self, op: Op) {
        self.items.push(Item::Op(op));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// `dst = value`
    pub fn constant(&mut self, dst: Reg, value: i64) {
        match i32::try_from(value) {
            Ok(imm) => self.alu(Alu::Mov, dst, Operand::Imm(imm)),
            Err(_) => self.op(Op::Wide { dst, wide: Wide::Value(value.cast_unsigned()) }),
        }
    }

    /// `dst = src`
    pub fn mov(&mut self, dst: Reg, src: Reg) {
        if dst != src {
            self.alu(Alu::Mov, dst, Operand::Reg(src));
        }
    }

    /// `dst alu= src`, 64 bits.
    pub fn alu(&mut self, alu: Alu, dst: Reg, src: Operand) {
        self.op(Op::Alu { width: Width::W64, alu, dst, src });
    }

    /// `dst alu= imm`, any 64-bit constant; uses r5 for those beyond 32 bits.
    pub fn alu_imm(&mut self, alu: Alu, dst: Reg, imm: i64) {
        match i32::try_from(imm) {
            Ok(imm) => self.alu(alu, dst, Operand::Imm(imm)),
            Err(_) => {
                self.constant(r(5), imm);
                self.alu(alu, dst, Operand::Reg(r(5)));
            }
        }
    }

    /// `dst = *(src + offset)`
    pub fn load(&mut self, size: Size, signed: bool, dst: Reg, src: Reg, offset: i16) {
        self.op(Op::Load { size, signed: signed && size != Size::Dw, dst, src, offset });
    }

    /// `*(dst + offset) = src`
    pub fn store(&mut self, size: Size, dst: Reg, offset: i16, src: Operand) {
        self.op(Op::Store { size, dst, offset, src });
    }

    /// Calls a helper.
    pub fn call(&mut self, helper: u32) {
        self.op(Op::Call(Callee::Helper(helper)));
    }

    /// Goes to a label.
    pub fn ja(&mut self, label: Label) {
        self.note_jump(label);
        self.items.push(Item::Ja(label));
    }

    /// Goes to a label if a condition on 64 bits holds.
    pub fn jump(&mut self, cond: Cond, dst: Reg, src: Operand, label: Label) {
        self.note_jump(label);
        self.items.push(Item::Jump(cond, dst, src, label));
    }

    /// Puts `first` before everything. Its labels must not be used any more.
    pub fn prepend(&mut self, first: Code) {
        let (n, known) = (first.items.len(), self.labels.len());
        let moved = |label: Label| Label(label.0 + known);
        let mut items: Vec<Item> = first
            .items
            .into_iter()
            .map(|item| match item {
                Item::Op(op) => Item::Op(op),
                Item::Ja(label) => Item::Ja(moved(label)),
                Item::Jump(cond, dst, src, label) => Item::Jump(cond, dst, src, moved(label)),
            })
            .collect();
        items.append(&mut self.items);
        self.items = items;
        self.labels.iter_mut().filter(|at| **at != usize::MAX).for_each(|at| *at += n);
        self.labels.extend(first.labels);
    }

    /// The program.
    ///
    /// # Errors
    /// What [`Program::new`] refuses: too many instructions.
    pub fn finish(&self) -> Result<Program, Refused> {
        let mut is_long = vec![false; self.items.len()];
        loop {
            let starts = self.starts(&is_long);
            if !self.lengthen(&starts, &mut is_long) {
                return Program::new(self.encode(&starts, &is_long));
            }
        }
    }

    fn starts(&self, is_long: &[bool]) -> Vec<i64> {
        let mut starts = Vec::with_capacity(self.items.len() + 1);
        let mut at = 0;
        for (item, is_long) in self.items.iter().zip(is_long) {
            starts.push(at);
            at += match item {
                Item::Op(op) => op.slots() as i64,
                Item::Ja(_) => 1,
                Item::Jump(..) => {
                    if *is_long {
                        3
                    } else {
                        1
                    }
                }
            };
        }
        starts.push(at);
        starts
    }

    /// Whether a further jump has to be long.
    fn lengthen(&self, starts: &[i64], is_long: &mut [bool]) -> bool {
        let mut any = false;
        for (i, item) in self.items.iter().enumerate() {
            if let Item::Jump(.., label) = item
                && !is_long[i]
                && i16::try_from(starts[self.labels[label.0]] - starts[i] - 1).is_err()
            {
                is_long[i] = true;
                any = true;
            }
        }
        any
    }

    fn encode(&self, starts: &[i64], is_long: &[bool]) -> Vec<Insn> {
        let mut insns = Vec::new();
        let mut put = |op: Op| {
            let (first, second) = op.encode();
            insns.push(first);
            insns.extend(second);
        };
        for (i, item) in self.items.iter().enumerate() {
            let far = |label: Label, from: i64| {
                // A label that was never placed leads nowhere, which `Program` refuses.
                let to = starts.get(self.labels[label.0]).copied().unwrap_or(i64::from(i32::MAX));
                i32::try_from(to - from - 1).unwrap_or(i32::MAX)
            };
            let ja = |distance: i32| Op::Ja { distance, long: i16::try_from(distance).is_err() };
            match *item {
                Item::Op(op) => put(op),
                Item::Ja(label) => put(ja(far(label, starts[i]))),
                Item::Jump(cond, dst, src, label) if is_long[i] => {
                    put(Op::Jump { width: Width::W64, cond, dst, src, offset: 1 });
                    put(ja(1));
                    put(Op::Ja { distance: far(label, starts[i] + 2), long: true });
                }
                Item::Jump(cond, dst, src, label) => {
                    let offset = far(label, starts[i]) as i16;
                    put(Op::Jump { width: Width::W64, cond, dst, src, offset });
                }
            }
        }
        insns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf::Buffer;

    #[test]
    fn what_is_put_before_keeps_its_own_jumps() {
        let mut code = Code::default();
        let end = code.label();
        code.jump(Cond::Eq, r(0), Operand::Imm(9), end);
        code.alu_imm(Alu::Add, r(0), 1);
        code.bind(end);
        code.op(Op::Exit);
        let mut first = Code::default();
        let on = first.label();
        first.constant(r(0), 5);
        first.jump(Cond::Eq, r(0), Operand::Imm(5), on);
        first.op(Op::Exit);
        first.bind(on);
        code.prepend(first);
        let mut nothing = [];
        let mut host = Buffer::new(&mut nothing, |_, _| None);
        assert_eq!(bpf::run(&code.finish().unwrap(), &mut host, [0; 5], 100), Ok(6));
    }

    #[test]
    fn a_jump_that_16_bits_do_not_reach_is_made_longer() {
        for padding in [10, 40_000] {
            let mut code = Code::default();
            let (back, end) = (code.label(), code.label());
            code.constant(r(0), 0);
            code.bind(back);
            code.alu_imm(Alu::Add, r(0), 1);
            code.jump(Cond::Eq, r(0), Operand::Imm(3), end);
            (0..padding).for_each(|_| code.mov(r(2), r(0)));
            code.jump(Cond::Lt, r(0), Operand::Imm(100), back);
            code.bind(end);
            code.op(Op::Exit);
            let program = code.finish().unwrap();
            let mut nothing = [];
            let mut host = Buffer::new(&mut nothing, |_, _| None);
            assert_eq!(bpf::run(&program, &mut host, [0; 5], 1_000_000), Ok(3), "{padding}");
        }
    }
}
