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

/// The same, closed by an exec; its length can be sealed.
pub fn memfd(name: &CStr, len_bytes: usize) -> Result<i32, Errno> {
    const CLOEXEC: usize = 1;
    const ALLOW_SEALING: usize = 2;
    let flags = CLOEXEC | ALLOW_SEALING;
    // SAFETY: the kernel copies the string, borrowed for the call.
    let fd = check(unsafe { syscall(nr::MEMFD_CREATE, [name.as_ptr() as usize, flags, 0, 0, 0, 0]) })?;
    // SAFETY: ftruncate takes numbers only, and nobody has mapped the new file.
    check(unsafe { syscall(nr::FTRUNCATE, [fd, len_bytes, 0, 0, 0, 0]) })?;
    Ok(fd as i32)
}

/// Sets the length of a memfd for ever: nobody can make it shorter or longer, and nobody can undo that.
///
/// # Errors
/// EINVAL or EPERM if it is no memfd, or one whose seals are somebody's already: then nothing was changed.
pub fn seal_length(fd: i32, len_bytes: usize) -> Result<(), Errno> {
    const F_ADD_SEALS: usize = 1033;
    const F_GET_SEALS: usize = 1034;
    const SEAL: usize = 1;
    const SHRINK: usize = 2;
    const GROW: usize = 4;
    // SAFETY: fcntl with these commands takes numbers only.
    let seals = check(unsafe { syscall(nr::FCNTL, [fd as usize, F_GET_SEALS, 0, 0, 0, 0]) })?;
    // Files of a tmpfs have the first of these from the beginning.
    if seals & (SEAL | SHRINK | GROW) != 0 {
        return Err(Errno::EPERM);
    }
    // SAFETY: as above; who maps the file is told of its length by this call's caller.
    check(unsafe { syscall(nr::FTRUNCATE, [fd as usize, len_bytes, 0, 0, 0, 0]) })?;
    // SAFETY: as above.
    check(unsafe { syscall(nr::FCNTL, [fd as usize, F_ADD_SEALS, SEAL | SHRINK | GROW, 0, 0, 0]) }).map(drop)
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
    fn a_sealed_length_stays_and_a_file_that_is_no_memfd_is_left_alone() {
        const ALLOW_SEALING: usize = 2;
        // SAFETY: the kernel copies the string.
        let fd =
            check(unsafe { syscall(nr::MEMFD_CREATE, [c"t".as_ptr() as usize, ALLOW_SEALING, 0, 0, 0, 0]) });
        let fd = fd.unwrap();
        seal_length(fd as i32, 8192).unwrap();
        for len in [0, 4096, 1 << 20] {
            // SAFETY: ftruncate takes numbers only.
            let cut = check(unsafe { syscall(nr::FTRUNCATE, [fd, len, 0, 0, 0, 0]) });
            assert_eq!(cut, Err(Errno::EPERM), "{len}");
        }
        assert_eq!(seal_length(fd as i32, 4096), Err(Errno::EPERM), "sealed already");
        let not_sealable = memfd_inheritable(c"test", 4096).unwrap();
        assert_eq!(seal_length(not_sealable, 0), Err(Errno::EPERM));
        close(fd as i32);
        close(not_sealable);
    }

    #[test]
    fn a_new_file_has_its_length_in_zeros() {
        let fd = memfd_inheritable(c"test", 4096).unwrap();
        let map = SharedMapping::of_file(fd, 4096).unwrap();
        // SAFETY: the mapping is 4096 bytes, and nobody else has the file.
        assert_eq!(unsafe { map.base().wrapping_add(4095).read() }, 0);
    }
}
