//! How a process comes to share the maps of others.
//!
//! For:     the attach, when everything is mapped.
//! State:   none: descriptors are open for as long as the process stands.
//! Context: control; system calls are made by a stopped thread of the target.
//! Keeps:   J1 the process gets the file by a socket of its own: no path leads to it, it may be of another user than we and have
//!             another `/proc`.
//!          J2 a process comes in only if it has the rights of those that are there: it could as well trace them.
//!          J3 every descriptor opened in the target is closed before the thread runs on.
//! Checked: testkit `together`; `inject` (J3).

use crate::enter::arena::{Arena, Member};
use crate::enter::belief::RESERVED_OFFSET;
use crate::facts::descriptor::owned;
use crate::facts::error::Broken;
use crate::facts::family::FamilyMaps;
use crate::find::process;
use crate::hold::remote::Remote;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use sys::mapping as mm;
use sys::{Errno, PidFd, nr};

const AF_UNIX: u64 = 1;
const SOCK_DGRAM: u64 = 2;
const SOCK_CLOEXEC: u64 = 0o2_000_000;
const MSG_DONTWAIT: u64 = 0x40;
const MSG_CMSG_CLOEXEC: u64 = 0x4000_0000;
/// A control message with one descriptor: its length; SOL_SOCKET and SCM_RIGHTS.
const ONE_DESCRIPTOR: [u64; 2] = [20, 1 << 32 | 1];

/// Words of a message in the arena: two sockets, a `msghdr`, an `iovec`, a control message, a byte.
const SOCKETS: usize = 0;
const HEADER: usize = 1;
const VECTOR: usize = 8;
const CONTROL: usize = 10;
const BYTE: usize = 13;
const WORDS: usize = 14;

/// Maps these maps in the process of an arena, and writes down where.
pub(crate) fn join(
    remote: &mut Remote<'_>,
    arena: &mut Arena,
    fd: u64,
    maps: &FamilyMaps,
) -> Result<(), Broken> {
    let (tid, len) = (remote.tid(), maps.len() as u64);
    let pid = process::Status::of_any(tid)?.map_or(tid, |status| status.tgid);
    maps.admit(pid, rights(tid)?).map_err(|first| Broken::OtherRights { pid, first })?;
    // First by the arena's file, which tells that it is ours; then, once the header names it, by what is wanted there.
    let at = remote.call("mmap", nr::MMAP, [0, len, 0, mm::MAP_SHARED as u64, fd, RESERVED_OFFSET])?;
    arena.announce_maps(at..at + len);
    let given = give(remote, arena, pid, maps.descriptor())?;
    let (prot, flags) = (mm::PROT_READ | mm::PROT_WRITE, mm::MAP_SHARED | mm::MAP_FIXED);
    let mapped = remote.call("mmap", nr::MMAP, [at, len, prot as u64, flags as u64, given, 0]);
    remote.close(given)?;
    mapped?;
    arena.member = Some(Member { maps: maps.clone(), remote: at, number: maps.number() });
    Ok(())
}

/// What a process may do, as far as the kernel tells: users, groups, capabilities, filters, in which user namespace.
fn rights(tid: i32) -> Result<String, Broken> {
    let path = |name: &str| format!("/proc/{tid}/{name}");
    let status = fs::read(path("status")).map_err(|e| Broken::unreadable(path("status"), &e))?;
    let namespace = fs::read_link(path("ns/user")).map_err(|e| Broken::unreadable(path("ns/user"), &e))?;
    let status = String::from_utf8_lossy(&status);
    let names = ["Uid:", "Gid:", "Groups:", "CapPrm:", "CapEff:", "Seccomp:", "Seccomp_filters:"];
    let lines = status.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
    let lines: Vec<&str> = lines.collect();
    Ok(format!("{} {}", namespace.display(), lines.join(" ")))
}

/// Gives the process of a stopped thread a descriptor of ours; its number there.
fn give(remote: &mut Remote<'_>, arena: &Arena, pid: i32, fd: i32) -> Result<u64, Broken> {
    let done = give_by(remote, arena, pid, fd);
    // Nothing is counted there yet.
    (0..WORDS).for_each(|n| arena.note(n, 0));
    done
}

fn give_by(remote: &mut Remote<'_>, arena: &Arena, pid: i32, fd: i32) -> Result<u64, Broken> {
    let at = |word: usize| arena.note_in_target(word);
    let kind = SOCK_DGRAM | SOCK_CLOEXEC;
    remote.call("socketpair", nr::SOCKETPAIR, [AF_UNIX, kind, 0, at(SOCKETS), 0, 0])?;
    let sockets = arena.noted(SOCKETS);
    let (ours, theirs) = (sockets & 0xffff_ffff, sockets >> 32);
    let sent = send(remote.tid(), pid, ours as i32, fd);
    let header = [0, 0, at(VECTOR), 1, at(CONTROL), 24, 0];
    header.into_iter().enumerate().for_each(|(n, word)| arena.note(HEADER + n, word));
    arena.note(VECTOR, at(BYTE));
    arena.note(VECTOR + 1, 1);
    let received = sent.and_then(|()| {
        let flags = MSG_DONTWAIT | MSG_CMSG_CLOEXEC;
        remote.call("recvmsg", nr::RECVMSG, [theirs, at(HEADER), flags, 0, 0, 0]).map(drop)
    });
    let closed = [ours, theirs].map(|socket| remote.close(socket));
    received?;
    if [arena.noted(CONTROL), arena.noted(CONTROL + 1)] != ONE_DESCRIPTOR {
        // A security module may keep it.
        return Err(Broken::Call { what: "giving the maps to the process", errno: Errno::EPERM });
    }
    let given = arena.noted(CONTROL + 2) & 0xffff_ffff;
    match closed.into_iter().collect::<Result<(), Broken>>() {
        Ok(()) => Ok(given),
        Err(broken) => remote.close(given).and(Err(broken)),
    }
}

/// Sends a descriptor of ours by a socket of the process.
fn send(tid: i32, pid: i32, socket: i32, fd: i32) -> Result<(), Broken> {
    let call = |errno| Broken::Call { what: "giving the maps to the process", errno };
    let socket_there = fs::metadata(format!("/proc/{tid}/fd/{socket}"));
    let taken = owned(PidFd::open(pid).and_then(|process| process.take(socket))).map_err(call)?;
    let taken = fs::File::from(taken);
    // A thread may have descriptors of its own, and who shares them does not stand.
    let both = taken.metadata().ok().zip(socket_there.ok());
    let is_it = both.is_some_and(|(taken, there)| (taken.dev(), taken.ino()) == (there.dev(), there.ino()));
    if !is_it {
        return Err(call(Errno::EBADF));
    }
    sys::send_descriptor(taken.as_raw_fd(), fd).map_err(call)
}
