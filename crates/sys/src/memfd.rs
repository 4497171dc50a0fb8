//! Files without a name.
//!
//! For:     memory that a child inherits.
//! State:   none; the caller owns the descriptor.
//! Context: control.
//! Keeps:   nothing beyond the call.
//! Checked: tests below; `bench trig-*`.

use crate::{Errno, check, nr, syscall};
use core::ffi::CStr;

/// A descriptor of a new file of `len_bytes` zeros that only descriptors lead to; an exec keeps it open.
pub fn memfd_inheritable(name: &CStr, len_bytes: usize) -> Result<i32, Errno> {
    // SAFETY: the kernel copies the string, borrowed for the call.
    let fd = check(unsafe { syscall(nr::MEMFD_CREATE, [name.as_ptr() as usize, 0, 0, 0, 0, 0]) })?;
    // SAFETY: ftruncate takes numbers only, and nobody has mapped the new file.
    check(unsafe { syscall(nr::FTRUNCATE, [fd, len_bytes, 0, 0, 0, 0]) })?;
    Ok(fd as i32)
}

/// The same, closed by an exec.
pub fn memfd(name: &CStr, len_bytes: usize) -> Result<i32, Errno> {
    const CLOEXEC: usize = 1;
    // SAFETY: the kernel copies the string, borrowed for the call.
    let fd = check(unsafe { syscall(nr::MEMFD_CREATE, [name.as_ptr() as usize, CLOEXEC, 0, 0, 0, 0]) })?;
    // SAFETY: ftruncate takes numbers only, and nobody has mapped the new file.
    check(unsafe { syscall(nr::FTRUNCATE, [fd, len_bytes, 0, 0, 0, 0]) })?;
    Ok(fd as i32)
}

/// Closes a descriptor; mappings of its file stay.
pub fn close(fd: i32) {
    // SAFETY: close takes a number; a wrong one is an error that nobody needs.
    let _ = unsafe { syscall(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::SharedMapping;

    #[test]
    fn a_new_file_has_its_length_in_zeros() {
        let fd = memfd_inheritable(c"test", 4096).unwrap();
        let map = SharedMapping::of_file(fd, 4096).unwrap();
        // SAFETY: the mapping is 4096 bytes, and nobody else has the file.
        assert_eq!(unsafe { map.base().wrapping_add(4095).read() }, 0);
    }
}
