//! Imports: which files a script takes in.
//!
//! For:     the checker.
//! State:   none; what was read already is handed in.
//! Context: control.
//! Keeps:   1. A path is imported once.
//! Checked: tests/language.rs.

use crate::ast::Import;
use crate::diagnostic::Diagnostic;
use crate::source::FileId;
use crate::world::World;
use std::path::{Path, PathBuf};

/// How many files a program may have.
pub(crate) const FILES_MAX: usize = 200;

/// The texts of an import that were not read yet.
pub(crate) fn load(
    import: &Import,
    dir: &Path,
    world: &mut dyn World,
    seen: &[(FileId, PathBuf)],
) -> Result<Vec<(PathBuf, String)>, Vec<Diagnostic>> {
    let path = dir.join(&import.path);
    if import.path.ends_with(".c") {
        let message = format!("{}: BPF C sources can't be imported: only .bt and .h files", import.path);
        return Err(vec![Diagnostic::error(import.span, message)]);
    }
    match world.import(&path) {
        Ok(files) => Ok(files.into_iter().filter(|(p, _)| !seen.iter().any(|(_, s)| s == p)).collect()),
        Err(why) => {
            Err(vec![Diagnostic::error(import.span, format!("Failed to import \"{}\": {why}", import.path))])
        }
    }
}
