//! The kernel's error numbers as a value.
//!
//! For:     callers that ask which error it was, and messages that name it.
//! State:   none.
//! Context: hit, signal, target, control.
//! Keeps:   `name` and the constants agree, they come from one list.
//! Checked: tests below.

/// An error number as the kernel returned it, positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errno_list {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($value);)*

            /// The symbol of this number, `"E?"` if it is not in the list.
            pub fn name(self) -> &'static str {
                match self.0 { $($value => stringify!($name),)* _ => "E?" }
            }

            /// What it means, in the words of strerror(3).
            pub fn text(self) -> &'static str {
                match self.0 { $($value => $text,)* _ => "unknown error" }
            }
        }
    };
}

errno_list! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    ESRCH = 3, "no such process";
    EINTR = 4, "interrupted system call";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument list too long";
    ENOEXEC = 8, "exec format error";
    EBADF = 9, "bad file descriptor";
    ECHILD = 10, "no child processes";
    EAGAIN = 11, "resource temporarily unavailable";
    ENOMEM = 12, "cannot allocate memory";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    EBUSY = 16, "device or resource busy";
    EEXIST = 17, "file exists";
    ENODEV = 19, "no such device";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files in system";
    EMFILE = 24, "too many open files";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left on device";
    ENOSYS = 38, "function not implemented";
    EOPNOTSUPP = 95, "operation not supported";
    ETIMEDOUT = 110, "connection timed out";
    EALREADY = 114, "operation already in progress";
    EUCLEAN = 117, "structure needs cleaning";
    ENOTSUPP = 524, "operation is not supported";
}

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.name() {
            "E?" => write!(f, "error {}", self.0),
            name => write!(f, "{} ({name})", self.text()),
        }
    }
}

impl core::fmt::Debug for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl core::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::ToString;

    #[test]
    fn an_error_names_itself_in_words_and_by_symbol() {
        assert_eq!(Errno::ESRCH.to_string(), "no such process (ESRCH)");
        assert_eq!(Errno(9999).to_string(), "error 9999");
    }
}
