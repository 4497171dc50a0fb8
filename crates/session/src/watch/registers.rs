//! Who has which debug registers of a process's threads.
//!
//! For:     `Hard`, which is told who has them before the kernel is asked, which names nobody.
//! State:   what each watch holds, in a file without a name. Others find it among the descriptors of who holds it, so that
//!          it ends with its holder, however that ends, and nothing stale is ever found.
//! Context: control, in a stop of the process: nanoprobes at one process take turns.
//! Keeps:   A1 what is claimed is held: a claim is made after the kernel has given the registers, and ends before they are
//!             given back.
//!          A2 a claim is believed only of a process that has perf events and belongs to root or to the user whose process
//!             it claims: who could take the registers as well.
//!          A3 what another process has written is read once, out of a memfd and nothing else, and refused if it is not as it
//!             has to be.
//!          A4 a process that cannot be told for sure, in another pid namespace, is nobody's: then the kernel is asked.
//! Checked: tests below, against the kernel's own answers; testkit `watching`.
//!
//! Not in the accounts, as nobody can see them: perf events of other programs, and those for all that runs on a CPU. Before
//! Linux 5.14 the kernel does not say which file a descriptor is, and no claim is believed.

use super::{Access, Watch, WatchError};
use crate::arch;
use crate::facts::descriptor::owned;
use crate::find::process::{self, ENGINE_NAME, Status};
use crate::hold::world::World;
use hwbp::{Accounts, EngineKind, Kind, Machine, Place, Pools, Refused, Request};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::OnceLock;

/// Its name in /proc/PID/fd.
const NAME: &str = "nanoprobe-registers";
const MAGIC: u64 = u64::from_le_bytes(*b"nprobeR1");
/// Words: magic, pid namespace, how many processes and watches.
const HEADER: usize = 4;
/// More processes do not share a memory, and no CPU has more registers.
const PROCESSES_MAX: usize = 64;
const REGISTERS: usize = arch::WATCHES_MAX;
const LEN_MAX: usize = 8 * (HEADER + 2 * PROCESSES_MAX + 2 * REGISTERS);

/// Debug registers that are held, for as long as this lives.
#[derive(Debug)]
pub(super) struct Claim(File);

impl Claim {
    /// Writes down that all threads of the processes that stand here, and those that they will start, have these watches.
    /// `None` if there is no room for a file: then others are not told.
    pub fn of(world: &World, watches: &[Watch]) -> Option<Claim> {
        let name = std::ffi::CString::new(NAME).ok()?;
        let file = File::from(owned(sys::memfd(&name, LEN_MAX)).ok()?);
        let groups: BTreeSet<i32> = world.threads().map(|t| t.group).collect();
        let processes: Vec<(u64, u64)> = groups.into_iter().filter_map(number_and_start).collect();
        let held = Held {
            namespace: process::pid_namespace(),
            processes,
            watches: watches.iter().map(place).collect(),
        };
        file.write_all_at(&held.bytes(), 8).ok()?;
        // Whoever reads it before has read nothing.
        file.write_all_at(&MAGIC.to_le_bytes(), 0).ok()?;
        Some(Claim(file))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = self.0.write_all_at(&[0; 8], 0);
    }
}

fn number_and_start(pid: i32) -> Option<(u64, u64)> {
    Some((pid as u64, process::start_time(pid)?))
}

/// An address, and how many bytes.
fn place(watch: &Watch) -> (u64, u64) {
    let access = u64::from(watch.access == Access::ReadWrite);
    (watch.addr, u64::from(watch.len) | access << 32)
}

/// What a claim says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    /// Of the process numbers, by inode.
    namespace: u64,
    /// By number and start.
    processes: Vec<(u64, u64)>,
    /// By address, and length with access.
    watches: Vec<(u64, u64)>,
}

impl Held {
    /// All but the magic.
    fn bytes(&self) -> Vec<u8> {
        let processes = &self.processes[..self.processes.len().min(PROCESSES_MAX)];
        let counts = [self.namespace, processes.len() as u64, self.watches.len() as u64];
        let pairs = processes.iter().chain(&self.watches).flat_map(|(a, b)| [*a, *b]);
        counts.into_iter().chain(pairs).flat_map(u64::to_le_bytes).collect()
    }

