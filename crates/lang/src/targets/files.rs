//! Which files a path, a name or a glob means.
//!
//! For:     attach points and listing.
//! State:   none of its own.
//! Context: control.
//! Keeps:   F1 a file is opened once. F2 a glob over files gives ELF files only, in order of their paths.
//! Checked: tests/sites.rs.

use super::Targets;
use crate::world::Missing;
use image::dwarf::DebugInfo;
use image::lookup::{LookupError, find_file, find_module};
use image::spec::{Library, Pattern};
use image::{ElfImage, Module, ModuleKind, Process};
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Most files that one glob may mean.
const FILES_MAX: usize = 4096;
/// Most directories that are looked into for one.
const DIRECTORIES_MAX: usize = 10_000;

/// A file that is traced.
#[derive(Debug)]
pub struct TracedFile {
    /// As `probe` and listings show it.
    pub shown: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its contents.
    pub image: Rc<ElfImage>,
    debug: OnceCell<Option<DebugInfo>>,
}

impl TracedFile {
    /// Its debug information, if it has any.
    pub fn debug(&self, dirs: &[PathBuf]) -> Option<&DebugInfo> {
        self.debug.get_or_init(|| self.image.debug_info_in(dirs)).as_ref()
    }
}

impl Targets {
    /// The files that the path of an attach point means; without a match, why.
    pub(super) fn files_of(&mut self, kind: &str, path: &str) -> Result<Vec<usize>, Missing> {
        let is_all = path.is_empty() || path == "*";
        let is_glob = !Pattern::glob(path).is_exact();
        if let Some(process) = self.process.take() {
            let found = self.of_process(&process, path, is_all || is_glob);
            self.process = Some(process);
            return found.map_err(|why| Missing::Broken(missing_file(kind, path, &why)));
        }
        if is_all {
            return Ok(self.of_all_processes());
        }
        if is_glob {
            let paths = glob(path);
            return Ok(paths
                .into_iter()
                .filter_map(|path| self.open(&path, &path.display().to_string()).ok())
                .collect());
        }
        let found = find_file(&Library::Named(path.to_owned()));
        let file = found.map_err(|why| Missing::Broken(missing_file(kind, path, &why.to_string())))?;
        let shown = if path.contains('/') { path.to_owned() } else { file.display().to_string() };
        let opened = self.open(&file, &shown);
        opened.map(|file| vec![file]).map_err(|why| Missing::Broken(missing_file(kind, path, &why)))
    }

    fn of_process(&mut self, process: &Process, path: &str, is_glob: bool) -> Result<Vec<usize>, String> {
        if is_glob {
            let pattern = Pattern::glob(if path.is_empty() { "*" } else { path });
            let dir = std::env::current_dir().unwrap_or_default();
            let rooted = Pattern::glob(&dir.join(path.trim_start_matches("./")).display().to_string());
            let modules = process.modules.iter().filter(|m| m.kind != ModuleKind::Vdso).filter(|m| {
                let text = m.path.display().to_string();
                pattern.matches(&text) || rooted.matches(&text)
            });
            return Ok(modules.filter_map(|module| self.open_module(process, module, None).ok()).collect());
        }
        let library = Library::Named(path.to_owned());
        match find_module(&library, process) {
            Ok(module) => {
                let shown = path.contains('/').then(|| path.to_owned());
                self.open_module(process, module, shown).map(|file| vec![file])
            }
            // It may be loaded later.
            Err(why @ LookupError::NotMapped { .. }) => {
                let file = find_file(&library).map_err(|_| why.to_string())?;
                self.open(&file, path).map(|file| vec![file])
            }
            Err(why) => Err(why.to_string()),
        }
    }

    /// The files that running processes have mapped.
    fn of_all_processes(&mut self) -> Vec<usize> {
        let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let own = std::process::id();
        let mut paths = BTreeSet::new();
        for process in pids.filter(|pid| *pid != own).filter_map(|pid| Process::read(pid).ok()) {
            let named = process.modules.iter().filter(|m| m.kind != ModuleKind::Vdso && !m.is_deleted);
            paths.extend(named.map(|m| m.path.clone()));
            if paths.len() > FILES_MAX {
                break;
            }
        }
        paths.into_iter().filter_map(|path| self.open(&path, &path.display().to_string()).ok()).collect()
    }

    fn open(&mut self, path: &Path, shown: &str) -> Result<usize, String> {
        let known = self.files.iter().position(|f| f.path == path && f.shown == shown);
        if let Some(known) = known {
            return Ok(known);
        }
        let image = ElfImage::open_native(path).map_err(|why| why.to_string())?;
        Ok(self.keep(shown.to_owned(), path.to_owned(), image))
    }

    fn open_module(
        &mut self,
        process: &Process,
        module: &Module,
        shown: Option<String>,
    ) -> Result<usize, String> {
        let shown = shown.unwrap_or_else(|| module.path.display().to_string());
        let known = self.files.iter().position(|f| f.path == module.path && f.shown == shown);
        if let Some(known) = known {
            return Ok(known);
        }
        let image = module.open(process.pid).map_err(|why| why.to_string())?;
        Ok(self.keep(shown, module.path.clone(), image))
    }

    fn keep(&mut self, shown: String, path: PathBuf, image: ElfImage) -> usize {
        let image = Rc::new(image);
        self.files.push(TracedFile { shown, path, image, debug: OnceCell::new() });
        self.files.len() - 1
    }
}

fn missing_file(kind: &str, path: &str, why: &str) -> String {
    format!("{kind} target file '{path}' does not exist or is not executable: {why}")
}

/// Files whose paths a glob fits, part by part.
fn glob(text: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = vec![if text.starts_with('/') { "/".into() } else { PathBuf::new() }];
    let mut left = DIRECTORIES_MAX;
    for part in text.split('/').filter(|part| !part.is_empty()) {
        let pattern = Pattern::glob(part);
        if pattern.is_exact() {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        let mut next = Vec::new();
        for dir in found {
            left = left.saturating_sub(1);
            let shown = if dir.as_os_str().is_empty() { Path::new(".") } else { dir.as_path() };
            let Some(entries) = (left > 0).then(|| std::fs::read_dir(shown).ok()).flatten() else { continue };
            let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            // As a shell does: a hidden file is named by its dot.
            let fits =
                |name: &String| pattern.matches(name) && (part.starts_with('.') || !name.starts_with('.'));
            next.extend(names.filter(fits).map(|name| dir.join(name)));
        }
        found = next;
        found.truncate(FILES_MAX);
    }
    let is_program =
        |path: &PathBuf| std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0);
    found.retain(|path| is_program(path) || path.to_str().is_some_and(|path| path.contains(".so")));
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_goes_part_by_part() {
        let found = glob("/usr/bin/[e]nv");
        assert_eq!(found, [PathBuf::from("/usr/bin/env")]);
        assert!(glob("/nowhere*/x").is_empty());
        assert!(glob("/usr/*/env").contains(&PathBuf::from("/usr/bin/env")));
    }
}
