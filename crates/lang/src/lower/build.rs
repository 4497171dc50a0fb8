//! One program in the making.
//!
//! For:     the lowering of statements and expressions, in the files beside this one.
//! State:   instructions, memory in use, loops that are open.
//! Context: control.
//! Keeps:   B1 r6 is the context and r9 scratch memory from the prologue on; r7 and r8 keep what `Code` knows of them; r0 to r5 are
//!             lost by a call.
//!          B2 a number in r0 is extended to 64 bits as its type says, everywhere.
//! Checked: tests/scripts.rs.

use super::code::{Code, Label, r};
use super::frame::{Base, Frame, Place};
use super::sites::Group;
use super::{Lowering, SCRATCH_MAX};
use crate::ast::{AttachPoint, Expr, ExprKind, Probe, VarId};
use crate::types::{Int, Type};
use crate::visit::Visit;
use crate::{Builtin, Diagnostic, Span};
use bpf::helper::{self, SCRATCH};
use bpf::{Cond, Op, Operand, Program, Reg, Size, Wide};
use std::collections::HashMap;

pub type Done<T = ()> = Result<T, Diagnostic>;

/// The context.
pub const CONTEXT: Reg = r(6);
/// Scratch memory.
pub const SCRATCH_BASE: Reg = r(9);

/// A program in the making.
pub struct Build<'l, 'a> {
    pub up: &'l mut Lowering<'a>,
    pub code: Code,
    pub frame: Frame,
    pub vars: HashMap<VarId, Place>,
    /// Where `break` and `continue` lead.
    pub loops: Vec<(Label, Label)>,
    /// The end, with the result in r0.
    pub end: Label,
    pub point: &'l AttachPoint,
    /// The places that it serves.
    pub group: Group,
    /// The thread's number is asked for more than once.
    pub keeps_thread: bool,
}

impl<'l, 'a> Build<'l, 'a> {
    /// The program of one attach point.
    pub fn program(
        up: &'l mut Lowering<'a>,
        number: usize,
        probe: &'l Probe,
        point: &'l AttachPoint,
        group: Group,
    ) -> Done<(Program, usize)> {
        let mut code = Code::default();
        let end = code.label();
        let (frame, vars, loops) = (Frame::default(), HashMap::new(), Vec::new());
        let keeps_thread = asks_for_thread(probe) > 1;
        let mut build = Build { up, code, frame, vars, loops, end, point, group, keeps_thread };
        build.variables(number);
        if let Some(predicate) = &probe.predicate {
            build.truth(predicate)?;
            build.code.jump(Cond::Eq, r(0), Operand::Imm(0), end);
        }
        build.block(&probe.body)?;
        build.code.constant(r(0), 0);
        build.code.bind(end);
        build.code.op(Op::Exit);
        build.finish(probe.span)
    }

    /// Memory for the variables of a probe, filled with zeros.
    fn variables(&mut self, number: usize) {
        let checked = self.up.checked;
        for (id, var) in checked.vars.iter().enumerate().filter(|(_, var)| var.probe == number) {
            let size = self.size(&var.ty);
            let place = self.frame.take(size);
            self.vars.insert(VarId(id as u32), place);
            self.zero(place, size.next_multiple_of(8).max(8));
        }
    }

    fn finish(mut self, span: Span) -> Done<(Program, usize)> {
        let peak = self.frame.peak as usize;
        if peak > SCRATCH_MAX {
            return Err(Diagnostic::error(span, format!("the values of this probe need {peak} bytes")));
        }
        self.up.scratch = self.up.scratch.max(peak);
        let mut first = Code::default();
        first.mov(CONTEXT, r(1));
        if peak > 0 {
            let have = first.label();
            // Nothing lies in the frame yet.
            first.store(Size::Dw, Reg::FRAME, -8, Operand::Imm(0));
            first.op(Op::Wide { dst: r(1), wide: Wide::MapIndex(SCRATCH) });
            first.mov(r(2), Reg::FRAME);
            first.alu(bpf::Alu::Add, r(2), Operand::Imm(-8));
            first.call(helper::MAP_LOOKUP);
            first.jump(Cond::Ne, r(0), Operand::Imm(0), have);
            first.op(Op::Exit);
            first.bind(have);
            first.mov(SCRATCH_BASE, r(0));
        }
        self.code.prepend(first);
        let program = self.code.finish().map_err(|refused| {
            Diagnostic::error(span, format!("the program of this probe is too large: {refused}"))
        })?;
        Ok((program, peak))
    }

    /// An error at an expression.
    pub fn refuse<T>(&self, span: Span, why: impl Into<String>) -> Done<T> {
        Err(Diagnostic::error(span, why))
    }

    /// The type of an expression; it lives as long as the checked tree.
    pub fn ty(&self, expr: &Expr) -> &'a Type {
        self.up.checked.type_of(expr.id)
    }

    /// Bytes of a value.
    pub fn size(&self, ty: &Type) -> usize {
        self.up.checked.ctypes.size(ty) as usize
    }

    /// How a type that fits a register lies in memory; `None` for others.
    pub fn shape(&self, ty: &Type) -> Option<Int> {
        Some(match ty {
            Type::Bool => Int::new(1, false),
            Type::Int(int) => *int,
            Type::Enum(id) => self.up.checked.ctypes.enumeration(*id).map_or(Int::new(4, false), |e| e.int),
            Type::Pointer(_) | Type::Ksym | Type::Username | Type::Comm => Int::new(8, false),
            Type::Float(size) => Int::new(*size, false),
            Type::Agg(agg) => Int::new(8, super::is_signed(*agg)),
            Type::None | Type::Void => Int::new(8, true),
            _ => return None,
        })
    }

    /// Whether a value of this type fits a register.
    pub fn is_scalar(&self, ty: &Type) -> bool {
        self.shape(ty).is_some()
    }

    /// A place among the constants.
    pub fn constant(&mut self, bytes: &[u8]) -> Place {
        Place { base: Base::Constants, at: self.up.constant(bytes) as i32 }
    }
}

/// How often a probe asks for its thread.
fn asks_for_thread(probe: &Probe) -> usize {
    struct Count(usize);
    impl Visit for Count {
        fn expr(&mut self, e: &mut Expr) {
            self.0 += usize::from(is_thread(e));
            self.parts(e);
        }
    }
    let (mut count, mut probe) = (Count(0), probe.clone());
    probe.predicate.iter_mut().for_each(|e| count.expr(e));
    count.block(&mut probe.body);
    count.0
}

/// True of `tid`.
pub fn is_thread(e: &Expr) -> bool {
    matches!(&e.kind, ExprKind::Builtin(Builtin::Tid, args) if args.is_empty())
}
