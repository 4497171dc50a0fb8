//! How each site would be probed, and why not on a higher rung.
//!
//! For:     `explain`.
//! State:   images, read once.
//! Context: control; touches nothing.
//! Keeps:   nothing beyond the call.
//! Checked: testkit `faces`.

use super::calls::{find_exits, refused_exit, unknown_exits};
use super::site::{by_kernel_alone, refusal};
use super::{
    Amount, Images, Loaded, Pace, PlanError, RefusedSite, Verb, codes, name_of, no_match, plan_with,
};
use crate::facts::site::{Action, SitePlan};
use image::lookup::find_file;
use image::select::Selected;
use image::{Machine, Process, Spec, When, select};
use insn::{Asked, Placement, Rung, place};
use std::collections::BTreeMap;
use std::rc::Rc;

/// One placed site with the reasons against higher rungs, for `explain`.
#[derive(Clone, Debug)]
pub struct Explained {
    /// The site.
    pub site: SitePlan,
    /// For each higher rung, why not.
    pub why_not: Vec<String>,
}

/// Places every match in a process, or in files if there is none, and says why not higher.
pub fn explain(
    pid: Option<i32>,
    specs: &[Spec],
    pace: Pace,
) -> Result<(Vec<Explained>, Vec<RefusedSite>), PlanError> {
    let Some(pid) = pid else { return explain_files(specs, &pace) };
    let mut images = Images::with_pace(pace);
    let process = Process::read(pid as u32).map_err(PlanError::Image)?;
    let plan = plan_with(&mut images, pid, specs, Verb::Count)?;
    let mut loaded: BTreeMap<String, Rc<Loaded>> = BTreeMap::new();
    let mut explained = Vec::new();
    for mut site in plan.sites {
        if !loaded.contains_key(&site.module) {
            let module = process.modules.iter().find(|m| m.path.display().to_string() == site.module);
            let Some(module) = module else { continue };
            loaded.insert(site.module.clone(), images.load(process.pid, module)?);
        }
        let mut why_not = reasons(&loaded[&site.module], &mut site.placement);
        if site.placement.rung == Rung::Kernel {
            why_not.push(by_kernel_alone(&loaded[&site.module].image, site.placement.site));
        }
        explained.push(Explained { site, why_not });
    }
    Ok((explained, plan.refused))
}

fn reasons(loaded: &Loaded, placement: &mut Placement) -> Vec<String> {
    let codes = codes(&loaded.image);
    loaded.flow.name_sources(&codes, None, &mut placement.why_not);
    placement.why_not.iter().map(|(rung, reason)| format!("not {rung}: {reason}")).collect()
}

fn explain_files(specs: &[Spec], pace: &Pace) -> Result<(Vec<Explained>, Vec<RefusedSite>), PlanError> {
    let _whole = pace.whole();
    let (mut explained, mut refused) = (Vec::new(), Vec::new());
    for spec in specs {
        let path = find_file(&spec.library).map_err(|e| PlanError::Lookup(Box::new(spec.clone()), e))?;
        let loaded = Loaded::new(super::images::open(&path).map_err(PlanError::Image)?, pace)?;
        let selection = select(spec, &loaded.image);
        if selection.selected.is_empty() && selection.refused.is_empty() {
            return Err(no_match(spec, &loaded.image));
        }
        let module = path.display().to_string();
        let all = Amount::Places(selection.selected.len() as u64);
        let work = pace.begin(format!("placing in {module}"), all);
        for s in &selection.selected {
            if !work.go_on(1) {
                return Err(PlanError::Stopped);
            }
            let name = name_of(s);
            match in_file(&loaded, spec.when, s) {
                Ok(placements) => {
                    let name = if spec.when == When::Return { format!("{name}%return") } else { name };
                    for mut placement in placements {
                        let why_not = reasons(&loaded, &mut placement);
                        let site = without_process(name.clone(), module.clone(), placement);
                        explained.push(Explained { site, why_not });
                    }
                }
                Err(why) => {
                    refused.push(RefusedSite { name, module: module.clone(), addr: s.addr.0, why });
                }
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

/// Where jumps stand in a file for one match: one, or one for each exit.
fn in_file(loaded: &Loaded, when: When, selected: &Selected<'_>) -> Result<Vec<Placement>, String> {
    let codes = codes(&loaded.image);
    let function = selected.function.map(|f| f.range().start.0..f.range().end.0);
    if when == When::Before {
        let asked = Asked {
            site: selected.addr.0,
            function,
            next_function: None,
            taken: &|_| false,
            room: &|_| true,
        };
        let placed = place(&loaded.flow, &codes, &asked);
        return placed.map(|p| vec![p]).map_err(|why| refusal(&loaded.image, &why));
    }
    if loaded.image.machine() == Machine::Aarch64 {
        return Err("where A64 functions return is not looked for yet".into());
    }
    let function = function.filter(|f| f.end > f.start).ok_or("the function's end is not known")?;
    let exits = find_exits(&loaded.image, &loaded.flow, function, loaded.image.is_go());
    let exits = exits.map_err(|why| unknown_exits(&why))?;
    let placed = exits.place_all(&loaded.flow, &codes, None, &|_| false, &|_| true);
    let placed = placed.map_err(|(exit, why)| refused_exit(exit, &why))?;
    Ok(placed.into_iter().map(|(_, placement)| placement).collect())
}

/// A site that is only looked at.
fn without_process(name: String, module: String, placement: Placement) -> SitePlan {
    SitePlan {
        name,
        module,
        module_range: 0..0,
        bias: 0,
        placement,
        original: Vec::new(),
        island_original: Vec::new(),
        exit_of: None,
        is_tail_call: false,
        semaphore: None,
        block: None,
        landing: None,
        is_named: false,
        is_go: false,
        is_edge: false,
        actions: vec![Action::Count],
    }
}
