//! A program as machine code that can be placed anywhere.
//!
//! For:     whoever runs programs fast: engines of `bpf exec`, later the trampolines.
//! State:   the code generator, and its buffers between programs.
//! Context: control.
//! Keeps:   C1 the same program and options give the same bytes.
//!          C2 what is given out has passed the gate.
//!          C3 the only relocations are calls of helpers.
//! Checked: tests/engines.rs (C1, C2 over every case), the gate (C3).
//! Source:  Cranelift, crate cranelift-codegen 0.135: how it is used was found by trying.

use crate::arch;
use crate::flow::{self, Function};
use crate::gate::{self, Passed, Unfit};
use crate::reach::{self, Reach};
use crate::translate::{HELPERS, Unit, signature, translate};
use crate::{Context as Read, Effort, Level, Options, Refusal, Refused, Stack};
use bpf::{FRAMES_MAX, Program};
use cranelift_codegen::ir::{ExternalName, TrapCode, UserFuncName};
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{Context, FinalizedRelocTarget};
use std::collections::BTreeMap;
use std::ops::Range;

/// Instructions that a program may have to be compiled: it bounds what compiling costs.
pub const INSNS_MAX: usize = 16_384;

/// What Cranelift calls an access of the program's.
pub(crate) const ACCESS: TrapCode = TrapCode::unwrap_user(1);
const FUNCTION_ALIGN: usize = 16;

/// A compiler.
pub struct Compiler {
    /// One for each [`Effort`].
    isas: [OwnedTargetIsa; 2],
    context: Context,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compiler")
    }
}

/// A call of a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Where the four bytes are that have its distance: of x86-64 behind the call's first byte, of A64 the call.
    pub at: u32,
    /// The helper's number.
    pub helper: u32,
}

/// An instruction of the code that makes an access of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlace {
    /// Its offset in the code.
    pub at: u32,
    /// The program's instruction.
    pub insn: u32,
}

/// Machine code of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The code, constants behind each function's. It begins with the program's first instruction, and stands at a multiple
    /// of 16.
    pub bytes: Vec<u8>,
    /// Its calls of helpers, in order.
    pub relocations: Vec<Relocation>,
    /// Its accesses, in order.
    pub faults: Vec<FaultPlace>,
    /// What the gate has found out about it.
    pub passed: Passed,
    /// What it reads of its context, if that is a `pt_regs`.
    pub context: Read,
    /// Its stack is [given](Stack::Given) to it.
    pub is_given_stack: bool,
    /// It is [checked](Level::Checked).
    pub is_checked: bool,
    /// A run can end before its exit: without fuel, or by what it may not do.
    pub can_end_early: bool,
}

/// One function's code.
struct Piece {
    bytes: Vec<u8>,
    calls: Vec<(usize, Callee)>,
    faults: Vec<FaultPlace>,
    can_end_early: bool,
}

enum Callee {
    Own(usize),
    Helper(u32),
}

impl Compiler {
    /// A compiler for this machine's kind.
    ///
    /// # Cost
    /// 20 to 30 us; the first program then takes ten times what the next ones take.
    ///
    /// # Errors
    /// The code generator does not know a setting; that is a defect of ours.
    pub fn new() -> Result<Compiler, Refusal> {
        let isa = |level: &str| target(level).map_err(Refusal::Generator);
        Ok(Compiler { isas: [isa("none")?, isa("speed")?], context: Context::new() })
    }

    /// Machine code for a program.
    ///
    /// # Cost
    /// 15 to 60 us for programs of up to 40 instructions, 0.3 ms for 200: docs/measurements.md.
    ///
    /// # Errors
    /// What the program has that is not compiled.
    pub fn compile(&mut self, program: &Program, options: &Options<'_>) -> Result<Compiled, Refused> {
        let insns = program.insns().len();
        if insns > INSNS_MAX {
            return Err(Refused { at: 0, why: Refusal::TooLong { insns } });
        }
        let functions = flow::functions(program);
        let reaches: Vec<Reach> =
            functions.iter().enumerate().map(|(i, f)| reach::reach(program, f, i == 0)).collect();
        let is_checked = options.level == Level::Checked;
        let is_given_stack = is_checked || options.stack == Stack::Given;
        let unit = Unit {
            program,
            options,
            costs: functions.iter().map(|function| (function.entry, function.cost())).collect(),
            frames: functions.iter().zip(&reaches).map(|(f, reach)| (f.entry, reach.frame)).collect(),
            is_given_stack,
            counts_calls: is_given_stack || may_go_deep(&functions),
        };
        let mut pieces = Vec::with_capacity(functions.len());
        for function in &functions {
            let piece = self.piece(&unit, function).map_err(|(at, why)| Refused { at, why })?;
            pieces.push((function.entry, piece));
        }
        let can_end_early = pieces.iter().any(|(_, piece)| piece.can_end_early);
        let (bytes, relocations, faults, passed) =
            join(pieces).map_err(|unfit| Refused { at: 0, why: Refusal::Gate(unfit) })?;
        let context = reaches.first().map(|reach| reach.context).unwrap_or_default();
        Ok(Compiled {
            bytes,
            relocations,
            faults,
            passed,
            context,
            is_given_stack,
            is_checked,
            can_end_early,
        })
    }

