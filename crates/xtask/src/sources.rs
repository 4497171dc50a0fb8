//! The workspace's Rust files.
//!
//! For:     checks that read sources.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: by its users.

use std::fs;
use std::path::{Path, PathBuf};

/// One file: its path from the workspace's root, and its lines.
pub struct Source {
    pub path: PathBuf,
    pub lines: Vec<String>,
}

impl Source {
    /// The directory of the crate that the file belongs to, as in `crates/rcu`.
    pub fn crate_dir(&self) -> PathBuf {
        self.path.components().take(2).collect()
    }
}

/// The workspace's root.
pub fn root() -> PathBuf {
    // Of the cargo that runs this: the one that built it may have stood elsewhere.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&here).ancestors().nth(2).unwrap_or(Path::new(".")).to_path_buf()
}

/// All files below `crates/*/src`, in a fixed order.
pub fn all() -> Vec<Source> {
    below(&["src"])
}

/// Those of tests too.
pub fn everything() -> Vec<Source> {
    below(&["src", "tests"])
}

fn below(folders: &[&str]) -> Vec<Source> {
    let (root, mut out) = (root(), Vec::new());
    let crates = fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    for dir in crates.map(|entry| entry.path()).filter(|path| !path.ends_with("xtask")) {
        folders.iter().for_each(|folder| collect(&dir.join(folder), &root, &mut out));
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    out
}

fn collect(dir: &Path, root: &Path, out: &mut Vec<Source>) {
    for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, root, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let path = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
            out.push(Source { path, lines: text.lines().map(String::from).collect() });
        }
    }
}
