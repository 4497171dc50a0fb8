//! Listing what can be probed.
//!
//! For:     `-l` and `-lv`.
//! State:   none of its own.
//! Context: control.
//! Keeps:   L1 a line is an attach point that can be written as it is.
//! Checked: tests/sites.rs.

use super::Targets;
use crate::ast::{AttachPoint, Provider};
use crate::events;
use crate::world::Missing;
use image::spec::Pattern;

/// Kinds of probes that traced files have.
const KINDS: [Provider; 3] = [Provider::Uprobe, Provider::Uretprobe, Provider::Usdt];

impl Targets {
    /// The attach points that a search fits, or several with commas: one for each name, with its arguments if they are wanted.
    ///
    /// # Errors
    /// Why the search can't be understood or answered.
    pub fn list(&mut self, search: &str, with_arguments: bool) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        for one in searches(search) {
            lines.extend(self.list_one(one, with_arguments)?);
        }
        Ok(lines)
    }

    fn list_one(&mut self, search: &str, with_arguments: bool) -> Result<Vec<String>, String> {
        let (word, rest) = search.split_once(':').unwrap_or((search, "*"));
        match Provider::of(word) {
            Some(kind) if KINDS.contains(&kind) => self.list_kinds(&[kind], rest, with_arguments),
            Some(kind) => without_file(kind, search),
            None => {
                let fits = |kind: &Provider| Pattern::glob(word).matches(kind.name());
                let kinds: Vec<Provider> = KINDS.into_iter().filter(fits).collect();
                let mut lines = events::listed(search);
                match (kinds.is_empty(), word == search) {
                    (true, _) if !is_glob(word) => return Err(format!("Invalid probe type: {word}")),
                    (true, true) => lines.extend(self.named(search)),
                    (true, false) => {}
                    (false, _) => match self.list_kinds(&kinds, rest, with_arguments) {
                        Err(why) if lines.is_empty() => return Err(why),
                        found => lines.extend(found.unwrap_or_default()),
                    },
                }
                Ok(lines)
            }
        }
    }

    /// Of a process, all whose name a glob fits.
    fn named(&mut self, search: &str) -> Vec<String> {
        if self.process.is_none() {
            return Vec::new();
        }
        let pattern = Pattern::glob(search);
        let all = self.list_kinds(&KINDS, "*", false).unwrap_or_default();
        all.into_iter().filter(|line| pattern.matches(line)).collect()
    }

    fn list_kinds(
        &mut self,
        kinds: &[Provider],
        rest: &str,
        with_arguments: bool,
    ) -> Result<Vec<String>, String> {
        let (mut lines, mut why) = (Vec::new(), None);
        for kind in kinds {
            let all = if rest.contains(':') { "" } else { ":*" };
            let point = AttachPoint::parse(&format!("{}:{rest}{all}", kind.name()));
            match point.and_then(|point| self.lines(point, with_arguments)) {
                Ok(found) => lines.extend(found),
                Err(refused) if kinds.len() == 1 => return Err(refused),
                Err(refused) => why = Some(refused),
            }
        }
        match (lines.is_empty(), why) {
            (true, Some(why)) => Err(why),
            _ => Ok(lines),
        }
    }

    /// The lines of one attach point.
    ///
    /// # Errors
    /// Its files can't be read.
    pub fn lines(&mut self, mut point: AttachPoint, with_arguments: bool) -> Result<Vec<String>, String> {
        let sites = match self.find(&point) {
            Ok(sites) => sites.unwrap_or_default(),
            Err(Missing::NoMatch { .. }) => return Ok(Vec::new()),
            Err(Missing::Broken(why)) => return Err(why),
        };
        point.sites = sites.into();
        let (mut lines, mut last) = (Vec::new(), None);
        for site in point.sites.iter() {
            if last == Some(&site.name) {
                continue;
            }
            last = Some(&site.name);
            lines.push(site.name.to_string());
            if with_arguments {
                lines.extend(self.argument_lines(&point, site.place));
            }
        }
        Ok(lines)
    }

    fn argument_lines(&self, point: &AttachPoint, place: u32) -> Vec<String> {
        let Some((file, info, _)) = self.function(point, place) else { return Vec::new() };
        let Some(debug) = self.files[file].debug(&self.debug_dirs) else { return Vec::new() };
        match point.provider {
            Provider::Uprobe => {
                let line = |p: &image::dwarf::Parameter| format!("    {} {}", debug.type_text(p.ty), p.name);
                info.parameters.iter().map(line).collect()
            }
            Provider::Uretprobe if info.returns.is_some() => {
                vec![format!("    {} retval", debug.type_text(info.returns))]
            }
            _ => Vec::new(),
        }
    }
}

/// What a list of searches is made of: at commas that stand in no quotes and no parentheses.
fn searches(list: &str) -> Vec<&str> {
    let (mut quoted, mut depth) = (false, 0usize);
    let parts = list.split(|c: char| {
        match c {
            '"' => quoted = !quoted,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && !quoted && depth == 0
    });
    parts.map(str::trim).filter(|one| !one.is_empty()).collect()
}

fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Attach points of a kind that no file has.
fn without_file(kind: Provider, search: &str) -> Result<Vec<String>, String> {
    use Provider::{Begin, End, Fentry, Fexit, Iter, Kprobe, Kretprobe, Rawtracepoint, Tracepoint};
    let name = kind.name();
    if let Kprobe | Kretprobe | Fentry | Fexit | Tracepoint | Rawtracepoint | Iter = kind {
        return Err(format!("{name}: probes of the kernel are not in this version"));
    }
    let Some((_, rest)) = search.split_once(':') else {
        return Ok(if let Begin | End = kind {
            vec![name.to_owned()]
        } else {
            events::listed(&format!("{name}:*"))
        });
    };
    let text = format!("{name}:{rest}");
    match events::listed(&text) {
        found if !found.is_empty() || is_glob(rest) => Ok(found),
        _ => AttachPoint::parse(&text).map(|point| vec![point.text]),
    }
}
