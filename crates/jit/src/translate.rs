//! One function of a program as Cranelift's intermediate form.
//!
//! For:     the compiler.
//! State:   the function being built.
//! Context: control.
//! Keeps:   T1 what an instruction does is what the interpreter says.
//!          T2 nothing is emitted that becomes a trap, a call that is not listed, or a vector register: no signed division,
//!             no block copies, no floats. The gate looks at the result.
//!          T3 each jump back and each local call costs fuel; without any left the run ends.
//!          T4 in a checked program no access is made that was not compared with the run's bounds.
//! Checked: tests/engines.rs (T1, T2), tests/hostile.rs (T3, T4), `torture bpf`.
//! Source:  RFC 9669.

mod alu;
mod call;
mod memory;
mod near;

use crate::broken::Broken;
use crate::flow::{self, Function, Regs};
use crate::run::{FaultKind, place};
use crate::{Level, Meaning, Options, Refusal};
use bpf::{Callee, Cond, FRAME_LEN, Op, Operand, Program, Reg, Wide, Width};
use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{
    AbiParam, Block, BlockArg, FuncRef, InstBuilder, MemFlagsData, Signature, SourceLoc, StackSlot,
    StackSlotData, StackSlotKind, Value,
};
use cranelift_codegen::isa::CallConv;
use std::collections::{BTreeMap, BTreeSet};
use wire::maps::NearTable;

/// r1 to r5, and the run.
const PARAMS: usize = 6;

/// What a call is declared as: namespace 0 has the program's own functions by entry, 1 the helpers by number.
pub(crate) const OWN: u32 = 0;
pub(crate) const HELPERS: u32 = 1;

/// r1 to r5 and the run, r0 back: what every function is called with, helpers too.
pub(crate) fn signature() -> Signature {
    let mut signature = Signature::new(CallConv::SystemV);
    signature.params.extend([AbiParam::new(I64); PARAMS]);
    signature.returns.push(AbiParam::new(I64));
    signature
}

/// What all functions of a program share.
pub(crate) struct Unit<'a> {
    pub program: &'a Program,
    pub options: &'a Options<'a>,
    /// What entering each function costs.
    pub costs: BTreeMap<usize, u64>,
    /// Bytes of each function's frame.
    pub frames: BTreeMap<usize, u32>,
    /// The stack is where the run says.
    pub is_given_stack: bool,
    /// Calls are counted as they are made: no one can say before how many are inside each other, or frames depend on it.
    pub counts_calls: bool,
}

impl Unit<'_> {
    fn is_checked(&self) -> bool {
        self.options.level == Level::Checked
    }

    #[cfg(feature = "broken")]
    fn is(&self, broken: Broken) -> bool {
        self.options.broken == Some(broken)
    }

    #[cfg(not(feature = "broken"))]
    fn is(&self, _: Broken) -> bool {
        false
    }
}

/// A function being built.
struct Body<'a> {
    unit: &'a Unit<'a>,
    function: &'a Function,
    to: FuncCursor<'a>,
    blocks: BTreeMap<usize, Block>,
    /// r0 to r9, as they are here.
    regs: [Value; 10],
    frame: Frame,
    run: Value,
    fuel: Option<Value>,
    /// Where a run that has met something ends; it is given what, and the detail.
    fault: Block,
    /// Where one ends that has noted it already.
    out: Block,
    callees: BTreeMap<(u32, u32), FuncRef>,
    /// What stands for a table whose keys the program may look for itself.
    tables: BTreeMap<Value, (NearTable, Wide)>,
    /// What is the thread's, and the same at each hit.
    of_thread: BTreeSet<Value>,
    /// The instruction being translated.
    at: usize,
    /// The block that we are in has its last instruction.
    is_ended: bool,
    /// The run can end before its exit.
    can_end_early: bool,
}

/// Fills in an empty function; whether a run of it can end before its exit.
///
/// # Errors
/// What the program has that is not compiled, and where.
pub(crate) fn translate(
    unit: &Unit<'_>,
    function: &Function,
    into: &mut cranelift_codegen::ir::Function,
) -> Result<bool, (usize, Refusal)> {
    let mut body = Body::open(unit, function, into);
    for &at in &function.insns {
        let Some(op) = unit.program.op(at) else { continue };
        body.at = at;
        body.enter_block();
        body.to.set_srcloc(SourceLoc::new(at as u32));
        body.op(op).map_err(|why| (at, why))?;
    }
    body.close();
    Ok(body.can_end_early)
}

