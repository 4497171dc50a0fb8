//! The library that the target loads and unloads.
//!
//! For:     the dlopen role.
//! State:   a directory of our own, removed when the run is over.
//! Context: control.
//! Keeps:   L1 dropped, the directory is gone.
//! Checked: `tests/uprobe_live.rs`.

use crate::uprobe::stressed::loading::source;
use std::path::PathBuf;
use std::process::Command;

/// A library that the system's C compiler has made.
pub struct Library {
    directory: PathBuf,
    pub path: PathBuf,
}

impl Library {
    /// Compiles it.
    ///
    /// # Errors
    /// There is no compiler, or it says no.
    pub fn build() -> Result<Library, String> {
        let directory = std::env::temp_dir().join(format!("nanoprobe-torture-{}", std::process::id()));
        std::fs::create_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        let library = Library { path: directory.join("libstress.so"), directory };
        let source_path = library.directory.join("stress.c");
        std::fs::write(&source_path, source()).map_err(|e| e.to_string())?;
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-shared", "-fPIC", "-falign-functions=32", "-o"])
            .arg(&library.path)
            .arg(&source_path);
        let output = cc.output().map_err(|e| format!("no C compiler: {e}"))?;
        match output.status.success() {
            true => Ok(library),
            false => Err(format!("cc: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
