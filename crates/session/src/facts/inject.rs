//! A step that fails once, for tests.
//!
//! For:     proving that whatever fails in an attach or a detach, the process is afterwards as it was.
//! State:   in tests, for each thread: how many steps are left until one fails. In other builds there is nothing.
//! Context: control.
//! Keeps:   I1 every stop, open, write, remote call, look at what is mapped and link of the kernel's in an attach and a
//!             detach asks here before it is made.
//!          I2 in a build that is not a test no step fails.
//! Checked: the test below walks through all steps.

/// One step: an error in its place, if it is the one that is to fail.
#[cfg(not(test))]
pub(crate) fn step() -> Result<(), sys::Errno> {
    Ok(())
}

#[cfg(test)]
pub(crate) use in_tests::{left, set_left, step};

/// How many steps are left, for an OS thread that goes on with the work of this one.
#[cfg(not(test))]
pub(crate) fn left() -> u32 {
    0
}

#[cfg(not(test))]
pub(crate) fn set_left(_: u32) {}

#[cfg(test)]
mod in_tests {
    use std::cell::Cell;
    use sys::Errno;

    thread_local! {
        /// 0: none fails any more.
        static LEFT: Cell<u32> = const { Cell::new(0) };
    }

    pub fn step() -> Result<(), Errno> {
        let left = LEFT.get();
        LEFT.set(left.saturating_sub(1));
        if left == 1 { Err(Errno(5)) } else { Ok(()) }
    }

    pub fn left() -> u32 {
        LEFT.get()
    }

    pub fn set_left(left: u32) {
        LEFT.set(left);
    }

    /// The `n`-th step of this thread from now on fails.
    pub fn fail_at(n: u32) {
        LEFT.set(n);
    }

