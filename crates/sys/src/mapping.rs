//! Mappings: of a file, shared; of nothing, private.
//!
//! For:     the arena that controller and target both see, and one of a process alone.
//! State:   one mapping, unmapped on drop.
//! Context: control.
//! Keeps:   M1 the bytes stay mapped while the value lives.
//! Checked: session's tests.

use crate::{Errno, check, nr, syscall};
use core::ptr::NonNull;

/// Readable.
pub const PROT_READ: usize = 1;
/// Writable.
pub const PROT_WRITE: usize = 2;
/// Executable.
pub const PROT_EXEC: usize = 4;
/// Shared with all who map the file.
pub const MAP_SHARED: usize = 1;
/// Changes stay with the process.
pub const MAP_PRIVATE: usize = 2;
/// No file behind it.
pub const MAP_ANONYMOUS: usize = 0x20;
/// At the given address, in the place of what is there.
pub const MAP_FIXED: usize = 0x10;
/// At the given address, or an error if something is there.
pub const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
/// No swap is set aside for it.
pub const MAP_NORESERVE: usize = 0x4000;
/// madvise: the pages go back to the system and read as zeros.
pub const MADV_DONTNEED: usize = 4;
/// madvise: the same for pages of a shared file, which loses them.
pub const MADV_REMOVE: usize = 9;
/// madvise: a forked child has no such mapping.
pub const MADV_DONTFORK: usize = 10;
/// madvise: a forked child finds the pages zeroed.
pub const MADV_WIPEONFORK: usize = 18;

/// A file's bytes, mapped shared, readable and writable.
#[derive(Debug)]
pub struct SharedMapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory that any thread may use; who reads and writes which bytes
// is settled by the users of `base`, through atomics.
unsafe impl Send for SharedMapping {}
// SAFETY: as above; a shared reference gives out a raw pointer and a length only.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps the first `len` bytes of the file behind `fd`.
    pub fn of_file(fd: i32, len: usize) -> Result<SharedMapping, Errno> {
        let args = [0, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd as usize, 0];
        // SAFETY: the kernel picks a free address, so no live memory is replaced.
        let base = check(unsafe { syscall(nr::MMAP, args) })?;
        let base = NonNull::new(base as *mut u8).ok_or(Errno::ENOMEM)?;
        Ok(SharedMapping { base, len })
    }

    /// Maps `len` bytes from `offset` of the file behind `fd`, which are only to be read: `base` must not be written.
    pub fn of_file_to_read(fd: i32, offset: usize, len: usize) -> Result<SharedMapping, Errno> {
        let args = [0, len, PROT_READ, MAP_SHARED, fd as usize, offset];
        // SAFETY: as in `of_file`.
        let base = check(unsafe { syscall(nr::MMAP, args) })?;
        let base = NonNull::new(base as *mut u8).ok_or(Errno::ENOMEM)?;
        Ok(SharedMapping { base, len })
    }

    /// Leaves the mapping out of what a forked child of this process gets: a child that uses it meets SIGSEGV.
    pub fn keep_from_children(&self) -> Result<(), Errno> {
        let args = [self.base.as_ptr() as usize, self.len, MADV_DONTFORK, 0, 0, 0];
        // SAFETY: nothing changes in this process.
        check(unsafe { syscall(nr::MADVISE, args) }).map(drop)
    }

    /// Where it starts in this process.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How many bytes are mapped.
    pub fn len_bytes(&self) -> usize {
        self.len
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are what mmap gave, and the value is gone after this, so
        // nothing derived from it may be used any more (contract of `base`).
        let _ = unsafe { syscall(nr::MUNMAP, [self.base.as_ptr() as usize, self.len, 0, 0, 0, 0]) };
    }
}

/// Zeros that belong to this process alone, readable and writable.
#[derive(Debug)]
pub struct PrivateMapping(SharedMapping);

impl PrivateMapping {
    /// Maps `len` zeros; pages are taken from the system when they are first touched.
    pub fn new(len: usize) -> Result<PrivateMapping, Errno> {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        let args = [0, len, PROT_READ | PROT_WRITE, flags, usize::MAX, 0];
        // SAFETY: the kernel picks a free address, so no live memory is replaced.
        let base = check(unsafe { syscall(nr::MMAP, args) })?;
        let base = NonNull::new(base as *mut u8).ok_or(Errno::ENOMEM)?;
        Ok(PrivateMapping(SharedMapping { base, len }))
    }

    /// Where it starts.
    pub fn base(&self) -> *mut u8 {
        self.0.base()
    }

    /// How many bytes are mapped.
    pub fn len_bytes(&self) -> usize {
        self.0.len_bytes()
    }
}

/// Maps `len` bytes at `at`, or anywhere if that is 0, as mmap(2) does with these arguments; where it is.
///
/// # Safety
/// With [`MAP_FIXED`], what is mapped there must be the caller's to give up.
pub unsafe fn map(at: u64, len: usize, prot: usize, flags: usize, fd: i32) -> Result<u64, Errno> {
    // SAFETY: without MAP_FIXED nothing is replaced; with it, by the caller's duty.
    let base = check(unsafe { syscall(nr::MMAP, [at as usize, len, prot, flags, fd as usize, 0]) })?;
    Ok(base as u64)
}

/// Unmaps `len` bytes at `at`.
///
/// # Safety
/// Nothing there may be used any more.
pub unsafe fn unmap(at: u64, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's duty.
    check(unsafe { syscall(nr::MUNMAP, [at as usize, len, 0, 0, 0, 0]) }).map(drop)
}

/// Sets what may be done with `len` bytes at `at`.
///
/// # Safety
/// Whoever uses the range afterwards must do no more than `prot` says.
pub unsafe fn protect(at: u64, len: usize, prot: usize) -> Result<(), Errno> {
    // SAFETY: the caller's duty.
    check(unsafe { syscall(nr::MPROTECT, [at as usize, len, prot, 0, 0, 0]) }).map(drop)
}

/// Gives whole pages back to the system; they read as zeros afterwards. `advice` as for madvise(2).
///
/// # Safety
/// Nothing in the range may be in use, and `advice` must be `MADV_DONTNEED` or `MADV_REMOVE`.
pub unsafe fn discard(start: *mut u8, len: usize, advice: usize) -> Result<(), Errno> {
    // SAFETY: the caller gives the pages up; these two advices change nothing else.
    check(unsafe { syscall(nr::MADVISE, [start as usize, len, advice, 0, 0, 0]) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_pages_read_as_zeros() {
        let map = PrivateMapping::new(8192).unwrap();
        let byte = map.base().wrapping_add(5000);
        // SAFETY: inside the mapping, which is this test's.
        unsafe { byte.write(7) };
        // SAFETY: nothing of the page is used.
        unsafe { discard(map.base().wrapping_add(4096), 4096, MADV_DONTNEED) }.unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { byte.read() }, 0);
    }
}
