//! Source lines.
//!
//! For:     `uprobe:FILE@SOURCE:LINE`.
//! State:   none.
//! Context: control.
//! Keeps:   L1 only first instructions of statements are given.
//! Checked: dwarf/tests.rs.

use super::DebugInfo;
use crate::ImageAddr;
use gimli::ColumnType;
use std::path::{Component, Path, PathBuf};

/// Rows of one file's line tables.
const ROWS_MAX: usize = 20_000_000;
/// Lines that a message names.
const NEAR: usize = 3;

impl DebugInfo {
    /// Where the statements of a source line begin, the first of each run of them; `source` may be the end of the path.
    ///
    /// # Errors
    /// The nearest lines that have statements; none: no such source file.
    pub fn line(&self, source: &str, line: u32, column: Option<u32>) -> Result<Vec<ImageAddr>, Vec<u32>> {
        let (mut found, mut others) = (Vec::new(), Vec::new());
        let mut left = ROWS_MAX;
        for &unit in &self.files[0].units {
            self.with_unit(0, unit, |dwarf, unit| {
                let Some(program) = unit.line_program.clone() else { return };
                let files = wanted_files(dwarf, unit, source);
                if files.is_empty() {
                    return;
                }
                let mut rows = program.rows();
                let mut is_in_line = false;
                while let Ok(Some((_, row))) = rows.next_row() {
                    left = left.saturating_sub(1);
                    if left == 0 {
                        return;
                    }
                    let here = row.line().map_or(0, |n| n.get() as u32);
                    let is_file = files.contains(&row.file_index()) && !row.end_sequence();
                    if is_file && row.is_stmt() {
                        others.push(here);
                    }
                    let column_fits = match (column, row.column()) {
                        (None, _) => true,
                        (Some(wanted), ColumnType::Column(n)) => n.get() == u64::from(wanted),
                        (Some(_), ColumnType::LeftEdge) => false,
                    };
                    let fits = is_file && here == line && column_fits;
                    if fits && row.is_stmt() && !is_in_line {
                        found.push(ImageAddr(row.address()));
                    }
                    is_in_line = fits;
                }
            });
        }
        found.sort_unstable();
        found.dedup();
        if !found.is_empty() {
            return Ok(found);
        }
        others.retain(|n| *n > 0);
        others.sort_unstable_by_key(|n| (n.abs_diff(line), *n));
        others.dedup();
        others.truncate(NEAR);
        Err(others)
    }
}

/// Numbers of the files of a unit's line table that are meant.
fn wanted_files(dwarf: &super::Dwarf<'_>, unit: &super::Unit<'_>, source: &str) -> Vec<u64> {
    let Some(program) = &unit.line_program else { return Vec::new() };
    let header = program.header();
    let text = |value| dwarf.attr_string(unit, value).ok().map(|t| t.to_string_lossy().into_owned());
    let comp_dir = unit.comp_dir.map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default();
    let first = u64::from(header.version() < 5);
    let count = header.file_names().len() as u64;
    let fits = |number: &u64| {
        let Some(file) = header.file(*number) else { return false };
        let Some(name) = text(file.path_name()) else { return false };
        let dir = file.directory(header).and_then(text).unwrap_or_default();
        is_same(&PathBuf::from(&comp_dir).join(dir).join(name), Path::new(source))
    };
    (first..first + count).filter(fits).collect()
}

/// A path, and one that may be its end.
fn is_same(path: &Path, asked: &Path) -> bool {
    let plain = |path: &Path| -> Vec<String> {
        let mut parts = Vec::new();
        for part in path.components() {
            match part {
                Component::ParentDir => drop(parts.pop()),
                Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
                _ => {}
            }
        }
        parts
    };
    let (path, asked) = (plain(path), plain(asked));
    !asked.is_empty() && path.ends_with(&asked)
}
