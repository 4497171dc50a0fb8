//! What is mapped in a process.
//!
//! For:     everybody who looks at a process's memory.
//! State:   none; each call reads anew.
//! Context: control.
//! Keeps:   A1 a list without a line is nobody's memory: it is an error, and never taken for one in which nothing is mapped.
//! Checked: testkit `refusals`, `endings`.

use crate::facts::error::Broken;
use crate::facts::inject;
use crate::find::process;
use image::{Addr, ImageError, Mapping};

/// The mapping that holds an address.
pub(crate) fn mapping_at(mappings: &[Mapping], addr: u64) -> Option<&Mapping> {
    mappings.iter().find(|m| m.range.contains(&Addr(addr)))
}

/// Its mappings now.
///
/// # Errors
/// It is gone, or they cannot be read.
pub(crate) fn image_maps(pid: i32) -> Result<Vec<Mapping>, Broken> {
    /// The thread by which we look may end at this moment: then there is nothing to be seen.
    const TRIES: usize = 8;
    inject::step().map_err(|errno| Broken::Proc { path: format!("/proc/{pid}/maps"), errno })?;
    for _ in 0..TRIES {
        match image::maps::read_maps(pid as u32) {
            Ok(maps) if !maps.is_empty() => return Ok(maps),
            _ if process::is_over(pid) => return Err(Broken::Gone { pid }),
            Ok(_) => {}
            Err(ImageError::Io { path, source }) => {
                return Err(Broken::unreadable(path.display().to_string(), &source));
            }
            Err(e) => return Err(Broken::File { path: format!("/proc/{pid}/maps"), why: e.to_string() }),
        }
    }
    Err(Broken::Proc { path: format!("/proc/{pid}/maps"), errno: sys::Errno::ENOENT })
}
