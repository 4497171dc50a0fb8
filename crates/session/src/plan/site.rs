//! One match, one site: which jump stands there, or the kernel's probe, or why neither.
//!
//! For:     `Planner::place`.
//! State:   none.
//! Context: control.
//! Keeps:   P1 the kernel gets no site where its uprobe would do harm (`insn::kernel_misruns`, `insn::aarch64::kernel_way`).
//! Checked: testkit `shapes`, `kernel`, `refusals`.

use super::consumer::{check_faults, check_shadow_stack, check_stack, consumer, is_edge, is_go_code};
use super::no_jump::NoJump;
use super::{Match, Placed, Planner, Verb, codes};
use crate::facts::site::{Action, SitePlan};
use crate::plan::puns;
use image::{ElfImage, ImageAddr, Machine, Module, When};
use insn::aarch64::NotByKernel;
use insn::{Asked, Code, Flow, KernelWay, Placement, Pun, Refusal, place, place_earlier};
use std::ops::Range;
use text::JUMP_LEN;

/// Of each instruction.
const A64_LEN: u8 = 4;

impl Planner<'_> {
    pub(super) fn one(&self, wanted: &Match, verb: Verb, placed: &Placed) -> Result<SitePlan, String> {
        let action = match consumer(verb, When::Before, &self.images[&wanted.module].image, wanted)? {
            None => Action::Count,
            Some(consumer) => Action::Consumers(vec![consumer]),
        };
        let stack = match action {
            Action::Count => Ok(()),
            Action::Consumers(_) => check_stack(&self.images[&wanted.module].image, wanted),
        };
        let placement = match stack.and_then(|()| self.placement(wanted, placed)) {
            // Others say where a site is by where its jump is.
            Err(NoJump::Refused(why @ Refusal::NoRung { .. })) if verb == Verb::Program => {
                let earlier = self.earlier(wanted, placed, why);
                earlier.or_else(|why| self.by_kernel(wanted, verb, placed, why))?
            }
            Err(why) if action.suits_kernel() => self.by_kernel(wanted, verb, placed, why)?,
            other => other.map_err(|why| self.in_words(wanted, &why))?,
        };
        self.site_plan(wanted, wanted.name.clone(), placement, vec![action])
    }

    /// The probe placed by the kernel, if that is what `why` leaves. Of a program that is no site of a session's, but the caller may know
    /// what to do with it.
    fn by_kernel(
        &self,
        wanted: &Match,
        verb: Verb,
        placed: &Placed,
        why: NoJump,
    ) -> Result<Placement, String> {
        let (bias, image) = (self.module(wanted.module).bias.0, &self.images[&wanted.module].image);
        let Some((len, _)) = kernel_way(image, wanted.addr) else { return Err(self.in_words(wanted, &why)) };
        let is_taken = placed.is_taken(wanted.addr..wanted.addr + u64::from(len), bias);
        match why {
            // A link of a session's does not raise a mark's semaphore.
            why if (wanted.mark.is_some() && verb != Verb::Program)
                || misrun(image, wanted.addr).is_some() =>
            {
                Err(self.in_words(wanted, &why))
            }
            NoJump::Refused(Refusal::NoRung { why_not, .. }) if !is_taken => {
                Ok(Placement::by_kernel(wanted.addr, len, why_not))
            }
            NoJump::MayFault(_) | NoJump::TooLittleStack | NoJump::ShadowStack(_) if !is_taken => {
                Ok(Placement::by_kernel(wanted.addr, len, Vec::new()))
            }
            other => Err(self.in_words(wanted, &other)),
        }
    }

    /// Why there is no jump, and what is left.
    fn in_words(&self, wanted: &Match, why: &NoJump) -> String {
        let image = &self.images[&wanted.module].image;
        match (why, misrun(image, wanted.addr)) {
            (NoJump::Refused(why), _) => refusal(image, why),
            (why, Some(misrun)) => format!("{why}; {misrun}"),
            (why, None) => why.to_string(),
        }
    }

    /// Takes a match in by one more hook of the site before it, if that displaces its instruction.
    ///
    /// Not of a site at a function's edge: what is said there of its stack holds for all its hooks.
    pub(super) fn share(&self, wanted: &Match, verb: Verb, placed: &mut Placed) -> bool {
        let image = &self.images[&wanted.module].image;
        let bias = self.module(wanted.module).bias.0;
        let addr = wanted.addr.wrapping_add(bias);
        let Some((_, site)) = placed.sites.range_mut(..addr).next_back() else { return false };
        let semaphore = self.semaphore(wanted);
        let is_alike = site.bias == bias && site.semaphore == semaphore && site.exit_of.is_none();
        let is_plain = !site.is_edge && !is_edge(wanted) && !site.is_go && !is_go_code(image, wanted);
        let Ok(Some(consumer)) = consumer(verb, When::Before, image, wanted) else { return false };
        let does = is_alike && is_plain && site.placement.hook_before(&codes(image), wanted.addr);
        if does {
            site.actions.push(Action::Consumers(vec![consumer]));
        }
        does
    }

    /// Where the jump stands if not at the match's own instruction, for which it was refused.
    fn earlier(&self, wanted: &Match, placed: &Placed, why: Refusal) -> Result<Placement, NoJump> {
        self.placed_by(wanted, placed, |flow, codes, asked| place_earlier(flow, codes, asked, why))
    }

    /// Where the jump to a probe before the match's instruction stands.
    pub(super) fn placement(&self, wanted: &Match, placed: &Placed) -> Result<Placement, NoJump> {
        self.placed_by(wanted, placed, place)
    }

    fn placed_by(
        &self,
        wanted: &Match,
        placed: &Placed,
        way: impl FnOnce(&Flow, &[Code<'_>], &Asked<'_>) -> Result<Placement, Refusal>,
    ) -> Result<Placement, NoJump> {
        let loaded = &self.images[&wanted.module];
        let bias = self.module(wanted.module).bias.0;
        let asked = Asked {
            site: wanted.addr,
            function: wanted.function.clone(),
            next_function: None,
            taken: &|range| placed.is_taken(range, bias),
            room: &|pun| self.has_room(wanted, pun),
        };
        let placement = way(&loaded.flow, &codes(&loaded.image), &asked).map_err(NoJump::Refused)?;
        check_faults(&loaded.image, wanted, &placement)?;
        check_shadow_stack(self.process.pid, &placement)?;
        Ok(placement)
    }

    pub(super) fn has_room(&self, wanted: &Match, pun: Pun) -> bool {
        let module = self.module(wanted.module);
        let reach = module_range(&self.images[&wanted.module].image, module);
        puns::has_room(&self.process.mappings, reach, pun, module.bias.0)
    }

    /// Where the process counts who listens to the mark, if it is one that has that.
    fn semaphore(&self, wanted: &Match) -> Option<u64> {
        let at = wanted.mark.as_ref()?.semaphore?;
        Some(self.module(wanted.module).bias.0.wrapping_add(at.0))
    }

    pub(super) fn site_plan(
        &self,
        wanted: &Match,
        name: String,
        placement: Placement,
        actions: Vec<Action>,
    ) -> Result<SitePlan, String> {
        let module = self.module(wanted.module);
        let image = &self.images[&wanted.module].image;
        let bytes = |at: u64, len: usize| image.bytes(ImageAddr(at), len).map(<[u8]>::to_vec);
        let original = bytes(placement.site, usize::from(placement.patch_len));
        let island = placement.island.map_or(Some(Vec::new()), |at| bytes(at, JUMP_LEN));
        let (Some(original), Some(island_original)) = (original, island) else {
            return Err("the file ends under the jump".into());
        };
        let is_tail_call = placement.hooks.iter().any(|hook| hook.is_tail_call);
        Ok(SitePlan {
            name,
            module: module.path.display().to_string(),
            module_range: module_range(image, module),
            bias: module.bias.0,
            placement,
            original,
            island_original,
            exit_of: None,
            is_tail_call,
            semaphore: self.semaphore(wanted),
            block: None,
            landing: None,
            is_named: wanted.is_named,
            is_go: is_go_code(image, wanted),
            is_edge: is_edge(wanted),
            actions,
        })
    }
}