impl<'a> Body<'a> {
    fn open(
        unit: &'a Unit<'a>,
        function: &'a Function,
        into: &'a mut cranelift_codegen::ir::Function,
    ) -> Self {
        into.signature = signature();
        let mut to = FuncCursor::new(into);
        let first = to.func.dfg.make_block();
        let params: Vec<Value> = (0..PARAMS).map(|_| to.func.dfg.append_block_param(first, I64)).collect();
        to.insert_block(first);
        let (fault, out) = (to.func.dfg.make_block(), to.func.dfg.make_block());
        let has_fuel = function.loops || !function.callees.is_empty();
        let mut blocks = BTreeMap::new();
        for (&at, live) in &function.blocks {
            let block = to.func.dfg.make_block();
            for _ in 0..live.count_ones() + u32::from(has_fuel) {
                to.func.dfg.append_block_param(block, I64);
            }
            blocks.insert(at, block);
        }
        let run = params[PARAMS - 1];
        let zero = to.ins().iconst(I64, 0);
        let mut regs = [zero; 10];
        let given = if function.entry == 0 { unit.options.given.min(5) } else { 5 };
        regs[1..=given].copy_from_slice(&params[..given]);
        let fuel = has_fuel.then(|| to.ins().load(I64, trusted(), run, place::FUEL));
        let frame = frame(&mut to, unit, function, run);
        let at = function.entry;
        let (callees, tables, of_thread) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let mut body = Body {
            unit,
            function,
            to,
            blocks,
            regs,
            frame,
            run,
            fuel,
            fault,
            out,
            callees,
            tables,
            of_thread,
            at,
            is_ended: false,
            can_end_early: false,
        };
        body.jump_to(at);
        body
    }

    /// Ends the function with the ways out of a run that cannot go on.
    fn close(&mut self) {
        for block in [self.fault, self.out] {
            self.to.insert_block(block);
            self.to.func.layout.set_cold(block);
            if block == self.fault {
                let [what, detail] = [0, 1].map(|_| self.to.func.dfg.append_block_param(block, I64));
                self.to.ins().store(trusted(), what, self.run, place::FAULT);
                self.to.ins().store(trusted(), detail, self.run, place::DETAIL);
            }
            let zero = self.to.ins().iconst(I64, 0);
            self.to.ins().return_(&[zero]);
        }
    }

    /// Begins the block at this instruction, if one begins here.
    fn enter_block(&mut self) {
        let Some(&block) = self.blocks.get(&self.at) else { return };
        if !self.is_ended {
            self.jump_to(self.at);
        }
        self.to.insert_block(block);
        self.is_ended = false;
        let mut params = self.to.func.dfg.block_params(block).to_vec().into_iter();
        for reg in each(self.function.blocks[&self.at]) {
            self.regs[reg] = params.next().unwrap_or(self.run);
        }
        self.fuel = self.fuel.and(params.next());
    }

    fn op(&mut self, op: Op) -> Result<(), Refusal> {
        match op {
            Op::Alu { width, alu, dst, src } => self.alu(width, alu, dst, src),
            Op::Neg { width, dst } => {
                let value = self.narrow(width, dst);
                let negated = self.to.ins().ineg(value);
                self.set_wide(dst, negated);
            }
            Op::Movsx { width, from, dst, src } => self.movsx(width, from, dst, src),
            Op::End { order, size, dst } => self.reorder(order, size, dst),
            Op::Wide { dst, wide } => {
                let value = self.wide(wide)?;
                if let Some(table) = (self.unit.options.near)(wide).filter(|_| !self.unit.is_checked()) {
                    self.tables.insert(value, (table, wide));
                }
                self.set(dst, value);
            }
            Op::Load { size, signed, dst, src, offset } => self.load(size, signed, dst, (src, offset)),
            Op::Store { size, dst, offset, src } => self.store(size, (dst, offset), src),
            Op::Atomic { size, atomic, dst, offset, src } => self.atomic(size, atomic, (dst, offset), src),
            Op::Ja { distance, .. } => self.jump(distance),
            Op::Jump { width, cond, dst, src, offset } => {
                let holds = self.holds(width, cond, dst, src);
                self.branch(holds, i32::from(offset));
            }
            Op::Call(Callee::Local(distance)) => self.call_local(distance),
            Op::Call(callee) => return self.call_helper(callee),
            Op::Exit => {
                self.leave_fuel();
                self.to.ins().return_(&[self.regs[0]]);
                self.is_ended = true;
            }
        }
        Ok(())
    }