    /// From a whole file, if it is as it has to be.
    fn parse(bytes: &[u8]) -> Option<Held> {
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default())).collect();
        let [MAGIC, namespace, processes, watches, rest @ ..] = words.as_slice() else { return None };
        let (processes, watches) = (usize::try_from(*processes).ok()?, usize::try_from(*watches).ok()?);
        if processes > PROCESSES_MAX || watches > REGISTERS {
            return None;
        }
        let pairs: Vec<(u64, u64)> = rest.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let watches = pairs.get(processes..processes + watches)?.to_vec();
        Some(Held { namespace: *namespace, processes: pairs[..processes].to_vec(), watches })
    }
}

/// A claim of another process or of this one, and whose it is.
#[derive(Debug)]
struct Found {
    holder: i32,
    uid: u32,
    held: Held,
}

/// The claims of all nanoprobes that we see.
///
/// Who they are is found out before the stop, and only newcomers are looked at in it.
#[derive(Debug, Default)]
pub(super) struct Others {
    seen: BTreeSet<i32>,
    nanoprobes: Vec<i32>,
}

impl Others {
    /// Looks for nanoprobes among processes not seen before.
    pub fn look(&mut self) {
        for pid in process::all().unwrap_or_default() {
            if self.seen.insert(pid) && is_nanoprobe(pid) {
                self.nanoprobes.push(pid);
            }
        }
    }

    fn claims(&self) -> Vec<Found> {
        // A descriptor that is in several processes is one claim.
        let mut files = BTreeSet::new();
        self.nanoprobes.iter().flat_map(|pid| claims_of(*pid, &mut files)).collect()
    }
}

fn is_nanoprobe(pid: i32) -> bool {
    let name = process::name(pid);
    // The engine is called otherwise at first.
    pid == sys::getpid().cast_signed() || name == ENGINE_NAME || name == "nanoprobe"
}

fn claims_of(pid: i32, files: &mut BTreeSet<u64>) -> Vec<Found> {
    let marker = format!("/memfd:{NAME} (deleted)");
    let Ok(Some(status)) = Status::of(pid) else { return Vec::new() };
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let mut events = 0;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        events += usize::from(link.as_os_str() == "anon_inode:[perf_event]");
        if link.as_os_str() != marker.as_str() {
            continue;
        }
        let held = entry.file_name().to_str().and_then(|fd| read_claim(pid, fd, files));
        found.extend(held.map(|held| Found { holder: pid, uid: status.uid, held }));
    }
    found.retain(|claim| claim.held.watches.len() <= events);
    found
}

/// Reads a claim, unless it was read before. A file of another kind may have the same name, a FIFO that would keep us or one of a
/// file system that the process serves itself: so it is looked at by what the kernel says of it, and not opened.
fn read_claim(pid: i32, fd: &str, files: &mut BTreeSet<u64>) -> Option<Held> {
    static MEMFDS: OnceLock<Option<u64>> = OnceLock::new();
    let own_mount = || {
        let file = owned(sys::memfd(c"mount", 0)).ok()?;
        Some(mount_and_inode("self", &file.as_raw_fd().to_string())?.0)
    };
    let (mount, inode) = mount_and_inode(&pid.to_string(), fd)?;
    if *MEMFDS.get_or_init(own_mount) != Some(mount) || !files.insert(inode) {
        return None;
    }
    let mut bytes = [0u8; LEN_MAX];
    let file = File::open(format!("/proc/{pid}/fd/{fd}")).ok()?;
    file.read_exact_at(&mut bytes, 0).ok()?;
    Held::parse(&bytes)
}

/// All memfds are of one mount, which has nothing else.
fn mount_and_inode(process: &str, fd: &str) -> Option<(u64, u64)> {
    let info = fs::read_to_string(format!("/proc/{process}/fdinfo/{fd}")).ok()?;
    let number = |key: &str| info.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    Some((number("mnt_id:")?, number("ino:")?))
}

/// What is taken of one process's threads.
#[derive(Debug)]
pub(super) struct Taken {
    accounts: Accounts,
    /// How many a CPU has.
    registers: u32,
    /// For the message: who has what.
    holders: Vec<String>,
    /// By thread, in the order of the stop.
    threads: Vec<(i32, usize)>,
}

