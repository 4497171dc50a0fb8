//! From an attach point to places in files.
//!
//! For:     the checker and listing.
//! State:   none of its own.
//! Context: control.
//! Keeps:   P1 what is found has one name each; a mark at several places has them all.
//! Checked: tests/sites.rs.

use super::{ProbedPlace, Targets};
use crate::ast::{AttachPoint, Location, Provider, Spec, WatchAt};
use crate::site::{Site, from_here};
use crate::world::Missing;
use image::spec::{FunctionSpec, Library, MarkSpec, Pattern, Place as At};
use image::{ElfImage, ImageAddr, MarkArgument, NoMatch, When, select};
use std::collections::HashMap;
use std::sync::Arc;

impl Targets {
    /// The sites of an attach point; `None` if it waits for nothing in traced code.
    pub(super) fn find(&mut self, point: &AttachPoint) -> Result<Option<Vec<Site>>, Missing> {
        let kind = point.provider.name();
        let sites = match &point.spec {
            Spec::Uprobe { path, at } => {
                let mut sites = Vec::new();
                for file in self.files_of(kind, path)? {
                    sites.extend(self.functions(point, file, at)?);
                }
                sites
            }
            Spec::Usdt { path, namespace, name } => {
                let mut sites = Vec::new();
                for file in self.files_of(kind, path)? {
                    sites.extend(self.marks(file, namespace.as_deref(), name));
                }
                sites
            }
            Spec::Watchpoint { at: WatchAt::Address(_) | WatchAt::Symbol { .. }, .. } => return Ok(None),
            _ => return Ok(None),
        };
        if sites.is_empty() {
            let rest = point.text.split_once(':').map_or("", |(_, rest)| rest);
            return Err(Missing::NoMatch {
                message: format!("No matches for {kind} {rest}."),
                near: self.near(point),
            });
        }
        Ok(Some(sites))
    }

    fn functions(&mut self, point: &AttachPoint, file: usize, at: &Location) -> Result<Vec<Site>, Missing> {
        let is_return = point.provider == Provider::Uretprobe;
        let (kind, shown) = (point.provider.name(), self.files[file].shown.clone());
        let path = self.files[file].path.display().to_string();
        let when = if is_return { When::Return } else { When::Before };
        let image = &self.files[file].image;
        match at {
            Location::Function { name, offset, cpp } => {
                let offset_text = if *offset > 0 { format!("+{offset}") } else { String::new() };
                let pattern = Pattern::glob(name);
                let wanted = FunctionSpec { pattern, version: None, offset: *offset };
                let spec = spec(&point.text, when, path, At::Function(wanted));
                let word = if *cpp { "cpp:" } else { "" };
                if image.functions().iter().all(|function| function.names.is_empty()) {
                    return Ok(self.functions_by_debug(point, file, name, *offset));
                }
                let found: Vec<(ImageAddr, String)> = select(&spec, image)
                    .selected
                    .iter()
                    .map(|s| {
                        let name = s.name.map_or_else(|| name.clone(), |name| name.text.to_string());
                        (s.addr, format!("{kind}:{shown}:{word}{name}{offset_text}"))
                    })
                    .collect();
                let spec = self.ask(spec, !found.is_empty());
                Ok(found
                    .into_iter()
                    .map(|(addr, name)| self.site(name, file, addr, is_return, spec))
                    .collect())
            }
            Location::Address(addr) => {
                let addr = ImageAddr(*addr);
                if !image.is_code(addr) {
                    let message = format!("Could not resolve address: {shown}:{:#x}", addr.0);
                    return Err(Missing::Broken(message));
                }
                let spec = self.ask(spec(&point.text, when, path, At::Address(addr)), true);
                let name = format!("{kind}:{shown}:{:#x}", addr.0);
                Ok(vec![self.site(name, file, addr, is_return, spec)])
            }
            Location::Line { file: source, line, column } => {
                let Some(debug) = self.files[file].debug(&self.debug_dirs) else {
                    let message = format!("No debug information in {shown}: a source line can't be found");
                    return Err(Missing::Broken(message));
                };
                let found = debug.line(source, *line, *column).map_err(|near| {
                    let near: Vec<String> = near.iter().map(u32::to_string).collect();
                    let text = match near.as_slice() {
                        [] => format!("No source file {source} in {shown}."),
                        near => format!(
                            "No statement begins at {source}:{line} in {shown}; some begin at line {}.",
                            near.join(", ")
                        ),
                    };
                    Missing::NoMatch { message: text, near: Vec::new() }
                })?;
                let mut sites = Vec::new();
                for addr in found {
                    let spec = self.ask(spec(&point.text, when, path.clone(), At::Address(addr)), true);
                    sites.push(self.site(point.text.clone(), file, addr, is_return, spec));
                }
                Ok(sites)
            }
        }
    }