    fn wide(&mut self, wide: Wide) -> Result<Value, Refusal> {
        let meaning = match wide {
            Wide::Value(value) => Meaning::Constant(value),
            wide => (self.unit.options.meaning)(wide).ok_or(Refusal::NoMeaning(wide))?,
        };
        Ok(match meaning {
            Meaning::Constant(value) => self.constant(value.cast_signed()),
            Meaning::Scratch(offset) => {
                let base = self.to.ins().load(I64, trusted(), self.run, place::SCRATCH);
                let offset = self.constant(i64::from(offset));
                self.to.ins().iadd(base, offset)
            }
            Meaning::Arena(offset) => {
                let base = self.to.ins().get_pinned_reg(I64);
                let offset = self.constant(i64::from(offset));
                self.to.ins().iadd(base, offset)
            }
        })
    }

    fn jump(&mut self, distance: i32) {
        let Some(to) = self.unit.program.target(self.at, distance) else { return };
        if to <= self.at {
            self.charge(flow::jump_cost(self.at, to));
        }
        self.jump_to(to);
    }

    fn branch(&mut self, holds: Value, distance: i32) {
        let (at, next) = (self.at, self.at + 1);
        let Some(to) = self.unit.program.target(at, distance) else { return };
        let (else_block, else_args) = (self.blocks[&next], self.args(next));
        self.is_ended = true;
        if to > at {
            let args = self.args(to);
            self.to.ins().brif(holds, self.blocks[&to], &args, else_block, &else_args);
            return;
        }
        let back = self.to.func.dfg.make_block();
        self.to.ins().brif(holds, back, &[], else_block, &else_args);
        self.to.insert_block(back);
        self.charge(flow::jump_cost(at, to));
        self.jump_to(to);
    }

    fn jump_to(&mut self, to: usize) {
        let args = self.args(to);
        self.to.ins().jump(self.blocks[&to], &args);
        self.is_ended = true;
    }

    /// What the block at `to` is given.
    fn args(&self, to: usize) -> Vec<BlockArg> {
        let live = each(self.function.blocks[&to]).map(|reg| self.regs[reg]);
        live.chain(self.fuel).map(BlockArg::Value).collect()
    }

    fn charge(&mut self, cost: u64) {
        let Some(fuel) = self.fuel else { return };
        let cost = self.constant(cost.cast_signed());
        let is_out = self.to.ins().icmp(IntCC::UnsignedLessThan, fuel, cost);
        self.fault_if(is_out, FaultKind::FuelOut, fuel);
        self.fuel = Some(self.to.ins().isub(fuel, cost));
    }

    /// Leaves the fuel where others find it.
    fn leave_fuel(&mut self) {
        if let Some(fuel) = self.fuel {
            self.to.ins().store(trusted(), fuel, self.run, place::FUEL);
        }
    }

    /// The run ends here if this is not zero.
    fn fault_if(&mut self, is_met: Value, kind: FaultKind, detail: Value) {
        self.can_end_early = true;
        let what = self.constant(kind.word(self.at));
        let on = self.to.func.dfg.make_block();
        let args = [what, detail].map(BlockArg::Value);
        self.to.ins().brif(is_met, self.fault, &args, on, &[]);
        self.to.insert_block(on);
    }

    /// The run ends here if someone has noted a fault.
    fn leave_if_faulted(&mut self) {
        self.can_end_early = true;
        let fault = self.to.ins().load(I64, trusted(), self.run, place::FAULT);
        let on = self.to.func.dfg.make_block();
        self.to.ins().brif(fault, self.out, &[], on, &[]);
        self.to.insert_block(on);
    }

    fn constant(&mut self, value: i64) -> Value {
        self.to.ins().iconst(I64, value)
    }