    fn piece(&mut self, unit: &Unit<'_>, function: &Function) -> Result<Piece, (usize, Refusal)> {
        let isa = &*self.isas[usize::from(unit.options.effort == Effort::Speed)];
        self.context.clear();
        self.context.func.name = UserFuncName::user(0, function.entry as u32);
        self.context.func.signature = signature();
        let can_end_early = translate(unit, function, &mut self.context.func)?;
        let broken = |why: String| (function.entry, Refusal::Generator(why));
        let compiled = self.context.compile(isa, &mut Default::default());
        let buffer = match compiled {
            Ok(code) => code.buffer.clone(),
            Err(error) => return Err(broken(format!("{:?}", error.inner))),
        };
        let mut calls = Vec::new();
        for reloc in buffer.relocs() {
            let FinalizedRelocTarget::ExternalName(ExternalName::User(name)) = reloc.target else {
                return Err(broken(format!("a relocation to {:?}", reloc.target)));
            };
            if !arch::is_call(reloc.kind, reloc.addend) {
                return Err(broken(format!("a relocation of kind {:?}", reloc.kind)));
            }
            let name = &self.context.func.params.user_named_funcs()[name];
            let callee = match name.namespace {
                HELPERS => Callee::Helper(name.index),
                _ => Callee::Own(name.index as usize),
            };
            calls.push((reloc.offset as usize, callee));
        }
        let places = buffer.get_srclocs_sorted();
        let insn_at = |at: u32| {
            let place = places.iter().find(|place| (place.start..place.end).contains(&at));
            place.map_or(0, |place| place.loc.bits())
        };
        // The record of a division is of its trap on 0, which no divisor is.
        let accesses = buffer.traps().iter().filter(|trap| trap.code == ACCESS);
        let faults =
            accesses.map(|trap| FaultPlace { at: trap.offset, insn: insn_at(trap.offset) }).collect();
        let divisions = buffer.traps().iter().filter(|trap| trap.code == TrapCode::INTEGER_DIVISION_BY_ZERO);
        let divisions: Vec<usize> = divisions.map(|trap| trap.offset as usize).collect();
        let mut bytes = buffer.data().to_vec();
        arch::without_traps(&mut bytes, &divisions);
        Ok(Piece { bytes, calls, faults, can_end_early })
    }
}

fn target(level: &str) -> Result<OwnedTargetIsa, String> {
    let mut flags = settings::builder();
    let verifies = if cfg!(debug_assertions) { "true" } else { "false" };
    for (name, value) in [
        ("opt_level", level),
        // Else symbols are looked for in a table that we do not have.
        ("is_pic", "false"),
        ("enable_pinned_reg", "true"),
        ("enable_probestack", "false"),
        ("unwind_info", "false"),
        ("enable_heap_access_spectre_mitigation", "false"),
        ("enable_table_access_spectre_mitigation", "false"),
        ("enable_verifier", verifies),
    ] {
        flags.set(name, value).map_err(|error| error.to_string())?;
    }
    let mut isa = isa::lookup_by_name(arch::NAME).map_err(|error| error.to_string())?;
    for extension in arch::extensions() {
        isa.enable(extension).map_err(|error| error.to_string())?;
    }
    isa.finish(settings::Flags::new(flags)).map_err(|error| format!("{error:?}"))
}

/// Whether more functions may be inside each other than are allowed.
fn may_go_deep(functions: &[Function]) -> bool {
    let mut deepest: BTreeMap<usize, usize> = functions.iter().map(|f| (f.entry, 1)).collect();
    for _ in 0..FRAMES_MAX {
        for function in functions {
            let below = function.callees.iter().filter_map(|callee| deepest.get(callee)).max();
            let depth = 1 + below.copied().unwrap_or(0);
            deepest.insert(function.entry, depth.min(FRAMES_MAX + 1));
        }
    }
    deepest.values().any(|depth| *depth > FRAMES_MAX)
}

/// Code, its calls of helpers, its accesses, and what the gate says.
type Joined = (Vec<u8>, Vec<Relocation>, Vec<FaultPlace>, Passed);

/// One piece of code of all functions, past the gate.
fn join(pieces: Vec<(usize, Piece)>) -> Result<Joined, Unfit> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut starts = BTreeMap::new();
    let mut calls = Vec::new();
    let mut faults = Vec::new();
    for (entry, piece) in pieces {
        let pad = bytes.len().next_multiple_of(FUNCTION_ALIGN) - bytes.len();
        bytes.extend(arch::PAD.iter().cycle().take(pad));
        let start = bytes.len();
        starts.insert(entry, start);
        ranges.push(start..start + piece.bytes.len());
        bytes.extend(piece.bytes);
        calls.extend(piece.calls.into_iter().map(|(at, callee)| (start + at, callee)));
        faults.extend(piece.faults.into_iter().map(|f| FaultPlace { at: f.at + start as u32, ..f }));
    }
    let mut relocations = Vec::new();
    for (at, callee) in calls {
        match callee {
            Callee::Helper(helper) => relocations.push(Relocation { at: at as u32, helper }),
            Callee::Own(entry) => {
                let to = starts.get(&entry).copied().unwrap_or(at);
                let found = gate::Found::Way;
                let word = arch::call(to as i64 - at as i64).ok_or(Unfit { at, found })?;
                bytes[at..at + 4].copy_from_slice(&word);
            }
        }
    }
    relocations.sort_by_key(|relocation| relocation.at);
    let passed = gate::pass(&bytes, &ranges, &relocations)?;
    Ok((bytes, relocations, faults, passed))
}