    /// The functions of a file that was stripped, by its separate debug information.
    fn functions_by_debug(&mut self, point: &AttachPoint, file: usize, name: &str, offset: u64) -> Vec<Site> {
        let is_return = point.provider == Provider::Uretprobe;
        let (kind, shown) = (point.provider.name(), self.files[file].shown.clone());
        let path = self.files[file].path.display().to_string();
        let when = if is_return { When::Return } else { When::Before };
        let Some(debug) = self.files[file].debug(&self.debug_dirs) else { return Vec::new() };
        let pattern = Pattern::glob(name);
        let mut found = debug.functions_named(&|name| pattern.matches(name));
        found.retain(|(addr, _)| self.files[file].image.is_code(*addr));
        let offset_text = if offset > 0 { format!("+{offset}") } else { String::new() };
        let mut sites = Vec::new();
        for (addr, name) in found {
            let addr = ImageAddr(addr.0.wrapping_add(offset));
            let spec = self.ask(spec(&point.text, when, path.clone(), At::Address(addr)), true);
            let name = format!("{kind}:{shown}:{name}{offset_text}");
            sites.push(self.site(name, file, addr, is_return, spec));
        }
        sites
    }

    fn marks(&mut self, file: usize, namespace: Option<&str>, name: &str) -> Vec<Site> {
        let (shown, path) = (self.files[file].shown.clone(), self.files[file].path.display().to_string());
        let provider = namespace.map(Pattern::glob);
        let wanted = MarkSpec { provider, name: Pattern::glob(name) };
        let text = format!("U:{path}:{}{name}", namespace.map(|n| format!("{n}:")).unwrap_or_default());
        let spec = spec(&text, When::Before, path, At::Mark(wanted));
        let image = &self.files[file].image;
        let mut symbols = None;
        let found: Vec<(ImageAddr, String, Arc<[MarkArgument]>)> = select(&spec, image)
            .selected
            .iter()
            .filter_map(|s| s.mark.as_ref())
            .map(|mark| {
                let symbols = symbols.get_or_insert_with(|| symbols_of(image));
                let arguments = mark.all_arguments(&|name| symbols.get(name).copied());
                let arguments =
                    arguments.into_iter().map(|a| MarkArgument { loc: from_here(a.loc, mark.addr), ..a });
                let name = format!("usdt:{shown}:{}:{}", mark.provider, mark.name);
                (mark.addr, name, arguments.collect())
            })
            .collect();
        let spec = self.ask(spec, !found.is_empty());
        let site =
            |(addr, name, marks)| Site { marks: Some(marks), ..self.site(name, file, addr, false, spec) };
        found.into_iter().map(site).collect()
    }

    fn ask(&mut self, spec: image::Spec, is_used: bool) -> usize {
        if is_used {
            self.specs.push(spec);
        }
        self.specs.len().saturating_sub(1)
    }

    fn site(&mut self, name: String, file: usize, addr: ImageAddr, is_return: bool, spec: usize) -> Site {
        self.places.push(ProbedPlace { file, addr, is_return, spec });
        let is_go = self.files[file].image.is_go_code(addr);
        Site { name: name.into(), place: (self.places.len() - 1) as u32, marks: None, is_go }
    }

    /// Names near to one that nothing has.
    fn near(&mut self, point: &AttachPoint) -> Vec<String> {
        let Spec::Uprobe { path, at: Location::Function { name, .. } } = &point.spec else {
            return Vec::new();
        };
        let Ok(files) = self.files_of(point.provider.name(), path) else { return Vec::new() };
        let [file] = files.as_slice() else { return Vec::new() };
        let wanted = FunctionSpec { pattern: Pattern::glob(name), version: None, offset: 0 };
        let spec = spec(&point.text, When::Before, path.clone(), At::Function(wanted));
        let debug = self.files[*file].debug(&self.debug_dirs);
        let copies = debug.map_or(0, |debug| debug.inlined(name).len());
        if copies > 0 {
            return vec![format!("{name} is inlined at {copies} places, and has no code of its own")];
        }
        let explained = NoMatch::explain(&spec, &self.files[*file].image);
        explained.map_or_else(Vec::new, |why| {
            why.near.iter().map(|near| format!("Did you mean {near}?")).collect()
        })
    }
}

fn spec(text: &str, when: When, path: String, place: At) -> image::Spec {
    image::Spec { text: text.to_owned(), when, library: Library::Named(path), place }
}

/// Addresses of variables and functions by name.
fn symbols_of(image: &ElfImage) -> HashMap<String, ImageAddr> {
    let functions =
        image.functions().iter().flat_map(|f| f.names.iter().map(|n| (n.text.to_string(), f.addr)));
    let variables = image.variables().into_iter().map(|v| (v.name, v.addr));
    functions.chain(variables).collect()
}