impl Taken {
    /// Of the process that stands here.
    pub fn of(world: &World, others: &Others) -> Taken {
        let claims = others.claims();
        let mut holders = BTreeSet::new();
        let mut by_group: BTreeMap<i32, usize> = BTreeMap::new();
        for group in world.threads().map(|t| t.group).collect::<BTreeSet<i32>>() {
            let names = names_of(group);
            let uid = Status::of(group).ok().flatten().map(|status| status.uid);
            let mine =
                claims.iter().filter(|c| c.uid == 0 || Some(c.uid) == uid).filter(|c| c.held.is_for(&names));
            for claim in mine {
                *by_group.entry(group).or_default() += claim.held.watches.len();
                holders.insert(words(claim));
            }
        }
        let mut debugged = 0;
        let of_thread = |thread: &crate::hold::world::Thread| {
            let by_debugger = arch::debugger_registers(thread.tid);
            debugged += usize::from(by_debugger > 0);
            (thread.tid, by_debugger + by_group.get(&thread.group).copied().unwrap_or(0))
        };
        let threads = world.threads().map(of_thread).collect();
        let mut holders: Vec<String> = holders.into_iter().collect();
        if debugged > 0 {
            holders.push(format!("a debugger, set through ptrace in {debugged} of its threads"));
        }
        let pools = world.threads().next().map(|thread| arch::debug_registers(thread.tid));
        let pools = pools.unwrap_or(Pools::Shared(0));
        let machine = Machine { cpus: percpu::possible_cpus(), pools };
        let accounts = Accounts::new(machine, EngineKind::Histogram);
        Taken { accounts, registers: machine.slots(Kind::Data), holders, threads }
    }

