//! Traced files: where attach points lead in them, and what their debug information says.
//!
//! For:     the checker, as its [`World`]; listing; whoever attaches.
//! State:   the files that were opened, and every place that an attach point led to.
//! Context: control. Reads files and /proc; touches no process.
//! Keeps:   1. Each place is counted from the file: it holds for every process that maps it.
//!          2. What leads nowhere says why, with near names.
//! Checked: tests/sites.rs, on programs that gcc builds.

mod files;
mod list;
mod places;
mod values;

pub use files::TracedFile;

use crate::ast::AttachPoint;
use crate::disk::Disk;
use crate::site::{Located, Site, Symbol};
use crate::types::{CTypes, StructId, Type};
use crate::world::{Missing, World};
use image::{ImageAddr, Process, Spec};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// One place of one file.
#[derive(Clone, Debug)]
pub struct ProbedPlace {
    /// An index into [`Targets::files`].
    pub file: usize,
    /// Of a function that is left: where it begins.
    pub addr: ImageAddr,
    /// The place is where the function is left.
    pub is_return: bool,
    /// It is what this specification means, among others; an index into [`Targets::specs`].
    pub spec: usize,
}

/// A [`World`] of traced files.
#[derive(Debug, Default)]
pub struct Targets {
    /// Imports and headers.
    pub disk: Disk,
    /// Where separate debug files are looked for, before the system's directories.
    pub debug_dirs: Vec<PathBuf>,
    /// The process to trace, if there is one already.
    process: Option<Process>,
    files: Vec<TracedFile>,
    places: Vec<ProbedPlace>,
    specs: Vec<Spec>,
    /// Types that were taken over from debug information, by file.
    known: HashMap<(usize, image::dwarf::TypeRef), Type>,
}

impl Targets {
    /// With a process, what is mapped in it is looked at; without one, the files on disk.
    ///
    /// # Errors
    /// The process can't be looked at.
    pub fn new(disk: Disk, pid: Option<u32>) -> Result<Targets, String> {
        let process = pid.map(Process::read).transpose().map_err(|why| why.to_string())?;
        Ok(Targets { disk, process, ..Targets::default() })
    }

    /// The files that places are in.
    pub fn files(&self) -> &[TracedFile] {
        &self.files
    }

    /// Every place that was found, by number.
    pub fn places(&self) -> &[ProbedPlace] {
        &self.places
    }

    /// What was asked for, as specifications of one file each.
    pub fn specs(&self) -> &[Spec] {
        &self.specs
    }
}

impl World for Targets {
    fn expand(&mut self, point: &AttachPoint) -> Result<Option<Vec<Site>>, Missing> {
        self.find(point)
    }

    fn args(&mut self, point: &AttachPoint, types: &mut CTypes) -> Result<Located<StructId>, String> {
        self.arguments(point, types)
    }

    fn retval(&mut self, point: &AttachPoint, types: &mut CTypes) -> Option<Located<Type>> {
        self.value(point, types)
    }

    fn named(&mut self, points: &[AttachPoint], name: &str, types: &mut CTypes) -> Option<Type> {
        self.type_named(points, name, types)
    }

    fn symbol(&mut self, point: &AttachPoint, name: &str) -> Option<Symbol> {
        self.variable(point, name)
    }

    fn import(&mut self, path: &Path) -> Result<Vec<(PathBuf, String)>, String> {
        self.disk.import(path)
    }

    fn header(&mut self, name: &str) -> Option<String> {
        self.disk.header(name)
    }

    fn cgroup_id(&mut self, path: &str) -> Option<u64> {
        self.disk.cgroup_id(path)
    }
}
