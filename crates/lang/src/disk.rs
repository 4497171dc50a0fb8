//! Imports and headers from the disk.
//!
//! For:     the command line; debug information is asked of whoever wraps it.
//! State:   where headers are looked for.
//! Context: control.
//! Keeps:   1. Nothing is imported from a directory into which everyone may write: another user would write our script.
//!          2. At most [`LEN_MAX`] bytes of a file are read.
//! Checked: tests below.

use crate::world::World;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How long an imported file or header may be.
const LEN_MAX: u64 = 4 << 20;

/// Where the system's headers are.
const SYSTEM: [&str; 2] = ["/usr/include", "/usr/include/x86_64-linux-gnu"];

/// A [`World`] of files.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// Searched for headers before the system's directories: `-I`, the script's own.
    pub include: Vec<PathBuf>,
}

impl World for Disk {
    fn import(&mut self, path: &Path) -> Result<Vec<(PathBuf, String)>, String> {
        let dir = std::fs::metadata(path).map_err(|e| e.to_string())?.is_dir();
        let holder = match path.parent() {
            _ if dir => path,
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mode = std::fs::metadata(holder).map_err(|e| e.to_string())?.mode();
        // In a directory like /tmp only its owner replaces a file; a whole such directory is everyone's.
        let is_kept = mode & 0o1000 != 0 && !dir;
        if mode & 0o002 != 0 && !is_kept {
            let holder = holder.display();
            return Err(format!("everyone may write into {holder}: chmod o-w {holder}, or move the file"));
        }
        if !dir {
            return Ok(vec![(path.to_path_buf(), text_of(path)?)]);
        }
        let mut paths: Vec<PathBuf> = std::fs::read_dir(path)
            .map_err(|e| e.to_string())?
            .filter_map(|entry| entry.ok().map(|e| e.path()))
            .filter(|p| p.extension().is_some_and(|e| e == "bt" || e == "h"))
            .collect();
        paths.sort();
        paths.into_iter().map(|p| Ok((p.clone(), text_of(&p)?))).collect()
    }

    fn header(&mut self, name: &str) -> Option<String> {
        let system = SYSTEM.iter().map(PathBuf::from);
        self.include.iter().cloned().chain(system).find_map(|dir| text_of(&dir.join(name)).ok())
    }

    fn cgroup_id(&mut self, path: &str) -> Option<u64> {
        // The number of its directory; other directories have numbers too.
        let path = Path::new(path);
        path.join("cgroup.procs")
            .exists()
            .then(|| std::fs::metadata(path).ok())
            .flatten()
            .map(|meta| meta.ino())
    }
}

fn text_of(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    if !file.metadata().map_err(|e| e.to_string())?.is_file() {
        return Err(format!("{} is no file", path.display()));
    }
    let read = file.take(LEN_MAX + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if read as u64 > LEN_MAX {
        return Err(format!("{} is longer than {LEN_MAX} bytes", path.display()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Request, check};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_and_directories_are_imported_but_not_from_where_everyone_writes() {
        let dir = std::env::temp_dir().join(format!("nanoprobe-lang-{}", std::process::id()));
        let lib = dir.join("lib");
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::write(lib.join("a.bt"), "macro one() { 1 }").unwrap();
        std::fs::write(lib.join("b.h"), "struct S { int x; };").unwrap();
        std::fs::write(lib.join("c.txt"), "not read").unwrap();
        let mut request = Request::of("import \"lib\"; begin { print(one + sizeof(struct S)); }");
        request.dir.clone_from(&dir);
        let outcome = check(&request, &mut Disk::default());
        std::fs::set_permissions(&lib, std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = check(&request, &mut Disk::default());
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
        assert!(refused.unwrap_err().show().contains("everyone may write into"));
    }

    #[test]
    fn a_header_gives_its_constants_or_is_missed_by_name() {
        let program =
            check(&Request::of("#include <errno.h>\nbegin { print(EPERM); }"), &mut Disk::default());
        assert!(program.is_ok(), "{}", program.unwrap_err());
        let refused =
            check(&Request::of("#include <lol/no.h>\nbegin { }"), &mut Disk::default()).unwrap_err();
        assert!(refused.show().contains("fatal error: 'lol/no.h' file not found"), "{}", refused.show());
    }
}
