//! Writing the text of this process, while it runs.
//!
//! For:     breakpoints in process.
//! State:   /proc/self/mem, opened once.
//! Context: target. Not in a hit.
//! Keeps:   L1 bytes are compared before they are replaced. L2 no mapping becomes writable.
//! Checked: `trap`'s tests.

use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::unix::fs::FileExt;

/// This process's text. A forked child must open its own.
#[derive(Debug)]
pub struct OwnText(File);

impl OwnText {
    /// Opens it.
    ///
    /// # Errors
    /// /proc is not there, or writing is not allowed.
    pub fn open() -> Result<OwnText> {
        OpenOptions::new().read(true).write(true).open("/proc/self/mem").map(OwnText)
    }

    /// The byte at an address.
    ///
    /// # Errors
    /// Nothing is mapped there.
    pub fn byte(&self, at: u64) -> Result<u8> {
        let mut byte = [0];
        self.0.read_exact_at(&mut byte, at).map(|()| byte[0])
    }

    /// Reads bytes at an address.
    ///
    /// # Errors
    /// Not all of them are mapped.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.0.read_exact_at(bytes, at)
    }

    /// Writes bytes that nobody executes.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_all_at(bytes, at)
    }

    /// Replaces one byte of code, if it is `old`.
    ///
    /// # Errors
    /// It is another, or cannot be written; nothing was changed.
    pub fn replace(&self, at: u64, old: u8, new: u8) -> Result<()> {
        if self.byte(at)? != old {
            return Err(Error::other("the byte is not what it should be"));
        }
        self.0.write_all_at(&[new], at)
    }
}