    /// Whether all threads have registers for all watches.
    ///
    /// # Errors
    /// [`WatchError::NoRegister`] for the first watch that finds none, with who has them.
    pub fn check(&self, watches: &[Watch]) -> Result<(), WatchError> {
        let reserve = |tid: i32| self.accounts.reserve(Request::data(Place::Task(tid as u64)));
        // What is held beyond what there is, a claim that is not true would hold: then all are taken.
        let taken = self.threads.iter().flat_map(|(tid, n)| std::iter::repeat_n(*tid, *n));
        let mut held: Vec<_> = taken.filter_map(|tid| reserve(tid).ok()).collect();
        for (n, watch) in watches.iter().enumerate() {
            for (tid, _) in &self.threads {
                match reserve(*tid) {
                    Ok(reservation) => held.push(reservation),
                    Err(Refused::NoSlot { slots, .. }) => {
                        let ours = watches[..n].iter().map(|w| format!("{} (this command)", w.name));
                        let holders = ours.chain(self.holders.iter().cloned()).collect();
                        return Err(WatchError::NoRegister {
                            name: watch.name.clone(),
                            registers: slots,
                            holders,
                        });
                    }
                    // The kernel is asked.
                    Err(_) => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// How many a CPU has.
    pub fn registers(&self) -> u32 {
        self.registers
    }

    /// Who has registers, as far as it is claimed.
    pub fn holders(&self) -> &[String] {
        &self.holders
    }
}

/// What a process is called in claims: its number in our pid namespace, and in its own.
fn names_of(pid: i32) -> Vec<(u64, (u64, u64))> {
    let Some((number, start)) = number_and_start(pid) else { return Vec::new() };
    let own = fs::metadata(format!("/proc/{pid}/ns/pid")).map(|m| m.ino());
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let innermost =
        status.lines().find_map(|line| line.strip_prefix("NSpid:")?.split_whitespace().last()?.parse().ok());
    let own = own.ok().zip(innermost).map(|(namespace, number)| (namespace, (number, start)));
    [Some((process::pid_namespace(), (number, start))), own].into_iter().flatten().collect()
}

impl Held {
    fn is_for(&self, names: &[(u64, (u64, u64))]) -> bool {
        names.iter().any(|(namespace, name)| *namespace == self.namespace && self.processes.contains(name))
    }
}

/// A claim in words: the holder by its command, and the bytes that it watches.
fn words(claim: &Found) -> String {
    let watches = claim.held.watches.iter();
    let watches: Vec<String> = watches.map(|(addr, len)| format!("{addr:#x}:{}", *len as u32)).collect();
    format!("{} for {}", process_in_words(claim.holder), watches.join(", "))
}

/// A process by its number, name and, if it is a nanoprobe's engine, command.
pub(super) fn process_in_words(pid: i32) -> String {
    let name = process::name(pid);
    let command = engine_command(pid).join(" ");
    if command.is_empty() { format!("{pid} ({name})") } else { format!("{pid} ({name} of '{command}')") }
}

/// The words of a nanoprobe's command, by its engine: that has given up its own words; its front has them.
pub(super) fn engine_command(pid: i32) -> Vec<String> {
    match process::name(pid) == ENGINE_NAME {
        true => process::parent(pid).map(process::command_words).unwrap_or_default(),
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::inject::tests::Subject;
    use crate::watch::{Detail, Hard};
    use std::os::fd::{FromRawFd, OwnedFd};
    use sys::Errno;
    use sys::perf::{self, Breakpoint, access};

    fn watches(n: usize) -> Vec<Watch> {
        watches_from(0, n)
    }

    fn watches_from(first: usize, n: usize) -> Vec<Watch> {
        let watch = |i: usize| Watch {
            name: format!("w{i}"),
            addr: 0x10_0000 + 64 * i as u64,
            len: 8,
            access: Access::Write,
        };
        (first..first + n).map(watch).collect()
    }

    /// The kernel's own answer: `n` more events on each of these threads.
    fn kernel_gives(tids: &[i32], n: usize) -> Result<bool, Errno> {
        let mut events = Vec::new();
        for tid in std::iter::repeat_n(tids, n).flatten() {
            let breakpoint = Breakpoint {
                addr: 0x20_0000,
                len: 8,
                access: access::WRITE,
                starts_disabled: true,
                is_inherited: false,
                is_for_children: false,
                raises_sigtrap: false,
                runs_program: false,
            };
            match perf::open_breakpoint(&breakpoint, *tid) {
                // SAFETY: the call has just made it, and nobody else has it.
                Ok(fd) => events.push(unsafe { OwnedFd::from_raw_fd(fd) }),
                Err(Errno::ENOSPC) => return Ok(false),
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }

    fn others() -> Others {
        let mut others = Others::default();
        others.look();
        others
    }

    /// What the accounts say of `n` more, and what the kernel says in the same stop.
    fn both(pid: i32, n: usize) -> (Result<(), WatchError>, bool) {
        let world = World::stop(pid).unwrap();
        let foreseen = Taken::of(&world, &others()).check(&watches(n));
        let tids: Vec<i32> = world.threads().map(|t| t.tid).collect();
        assert!(tids.len() > 4, "the subject has several threads");
        (foreseen, kernel_gives(&tids, n).unwrap())
    }

    #[test]
    fn the_accounts_say_what_the_kernel_says_whoever_holds_how_many() {
        let subject = Subject::start();
        let pid = subject.pid();
        match Hard::arm(pid, watches(1), false, Detail::Count) {
            Ok(hard) => drop(hard),
            // Where the kernel gives none at all, that is said, and there is nothing to be accounted.
            Err(WatchError::NotAllowed { .. } | WatchError::NoHardware { .. }) => {
                assert!(kernel_gives(&[pid], 1).is_err());
                return;
            }
            Err(why) => panic!("{why}"),
        }
        let (mut refusals, mut grants) = (0, 0);
        for (first, second) in [(0, 0), (1, 0), (1, 1), (2, 1), (4, 0), (2, 2)] {
            let arm = |from, n| {
                (n > 0).then(|| Hard::arm(pid, watches_from(from, n), false, Detail::Count).unwrap())
            };
            let held = [arm(0, first), arm(first, second)];
            for asked in 1..=5 {
                let (foreseen, is_given) = both(pid, asked);
                assert_eq!(
                    foreseen.is_ok(),
                    is_given,
                    "{first} and {second} held, {asked} asked: {foreseen:?}"
                );
                (refusals, grants) = (refusals + usize::from(!is_given), grants + usize::from(is_given));
                if let Err(WatchError::NoRegister { holders, .. }) = foreseen {
                    let named = |w: &Watch| holders.iter().any(|h| h.contains(&format!("{:#x}:8", w.addr)));
                    assert!(watches(first + second).iter().all(named), "{holders:?}");
                }
            }
            drop(held);
            assert!(both(pid, 4).0.is_ok(), "they are given back");
        }
        assert_eq!((refusals, grants), (20, 10));
    }

    #[test]
    fn a_register_that_a_debugger_has_left_set_is_in_the_accounts() {
        const DEBUG_REGISTERS: usize = 848;
        let subject = Subject::start();
        let world = World::stop(subject.pid()).unwrap();
        let tid = world.threads().last().unwrap().tid;
        let poke = |register: usize, value: u64| {
            // SAFETY: the thread stands in a stop of ours, and the request takes numbers alone.
            unsafe { libc::ptrace(libc::PTRACE_POKEUSER, tid, DEBUG_REGISTERS + 8 * register, value) }
        };
        if poke(0, 0x10_0000) != 0 {
            // No debug registers: then the kernel gives no events either.
            assert!(kernel_gives(&[tid], 1).is_err());
            return;
        }
        drop(world);
        for (asked, is_right) in [(3, true), (4, false)] {
            let (foreseen, is_given) = both(subject.pid(), asked);
            assert_eq!((foreseen.is_ok(), is_given), (is_right, is_right), "{asked}: {foreseen:?}");
        }
    }

    #[test]
    fn a_claim_comes_back_as_it_was_and_a_broken_one_is_none() {
        let held = Held { namespace: 7, processes: vec![(1, 2), (3, 4)], watches: vec![(5, 8); REGISTERS] };
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend(held.bytes());
        bytes.resize(LEN_MAX, 0);
        assert_eq!(Held::parse(&bytes), Some(held.clone()));
        for at in [0, 8 * 2 + 1, 8 * 3] {
            let mut broken = bytes.clone();
            broken[at] ^= 0x81;
            assert_eq!(Held::parse(&broken), None, "byte {at}");
        }
        assert_eq!(Held::parse(&bytes[..8 * (HEADER + 2)]), None);
        assert_eq!(Held::parse(&[0; LEN_MAX]), None);
        let crowd = Held { processes: vec![(1, 2); 2 * PROCESSES_MAX], ..held };
        assert!(8 + crowd.bytes().len() <= LEN_MAX);
    }

    #[test]
    fn a_process_is_known_by_its_number_in_its_own_namespace_too_and_by_its_start() {
        let names = names_of(sys::getpid().cast_signed());
        assert_eq!(names.len(), 2);
        for (namespace, (number, start)) in names.clone() {
            let held =
                |namespace, start| Held { namespace, processes: vec![(number, start)], watches: Vec::new() };
            assert!(held(namespace, start).is_for(&names));
            assert!(!held(namespace + 1, start).is_for(&names) && !held(namespace, start + 1).is_for(&names));
        }
    }

    #[test]
    fn a_file_that_is_no_memfd_is_told_from_one_without_being_opened() {
        let memfd = |name| File::from(owned(sys::memfd(name, 0)).unwrap());
        let of = |file: &File| mount_and_inode("self", &file.as_raw_fd().to_string()).unwrap();
        let (one, other) = (of(&memfd(c"one")), of(&memfd(c"other")));
        assert!(one.0 == other.0 && one.1 != other.1);
        let plain = File::open(std::env::current_exe().unwrap()).unwrap();
        assert_ne!(of(&plain).0, one.0);
    }

    #[test]
    fn a_claim_of_who_has_no_perf_events_is_not_believed() {
        let subject = Subject::start();
        let world = World::stop(subject.pid()).unwrap();
        let claim = Claim::of(&world, &watches(4)).unwrap();
        let mut ours = Others { nanoprobes: vec![sys::getpid().cast_signed()], ..Others::default() };
        let is_ours = |found: &Found| found.held.processes.iter().any(|(pid, _)| *pid == world.pid as u64);
        let has_events = fs::read_dir("/proc/self/fd").unwrap().flatten().any(|entry| {
            fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == "anon_inode:[perf_event]")
        });
        // Another test of this process may have some at this moment.
        assert!(has_events || !ours.claims().iter().any(is_ours));
        drop(claim);
        ours.look();
        assert!(!ours.claims().iter().any(is_ours));
    }
}
