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
    /// The attach points that a search fits: one for each name, with its arguments if they are wanted.
    ///
    /// # Errors
    /// Why the search can't be understood or answered.
    pub fn list(&mut self, search: &str, with_arguments: bool) -> Result<Vec<String>, String> {
        let (word, rest) = search.split_once(':').unwrap_or((search, "*"));
        let is_kind = word == search && Provider::of(word).is_some();
        let fixed = events::listed(&if is_kind { format!("{word}:*") } else { search.to_owned() });
        let is_fixed = Provider::of(word).is_some_and(|kind| !KINDS.contains(&kind));
        if is_fixed && !fixed.is_empty() {
            return Ok(fixed);
        }
        let kinds: Vec<Provider> = match Provider::of(word) {
            Some(kind) => vec![kind],
            None => KINDS.into_iter().filter(|kind| Pattern::glob(word).matches(kind.name())).collect(),
        };
        if let (Some(kind @ (Provider::Begin | Provider::End)), None) =
            (kinds.first().copied(), search.split_once(':'))
        {
            return Ok(vec![kind.name().to_owned()]);
        }
        if kinds.is_empty() {
            return Err(format!("Invalid probe type: {word}"));
        }
        let (mut lines, mut why) = (fixed, None);
        let is_one = kinds.len() == 1;
        for kind in kinds {
            let text = match (kind, rest.contains(':')) {
                (Provider::Usdt, false) => format!("usdt:{rest}:*"),
                (Provider::Uprobe | Provider::Uretprobe, false) => format!("{}:{rest}:*", kind.name()),
                _ => format!("{}:{rest}", kind.name()),
            };
            let found = AttachPoint::parse(&text).and_then(|point| {
                if !KINDS.contains(&kind) {
                    return Ok(vec![point.text]);
                }
                self.lines(point, with_arguments)
            });
            match found {
                Ok(found) => lines.extend(found),
                Err(refused) if is_one => return Err(refused),
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
