//! How each site would be probed, and why not on a higher rung.
//!
//! For:     `explain`.
//! State:   images, opened once more for the reasons.
//! Context: control; touches nothing.
//! Keeps:   nothing beyond the call.
//! Checked: testkit `faces`.

use super::{Loaded, PlanError, RefusedSite, Verb, codes, name_of, no_match, plan, refusal};
use crate::site::{Action, SitePlan};
use image::lookup::find_file;
use image::{ElfImage, Process, Spec, select};
use insn::{Asked, Placement, place};
use std::collections::BTreeMap;

/// One placed site with the reasons against higher rungs, for `explain`.
#[derive(Clone, Debug)]
pub struct Explained {
    /// The site.
    pub site: SitePlan,
    /// For each higher rung, why not.
    pub why_not: Vec<String>,
}

/// Places every match in a process, or in files if there is none, and says why not higher.
pub fn explain(pid: Option<i32>, specs: &[Spec]) -> Result<(Vec<Explained>, Vec<RefusedSite>), PlanError> {
    let Some(pid) = pid else { return explain_files(specs) };
    let process = Process::read(pid as u32).map_err(PlanError::Image)?;
    let plan = plan(pid, specs, Verb::Count)?;
    let mut loaded: BTreeMap<String, Loaded> = BTreeMap::new();
    let mut explained = Vec::new();
    for mut site in plan.sites {
        if !loaded.contains_key(&site.module) {
            let module = process.modules.iter().find(|m| m.path.display().to_string() == site.module);
            let Some(module) = module else { continue };
            loaded.insert(
                site.module.clone(),
                Loaded::new(module.open(process.pid).map_err(PlanError::Image)?),
            );
        }
        let why_not = reasons(&loaded[&site.module], &mut site.placement);
        explained.push(Explained { site, why_not });
    }
    Ok((explained, plan.refused))
}

fn reasons(loaded: &Loaded, placement: &mut Placement) -> Vec<String> {
    let codes = codes(&loaded.image);
    loaded.flow.name_sources(&codes, None, &mut placement.why_not);
    placement.why_not.iter().map(|(rung, reason)| format!("not {rung}: {reason}")).collect()
}

fn explain_files(specs: &[Spec]) -> Result<(Vec<Explained>, Vec<RefusedSite>), PlanError> {
    let (mut explained, mut refused) = (Vec::new(), Vec::new());
    for spec in specs {
        let path = find_file(&spec.library).map_err(|e| PlanError::Lookup(Box::new(spec.clone()), e))?;
        let loaded = Loaded::new(ElfImage::open(&path).map_err(PlanError::Image)?);
        let selection = select(spec, &loaded.image);
        if selection.selected.is_empty() && selection.refused.is_empty() {
            return Err(no_match(spec, &loaded.image));
        }
        let module = path.display().to_string();
        for s in &selection.selected {
            let name = name_of(s);
            let function = s.function.map(|f| f.range().start.0..f.range().end.0);
            let asked = Asked { site: s.addr.0, function, next_function: None, taken: &|_| false };
            match place(&loaded.flow, &codes(&loaded.image), &asked) {
                Ok(mut placement) => {
                    let why_not = reasons(&loaded, &mut placement);
                    let site = SitePlan {
                        name,
                        module: module.clone(),
                        module_range: 0..0,
                        bias: 0,
                        placement,
                        original: Vec::new(),
                        island_original: Vec::new(),
                        exit_of: None,
                        actions: vec![Action::Count],
                    };
                    explained.push(Explained { site, why_not });
                }
                Err(why) => refused.push(RefusedSite {
                    name,
                    module: module.clone(),
                    addr: s.addr.0,
                    why: refusal(&why),
                }),
            }
        }
        refused.extend(selection.refused.iter().map(|r| RefusedSite {
            name: r.name.map_or_else(|| r.addr.to_string(), |n| n.text.to_string()),
            module: module.clone(),
            addr: r.addr.0,
            why: r.reason.to_string(),
        }));
    }
    Ok((explained, refused))
}
