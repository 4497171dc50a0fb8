//! Where probes may go in a running workload: instructions of the functions that it really runs.
//!
//! For:     `torture anywhere`.
//! State:   for each module its functions; which of them were entered in a first, counted run.
//! Context: control.
//! Keeps:   P1 the same seed picks the same instructions, given the same functions.
//!          P2 every address picked is an instruction, read from its function's start.
//! Checked: P2 by `insn::place`, which refuses others; the refusals are printed by reason.

use crate::rng::Rng;
use image::{ElfImage, FunctionKind, Machine, ModuleKind, Process, Spec};
use insn::Code;
use std::collections::BTreeSet;
use std::ops::Range;

/// One file of code.
struct Module {
    path: String,
    image: ElfImage,
    functions: Vec<Range<u64>>,
}

/// The code of a workload.
pub struct Places {
    modules: Vec<Module>,
    /// (module, function), each function that ran.
    entered: Vec<(usize, usize)>,
}

/// One in so many picks is from any function, entered or not: cold parts, and code that is only jumped into.
const ANY_FUNCTION: u64 = 12;

impl Places {
    /// What a process has mapped, nothing entered yet.
    pub fn of(pid: i32) -> Result<Places, String> {
        let process = Process::read(pid as u32).map_err(|e| e.to_string())?;
        let mut modules = Vec::new();
        for module in process.modules.iter().filter(|m| m.kind != ModuleKind::Vdso) {
            let image = module.open(pid as u32).map_err(|e| e.to_string())?;
            let real = image.functions().iter().filter(|f| f.kind != FunctionKind::Untyped);
            let ranges = real.map(|f| f.range().start.0..f.range().end.0);
            let functions: Vec<_> = ranges.filter(|r| r.end > r.start).collect();
            modules.push(Module { path: module.path.display().to_string(), image, functions });
        }
        Ok(Places { modules, entered: Vec::new() })
    }

    /// Each function's first instruction.
    pub fn entries(&self) -> Vec<Spec> {
        let all = self.modules.iter().flat_map(|m| m.functions.iter().map(|f| spec(&m.path, f.start)));
        all.flatten().collect()
    }

    /// From now on functions that begin at these (file, address) are picked from.
    pub fn enter(&mut self, hit: &BTreeSet<(String, u64)>) {
        for (m, module) in self.modules.iter().enumerate() {
            for (f, function) in module.functions.iter().enumerate() {
                if hit.contains(&(module.path.clone(), function.start)) {
                    self.entered.push((m, f));
                }
            }
        }
    }

    /// How many functions there are, and how many were entered.
    pub fn count(&self) -> (usize, usize) {
        (self.modules.iter().map(|m| m.functions.len()).sum(), self.entered.len())
    }

    /// So many instructions: a function by its size, then one of its instructions.
    pub fn pick(&self, random: &mut Rng, many: usize) -> Vec<Spec> {
        let size = |(m, f): &(usize, usize)| {
            let function = &self.modules[*m].functions[*f];
            function.end - function.start
        };
        let any: Vec<(usize, usize)> = (0..self.modules.len())
            .flat_map(|m| (0..self.modules[m].functions.len()).map(move |f| (m, f)))
            .collect();
        let sums = |list: &[(usize, usize)]| -> Vec<u64> {
            list.iter()
                .scan(0, |sum, at| {
                    *sum += size(at);
                    Some(*sum)
                })
                .collect()
        };
        let (entered, all) = (sums(&self.entered), sums(&any));
        let mut picked = BTreeSet::new();
        for _ in 0..many {
            let is_any = self.entered.is_empty() || random.one_in(ANY_FUNCTION);
            let (list, sums) = if is_any { (&any, &all) } else { (&self.entered, &entered) };
            let byte = random.below(sums.last().copied().unwrap_or(0));
            let (m, f) = list[sums.partition_point(|sum| *sum <= byte)];
            picked.extend(self.instruction(random, m, f).map(|addr| (m, addr)));
        }
        picked.iter().filter_map(|(m, addr)| spec(&self.modules[*m].path, *addr)).collect()
    }

    fn instruction(&self, random: &mut Rng, module: usize, function: usize) -> Option<u64> {
        let module = &self.modules[module];
        let segments = module.image.executable_segments();
        let codes: Vec<Code<'_>> = segments.map(|(s, bytes)| Code { base: s.range.start.0, bytes }).collect();
        let is_a64 = module.image.machine() == Machine::Aarch64;
        let insns = insn::addresses(is_a64, &codes, &module.functions[function]);
        insns.get(random.below(insns.len() as u64) as usize).copied()
    }
}

fn spec(path: &str, addr: u64) -> Option<Spec> {
    Spec::parse(&format!("u:{path}:{addr:#x}")).ok()
}
