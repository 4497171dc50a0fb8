//! Descriptors that go from one process to another.
//!
//! For:     memory that processes of different users share.
//! State:   none.
//! Context: control.
//! Keeps:   nothing beyond the call.
//! Checked: tests below.

use crate::{Errno, check, nr, syscall};

/// What sendmsg(2) takes.
#[repr(C)]
struct Message {
    name: usize,
    name_len: usize,
    vector: *const Piece,
    pieces: usize,
    control: *const Control,
    control_len: usize,
    flags: usize,
}

#[repr(C)]
struct Piece {
    base: *const u8,
    len: usize,
}

#[repr(C, align(8))]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    fd: i32,
}

/// Sends a descriptor, with one byte, by a connected Unix socket; does not wait.
///
/// # Errors
/// `EAGAIN` the other side has not read what came before; else as sendmsg(2).
pub fn send_descriptor(socket: i32, fd: i32) -> Result<(), Errno> {
    const SOL_SOCKET: i32 = 1;
    const SCM_RIGHTS: i32 = 1;
    const DONTWAIT: usize = 0x40;
    const NOSIGNAL: usize = 0x4000;
    let byte = 0u8;
    let piece = Piece { base: &raw const byte, len: 1 };
    let control = Control { len: 20, level: SOL_SOCKET, kind: SCM_RIGHTS, fd };
    let message = Message {
        name: 0,
        name_len: 0,
        vector: &raw const piece,
        pieces: 1,
        control: &raw const control,
        control_len: size_of::<Control>(),
        flags: 0,
    };
    let args = [socket as usize, &raw const message as usize, DONTWAIT | NOSIGNAL, 0, 0, 0];
    // SAFETY: the kernel reads the message, its piece and its control message, which outlive the call.
    check(unsafe { syscall(nr::SENDMSG, args) }).map(drop)
}

#[cfg(all(test, not(miri)))]
mod tests {
    extern crate std;
    use super::*;
    use crate::PidFd;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_descriptor_is_taken_from_a_process_and_sent_through_what_was_taken() {
        let (one, other) = UnixDatagram::pair().unwrap();
        let own = PidFd::open(crate::getpid().cast_signed()).unwrap();
        let taken = own.take(one.as_raw_fd()).unwrap();
        let file = std::fs::File::open("/proc/self/status").unwrap();
        send_descriptor(taken, file.as_raw_fd()).unwrap();
        let mut byte = [9];
        assert_eq!((other.recv(&mut byte).unwrap(), byte), (1, [0]));
        assert_eq!(own.take(-1).map(drop), Err(Errno::EBADF));
        assert!(send_descriptor(taken, -1).is_err());
        crate::close(taken);
    }
}