    fn reg(&mut self, reg: Reg) -> Value {
        match (self.regs.get(reg.index()), self.frame) {
            (Some(&value), _) | (None, Frame::At(value)) => value,
            (None, Frame::Slot(slot, len)) => self.to.ins().stack_addr(I64, slot, len),
        }
    }

    fn set(&mut self, reg: Reg, value: Value) {
        if let Some(place) = self.regs.get_mut(reg.index()) {
            *place = value;
        }
    }

    fn holds(&mut self, width: Width, cond: Cond, dst: Reg, src: Operand) -> Value {
        let (a, b) = (self.narrow(width, dst), self.operand(width, src));
        let is_broken = self.unit.is(Broken::SignedCompare) && width == Width::W32;
        let code = match cond {
            Cond::Set => {
                let both = self.to.ins().band(a, b);
                return self.to.ins().icmp_imm_u(IntCC::NotEqual, both, 0);
            }
            Cond::Slt if is_broken => IntCC::UnsignedLessThan,
            Cond::Eq => IntCC::Equal,
            Cond::Ne => IntCC::NotEqual,
            Cond::Gt => IntCC::UnsignedGreaterThan,
            Cond::Ge => IntCC::UnsignedGreaterThanOrEqual,
            Cond::Lt => IntCC::UnsignedLessThan,
            Cond::Le => IntCC::UnsignedLessThanOrEqual,
            Cond::Sgt => IntCC::SignedGreaterThan,
            Cond::Sge => IntCC::SignedGreaterThanOrEqual,
            Cond::Slt => IntCC::SignedLessThan,
            Cond::Sle => IntCC::SignedLessThanOrEqual,
        };
        self.to.ins().icmp(code, a, b)
    }

    /// A register's value in this width.
    fn narrow(&mut self, width: Width, reg: Reg) -> Value {
        let value = self.reg(reg);
        match width {
            Width::W32 => self.to.ins().ireduce(I32, value),
            Width::W64 => value,
        }
    }

    fn operand(&mut self, width: Width, operand: Operand) -> Value {
        match (operand, width) {
            (Operand::Reg(reg), width) => self.narrow(width, reg),
            (Operand::Imm(imm), Width::W32) => self.to.ins().iconst(I32, i64::from(imm.cast_unsigned())),
            (Operand::Imm(imm), Width::W64) => self.constant(i64::from(imm)),
        }
    }

    /// Sets a register to a value of its width or less; what is above becomes zero.
    fn set_wide(&mut self, reg: Reg, value: Value) {
        let value = match self.to.func.dfg.value_type(value) == I64 {
            true => value,
            false => self.to.ins().uextend(I64, value),
        };
        self.set(reg, value);
    }
}

/// Where r10 leads.
#[derive(Clone, Copy)]
enum Frame {
    At(Value),
    /// The end of a slot of so many bytes, whose address is made anew wherever it is used: no register is held for it.
    Slot(StackSlot, i32),
}

/// r10. A given stack is one piece of memory; our own's are slots of the functions, as long as they have to be.
fn frame(to: &mut FuncCursor<'_>, unit: &Unit<'_>, function: &Function, run: Value) -> Frame {
    let len = unit.frames.get(&function.entry).copied().unwrap_or(FRAME_LEN as u32);
    if !unit.is_given_stack && len == 0 {
        return Frame::At(run);
    }
    if !unit.is_given_stack {
        let slot = StackSlotData::new(StackSlotKind::ExplicitSlot, len, 3);
        return Frame::Slot(to.func.create_sized_stack_slot(slot), len as i32);
    }
    let left = to.ins().load(I64, trusted(), run, place::CALLS_LEFT);
    let above = to.ins().ishl_imm_u(left, i64::from(FRAME_LEN.trailing_zeros()));
    let stack = to.ins().load(I64, trusted(), run, place::STACK);
    let bottom = to.ins().iadd(stack, above);
    let len = to.ins().iconst(I64, FRAME_LEN as i64);
    Frame::At(to.ins().iadd(bottom, len))
}

/// The run's own fields: there, and aligned.
fn trusted() -> MemFlagsData {
    MemFlagsData::new().with_notrap().with_aligned()
}

/// The registers of a set.
fn each(regs: Regs) -> impl Iterator<Item = usize> {
    (0..10).filter(move |reg| regs >> reg & 1 != 0)
}
