//! Files that are no program for this machine: one line that names the cause, soon.
//!
//! For:     `list` and `explain` of whatever a user's shell completes to.
//! Keeps:   exit 1, one line, the cause by name, no hang, whatever the length that the file claims.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use testkit::{Error, Nanoprobe, Result};

/// A directory that goes when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("nanoprobe-files-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(Error::io("scratch directory"))?;
        Ok(Scratch(path))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::write(&path, bytes).map_err(Error::io("scratch file"))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// This test itself with one byte of its ELF header changed.
fn changed(at: usize, to: u8) -> Result<Vec<u8>> {
    let own = std::env::current_exe().and_then(fs::read);
    let mut bytes = own.map_err(Error::io("this test"))?;
    bytes[at] = to;
    Ok(bytes)
}

fn is_refused(path: &Path, why: &str) -> Result<()> {
    for verb in ["list", "explain"] {
        let spec = format!("u:{}:*", path.display());
        let started = Instant::now();
        let outcome = Nanoprobe::find()?.run([verb, &spec])?;
        assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(1), ""), "{spec}: {outcome}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{spec}: {outcome}");
        assert!(outcome.stderr.contains(why), "{spec}: {outcome}");
        // Generous: the machine may be busy. A read of all that a file claims takes minutes.
        assert!(started.elapsed() < Duration::from_secs(60), "{spec}");
    }
    Ok(())
}

#[test]
fn what_is_no_program_for_this_machine_is_refused_in_one_line() -> Result<()> {
    let scratch = Scratch::new()?;
    is_refused(Path::new("/etc/passwd"), "is not an ELF file")?;
    is_refused(&scratch.put("empty", b"")?, "is not an ELF file")?;
    is_refused(&scratch.0, "it is a directory")?;
    is_refused(Path::new("/dev/zero"), "it is a device")?;
    let fifo = scratch.0.join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.map_err(Error::io("mkfifo"))?.success());
    is_refused(&fifo, "it is a FIFO")?;
    // Class, machine and type, where the header has them.
    is_refused(&scratch.put("other-class", &changed(4, 1)?)?, "is a 32-bit")?;
    // RISC-V; files of AArch64 are looked at on every machine.
    is_refused(&scratch.put("other-machine", &changed(18, 243)?)?, "another machine (ELF number 243)")?;
    is_refused(&scratch.put("object.o", &changed(16, 1)?)?, "it is an object file")?;
    is_refused(&scratch.put("core", &changed(16, 4)?)?, "it is a core file")?;
    let sparse = scratch.put("sparse", &changed(16, 3)?[..4096])?;
    let file = fs::File::options().write(true).open(&sparse).map_err(Error::io("sparse"))?;
    file.set_len(100 << 30).map_err(Error::io("sparse"))?;
    is_refused(&sparse, "it is longer than 4 GiB")
}