    /// Whether no step failed since: there were fewer.
    pub fn was_not_reached() -> bool {
        LEFT.replace(0) > 0
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::in_tests::{fail_at, was_not_reached};
    use crate::{Attach, FamilyMaps, Images, Session, SitePlan, Verb, plan, plan_each};
    use image::Spec;
    use std::fs::{self, File};
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::fs::FileExt;
    use std::process::{Child, ChildStdout, Command, Stdio};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
    use std::time::Duration;

    /// Threads of the subject that are always in the probed functions.
    pub const BUSY: usize = 4;

    static CALLS: AtomicU64 = AtomicU64::new(0);

    /// The count of tracers of a mark that is said to be at a site; another tracer has raised it already.
    static MARK: AtomicU16 = AtomicU16::new(OTHERS);
    const OTHERS: u16 = 5;

    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn injected_long(x: u64) -> u64 {
        CALLS.fetch_add(x | 1, Ordering::Relaxed).wrapping_mul(x).rotate_left(7) ^ x
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn injected_other(x: u64) -> u64 {
        injected_long(x.wrapping_add(3)) | 1
    }

    /// Nobody calls it. Its first instruction is as long as a jump: whether a jump fits must not be a matter of what the compiler
    /// made and where it lies.
    #[cfg(target_arch = "x86_64")]
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    extern "C" fn injected_idle(x: u64) -> u64 {
        core::arch::naked_asm!("mov eax, 5", "imul rax, rdi", "ret")
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn injected_idle(x: u64) -> u64 {
        injected_long(x.wrapping_mul(5)) | 2
    }

    /// Not a test: a process for tests to enter.
    #[test]
    #[ignore = "a process for tests"]
    fn subject() {
        // Behind it a thread has its stacks, its arena of malloc and no signal blocked.
        static HAVE_BEGUN: Barrier = Barrier::new(BUSY + 1);
        let spin = || {
            let mut x = 1;
            HAVE_BEGUN.wait();
            loop {
                x = injected_other(std::hint::black_box(x));
            }
        };
        std::hint::black_box(injected_idle as extern "C" fn(u64) -> u64);
        if std::env::var_os(SIGNALS).is_some() {
            // SAFETY: the handler calls nothing but a function that adds to an atomic.
            unsafe { libc::signal(libc::SIGALRM, handle as extern "C" fn(i32) as usize) };
        }
        let threads: Vec<_> = (0..BUSY).map(|_| std::thread::spawn(spin)).collect();
        HAVE_BEGUN.wait();
        if std::env::var_os(SIGNALS).is_some() {
            // To these threads, which are hardly ever anywhere else: the process's own signals go to one that only waits.
            use std::os::unix::thread::JoinHandleExt;
            let busy: Vec<_> = threads.iter().map(|thread| thread.as_pthread_t()).collect();
            static ALARMS_HAVE_BEGUN: Barrier = Barrier::new(2);
            std::thread::spawn(move || {
                ALARMS_HAVE_BEGUN.wait();
                loop {
                    // SAFETY: the threads never end, and have a handler.
                    busy.iter().for_each(|thread| {
                        // SAFETY: as above; a signal that cannot be sent is one less.
                        let _ = unsafe { libc::pthread_kill(*thread, libc::SIGALRM) };
                    });
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            ALARMS_HAVE_BEGUN.wait();
        }
        println!("\nspinning {} {}", threads.len(), MARK.as_ptr().addr());
        // Until whoever started it is gone.
        let mut line = String::new();
        let _ = std::io::stdin().read_line(&mut line);
        std::process::exit(0);
    }

    /// In the environment of the subject: signals come, whose handler comes by the sites.
    const SIGNALS: &str = "NANOPROBE_SUBJECT_SIGNALS";

    extern "C" fn handle(_: i32) {
        injected_other(std::hint::black_box(1));
    }

    /// It ends when its input does. What it says is kept open: the harness that it runs in speaks up after a minute, and ends
    /// if nobody hears it.
    pub(crate) struct Subject(Child, u64, #[expect(dead_code, reason = "held open")] BufReader<ChildStdout>);

    impl Subject {
        pub(crate) fn start() -> Subject {
            Subject::start_as(&[])
        }

        /// One whose threads get signals all the time.
        pub(crate) fn start_with_signals() -> Subject {
            Subject::start_as(&[(SIGNALS, "1")])
        }

        fn start_as(environment: &[(&str, &str)]) -> Subject {
            let here = module_path!().split_once("::").unwrap().1;
            // With one thread for tests the harness waits without looking at the clock, and allocates nothing meanwhile.
            let name = format!("{here}::subject");
            let words = ["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"];
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args(words)
                .envs(environment.iter().copied())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            let lines = output.by_ref().lines();
            let said = lines.map_while(Result::ok).find(|line| line.starts_with("spinning")).unwrap();
            let mark = said.rsplit(' ').next().unwrap().parse().unwrap();
            let subject = Subject(child, mark, output);
            // While a thread is being started its signals are blocked.
            while subject.seen().0.iter().any(|fact| fact.contains("SigBlk") && !fact.ends_with("0000")) {
                std::thread::sleep(Duration::from_millis(5));
            }
            subject
        }

        pub(crate) fn pid(&self) -> i32 {
            self.0.id() as i32
        }

        /// A site that nobody comes by.
        pub(crate) fn idle_site(&self) -> Vec<SitePlan> {
            sites(self.pid(), &["u::injected_idle"])
        }

        /// The mark's count of tracers.
        fn count(&self) -> u16 {
            let memory = File::open(format!("/proc/{}/mem", self.pid())).unwrap();
            let mut count = [0; 2];
            memory.read_exact_at(&mut count, self.1).unwrap();
            u16::from_le_bytes(count)
        }

        /// Mappings, what is executable of them, open files, each thread's signal mask, and the mark's count.
        pub(crate) fn seen(&self) -> (Vec<String>, Vec<Vec<u8>>) {
            let pid = self.pid();
            let text = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
            let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
            let code = text.lines().filter(|l| l.contains(" r-xp ") && !l.contains("[vsyscall]"));
            let bytes = |line: &str| {
                let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
                let number = |hex| u64::from_str_radix(hex, 16).unwrap();
                let mut bytes = vec![0; (number(end) - number(start)) as usize];
                memory.read_exact_at(&mut bytes, number(start)).unwrap();
                bytes
            };
            let code = code.map(bytes).collect();
            // The kernel's page for the instructions that its probes displace stays.
            let lines = text.lines().filter(|line| !line.ends_with("[uprobes]"));
            let mut facts: Vec<String> = lines.map(str::to_owned).collect();
            let names = |dir: &str| {
                let entries = fs::read_dir(format!("/proc/{pid}/{dir}")).unwrap();
                let mut names: Vec<String> =
                    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
                names.sort();
                names
            };
            facts.extend(names("fd"));
            facts.push(format!("count of the mark {}", self.count()));
            for tid in names("task") {
                // One of the harness's may end while we look.
                let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"));
                let Ok(status) = status else { continue };
                let mask = status.lines().find(|l| l.starts_with("SigBlk")).unwrap();
                facts.push(format!("{tid} {mask}"));
            }
            (facts, code)
        }
    }

    impl Drop for Subject {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            let _ = self.0.wait();
        }
    }

    /// Sites of the subject's functions, each of which takes a jump.
    pub(crate) fn sites(pid: i32, specs: &[&str]) -> Vec<SitePlan> {
        let parsed: Vec<Spec> = specs.iter().map(|text| Spec::parse(text).unwrap()).collect();
        let sites = plan(pid, &parsed, Verb::CountByHandler).unwrap().sites;
        let sites: Vec<_> = sites.into_iter().filter(|s| s.placement.rung != insn::Rung::Kernel).collect();
        assert_eq!(sites.len(), specs.len());
        sites
    }

    /// Leaves, again if the first time fails; how often it failed.
    fn leave(mut session: Session) -> u32 {
        let mut failures = 0;
        let receipt = loop {
            match session.detach() {
                Ok(receipt) => break receipt,
                Err(_) if failures < 2 => failures += 1,
                Err(broken) => panic!("{broken}"),
            }
        };
        assert!(receipt.is_verified() && receipt.is_unmapped(), "{receipt:?}");
        failures
    }

    /// What a walk through all steps has met.
    #[derive(Debug, Default)]
    struct Walk {
        steps: u32,
        /// Failures of the attach, and of the detach.
        refused: u32,
        late: u32,
    }

    /// One attach and detach after the other, in each of which the next step fails, until all have.
    fn walk(subject: &Subject, sites: &[SitePlan], family: Option<&FamilyMaps>) -> Walk {
        let has_mark = sites.iter().any(|site| site.semaphore.is_some());
        let before = subject.seen();
        let mut walk = Walk::default();
        for n in 1.. {
            fail_at(n);
            let attach = Attach { family: family.cloned(), ..Attach::default() };
            match Session::attach_with(subject.pid(), sites.to_vec(), attach) {
                Ok(session) => {
                    // A step that failed may have cost a site of the kernel's, which is then missed by name.
                    let all = session.sites().count() + session.missed().len();
                    assert!(all >= sites.len(), "step {n}: {all} of {}", sites.len());
                    assert_eq!(subject.count(), OTHERS + u16::from(has_mark), "step {n}");
                    walk.late += leave(session);
                }
                Err(broken) => {
                    assert!(!matches!(broken, crate::Broken::NotUndone { .. }), "step {n}: {broken}");
                    walk.refused += 1;
                }
            }
            let is_over = was_not_reached();
            let after = subject.seen();
            let new: Vec<_> = after.0.iter().filter(|fact| !before.0.contains(fact)).collect();
            let gone: Vec<_> = before.0.iter().filter(|fact| !after.0.contains(fact)).collect();
            assert!(new.is_empty() && gone.is_empty(), "step {n}: {new:?} for {gone:?}");
            assert!(after.1 == before.1, "step {n}: code differs");
            walk.steps = n - 1;
            if is_over {
                break;
            }
        }
        walk
    }

    /// Walks until so many steps have failed at night, else once.
    fn walk_through(subject: &Subject, sites: &[SitePlan], family: Option<&FamilyMaps>) {
        const AT_NIGHT: u32 = 1000;
        let wanted = if std::env::var_os("NANOPROBE_NIGHTLY").is_some() { AT_NIGHT } else { 1 };
        let mut failed = 0;
        while failed < wanted {
            let walk = walk(subject, sites, family);
            eprintln!("{walk:?}");
            assert!(walk.refused > 18 && walk.late > 3, "too little has failed: {walk:?}");
            failed += walk.steps;
        }
    }

    /// A process of ours that does nothing: in our memory as between vfork and exec, or in a copy of it.
    struct Starting(i32);

    impl Starting {
        fn new(is_copy: bool) -> Starting {
            extern "C" fn wait(_: *mut libc::c_void) -> libc::c_int {
                // SAFETY: takes and gives nothing.
                unsafe { libc::pause() }
            }
            let flags = if is_copy { 0 } else { libc::CLONE_VM } | libc::SIGCHLD;
            let stack = Box::leak(vec![0_u128; 1 << 12].into_boxed_slice()).as_mut_ptr_range().end;
            // SAFETY: the stack is the child's for ever, which does nothing but one system call.
            let pid = unsafe { libc::clone(wait, stack.cast(), flags, std::ptr::null_mut()) };
            assert!(pid > 0);
            Starting(pid)
        }
    }

    impl Drop for Starting {
        fn drop(&mut self) {
            // SAFETY: our own child, which nobody else waits for.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
        }
    }

    #[test]
    fn a_process_that_we_are_starting_is_no_child_of_the_target() {
        let subject = Subject::start();
        let session = Session::attach(subject.pid(), sites(subject.pid(), &["u::injected_long"])).unwrap();
        let _children = [false, true].map(Starting::new);
        leave(session);
    }

    #[test]
    fn whichever_step_fails_the_process_is_afterwards_as_it_was() {
        let subject = Subject::start();
        let mut sites = sites(subject.pid(), &["u::injected_long", "u::injected_other"]);
        sites[0].semaphore = Some(subject.1);
        walk_through(&subject, &sites, None);
    }

    #[test]
    fn whichever_step_fails_while_it_comes_to_share_maps_it_is_so_too() {
        let subject = Subject::start();
        let sites = sites(subject.pid(), &["u::injected_long", "u::injected_other"]);
        walk_through(&subject, &sites, Some(&FamilyMaps::new(&[0; 64]).unwrap()));
    }

    #[test]
    fn whichever_step_fails_of_timed_and_traced_calls_it_is_so_too() {
        let subject = Subject::start();
        let specs = ["u::injected_long", "u::injected_other"].map(|text| Spec::parse(text).unwrap());
        let asked = [(&specs[0], Verb::Latency), (&specs[1], Verb::Trace { has_stacks: true })];
        let sites = plan_each(&mut Images::default(), subject.pid(), &asked).unwrap().sites;
        assert!(sites.len() >= 4, "entries and exits");
        walk_through(&subject, &sites, None);
    }

    #[test]
    fn whichever_step_fails_with_a_probe_of_the_kernels_it_is_so_too() {
        let subject = Subject::start();
        // The kernel may take it, be there a jump for it or not.
        let mut sites = sites(subject.pid(), &["u::injected_long", "u::injected_idle"]);
        sites[0].placement.rung = insn::Rung::Kernel;
        walk_through(&subject, &sites, None);
    }

    #[test]
    fn whichever_step_fails_while_probes_come_and_go_the_end_leaves_the_process_as_it_was() {
        let subject = Subject::start();
        let mut sites = sites(subject.pid(), &["u::injected_long", "u::injected_other"]);
        sites[0].semaphore = Some(subject.1);
        let addrs: Vec<u64> = sites.iter().map(SitePlan::addr).collect();
        let before = subject.seen();
        let mut failed = [0; 3];
        for n in 1.. {
            let room = crate::Room::for_counts(8).and_probes(4);
            let mut session = Session::attach_with_room(subject.pid(), subject.idle_site(), room).unwrap();
            fail_at(n);
            // What did not come goes in vain.
            failed[0] += u32::from(session.add_probes(sites.clone()).is_err());
            failed[1] += u32::from(session.remove_probes(&addrs).is_err());
            failed[2] += u32::from(session.settle_probes(Duration::from_secs(60)).is_err());
            let is_over = was_not_reached();
            leave(session);
            assert!(subject.seen() == before, "step {n}");
            if is_over {
                assert!(failed.iter().all(|failed| *failed > 0), "of {n} steps {failed:?} failed");
                return;
            }
        }
    }
}