/// The length of the instruction there, and how the kernel gets past it.
fn kernel_way(image: &ElfImage, addr: u64) -> Option<(u8, KernelWay)> {
    let codes = codes(image);
    if image.machine() == Machine::Aarch64 {
        return a64_way(&codes, addr)?.ok().map(|way| (A64_LEN, way));
    }
    codes.iter().find_map(|code| insn::kernel_way(code.from_addr(addr)))
}

/// The same of A64's; `None` outside of code.
fn a64_way(codes: &[Code<'_>], addr: u64) -> Option<Result<KernelWay, NotByKernel>> {
    let code = codes.iter().find(|code| !code.from_addr(addr).is_empty())?;
    Some(insn::aarch64::kernel_way(code, addr))
}

/// A probe of the kernel's there, if that does no harm and nobody else is there.
pub(super) fn kernel_placement(
    image: &ElfImage,
    addr: u64,
    is_taken: impl Fn(Range<u64>) -> bool,
) -> Option<Placement> {
    let (len, _) = kernel_way(image, addr)?;
    let is_free = !is_taken(addr..addr + u64::from(len)) && misrun(image, addr).is_none();
    is_free.then(|| Placement::by_kernel(addr, len, Vec::new()))
}

/// Bytes of the instruction that the kernel's probe would take the place of; `None` outside of code.
pub fn len_under_kernel(image: &ElfImage, addr: ImageAddr) -> Option<u8> {
    kernel_way(image, addr.0).map(|(len, _)| len)
}

/// What the kernel's probe would do to the instruction there, in words, if that is not what the processor does.
pub fn misrun_by_kernel(image: &ElfImage, addr: ImageAddr) -> Option<String> {
    misrun(image, addr.0)
}

/// What the kernel's probe would do to the instruction there, or why it may not stand there.
fn misrun(image: &ElfImage, addr: u64) -> Option<String> {
    let codes = codes(image);
    if image.machine() == Machine::Aarch64 {
        return a64_way(&codes, addr)?.err().map(|why| why.to_string());
    }
    let misrun = codes.iter().find_map(|code| insn::kernel_misruns(code.from_addr(addr)).err());
    misrun.map(|misrun| misrun.to_string())
}

/// What is left where no jump fits, and its price.
pub(super) fn by_kernel_alone(image: &ElfImage, site: u64) -> String {
    let price = match kernel_way(image, site) {
        Some((_, KernelWay::Emulates)) => "each hit traps",
        _ => "each hit traps twice, since the kernel steps this instruction",
    };
    format!("rung 7, a kernel uprobe, serves a function by its whole name, or with --kernel: {price}")
}

/// A refusal in words, with what is left.
pub(super) fn refusal(image: &ElfImage, why: &Refusal) -> String {
    let Refusal::NoRung { site, .. } = why else { return why.to_string() };
    match misrun(image, *site) {
        Some(misrun) => format!("{why}; {misrun}"),
        None => format!("{why} ({})", by_kernel_alone(image, *site)),
    }
}

/// Addresses of all of the module that comes from its file. Not of the file's other mappings: a program may have mapped
/// itself once more, far away, to read its symbols.
pub(super) fn module_range(image: &ElfImage, module: &Module) -> Range<u64> {
    const PAGE: u64 = 4096;
    let starts = image.segments().iter().map(|s| module.bias.addr(s.range.start).0 / PAGE * PAGE);
    let ends = image.segments().iter().map(|s| module.bias.addr(s.range.end).0.next_multiple_of(PAGE));
    let start = starts.min().unwrap_or_default();
    start..ends.max().unwrap_or(start)
}
