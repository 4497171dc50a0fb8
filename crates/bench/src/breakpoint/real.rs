//! Breakpoints of the machine.
//!
//! For:     `bench breakpoint thread --real`, `bench breakpoint enable`; perf's own figures beside them.
//! State:   descriptors for the length of a run.
//! Context: control. Breakpoints watch a byte of ours that nobody touches.
//! Keeps:   E1 where there are no breakpoints to be had it says so and succeeds, as perf does.
//! Checked: by use.

use super::{Options, print_thread};
use std::fs::File;
use std::io::{Error, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use sys::Errno;
use sys::perf::{self, Breakpoint, access};

/// As many as can wait; the kernel takes the number for a signed one.
const ALL: u32 = i32::MAX as u32;

/// What the breakpoints watch.
static WATCHED: AtomicU64 = AtomicU64::new(0);

/// A breakpoint on the calling thread that its threads inherit; `None` where there are none.
fn open() -> std::io::Result<Option<(OwnedFd, RawFd)>> {
    let breakpoint = Breakpoint {
        addr: WATCHED.as_ptr() as u64,
        len: 1,
        access: access::READ_WRITE,
        starts_disabled: false,
        is_inherited: true,
        is_for_children: true,
        raises_sigtrap: false,
        runs_program: false,
    };
    match perf::open_breakpoint(&breakpoint, 0) {
        // SAFETY: the kernel has just made this descriptor, and nobody else has it.
        Ok(fd) => Ok(Some((unsafe { OwnedFd::from_raw_fd(fd) }, fd))),
        Err(Errno::ENODEV | Errno::ENOENT | Errno::EOPNOTSUPP) => Ok(None),
        Err(Errno::EACCES | Errno::EPERM) => {
            eprintln!("# breakpoints are not allowed here (perf_event_paranoid, or a container), skipping");
            Ok(None)
        }
        Err(errno) => Err(Error::from_raw_os_error(errno.0)),
    }
}

fn skip() -> std::io::Result<()> {
    eprintln!("Skipping perf bench breakpoint: no hardware breakpoints");
    Ok(())
}

pub(super) fn thread(options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let mut held = Vec::new();
    for _ in 0..options.breakpoints {
        match open()? {
            Some((fd, _)) => held.push(fd),
            None => return skip(),
        }
    }
    let (batches, made) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|s| {
        for _ in 0..options.parallel {
            s.spawn(|| {
                while batches.fetch_add(1, Relaxed) < u64::from(options.repeat) {
                    let done = AtomicU32::new(0);
                    std::thread::scope(|batch| {
                        for _ in 0..options.threads {
                            batch.spawn(|| {
                                made.fetch_add(1, Relaxed);
                                while done.load(Relaxed) == 0 {
                                    let _ = sys::futex_wait(&done, 0, None);
                                }
                            });
                        }
                        done.store(1, Relaxed);
                        let _ = sys::futex_wake(&done, ALL);
                    });
                }
            });
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    // perf, below, wants the registers.
    drop(held);
    let wanted = u64::from(options.repeat) * u64::from(options.threads);
    if made.load(Relaxed) != wanted {
        return Err(Error::other(format!("{} threads ran, {wanted} wanted", made.load(Relaxed))));
    }
    print_thread("real", options, seconds, out)?;
    let Options { repeat, breakpoints: b, parallel: p, threads: t, .. } = options;
    beside_perf(&format!("-r {repeat} breakpoint thread -b{b} -p{p} -t{t}"), options, out)
}

pub(super) fn enable(options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let Some((held, number)) = open()? else { return skip() };
    let (end, word) = (AtomicBool::new(false), AtomicU32::new(0));
    let seconds = std::thread::scope(|s| {
        for _ in 0..options.parallel {
            s.spawn(|| {
                while word.load(Relaxed) == 0 {
                    let _ = sys::futex_wait(&word, 0, None);
                }
            });
        }
        for _ in 0..options.active {
            s.spawn(|| {
                while !end.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        std::thread::sleep(Duration::from_millis(10));
        let start = Instant::now();
        let toggled =
            (0..options.repeat).try_for_each(|_| perf::disable(number).and_then(|()| perf::enable(number)));
        let seconds = start.elapsed().as_secs_f64();
        end.store(true, Relaxed);
        word.store(1, Relaxed);
        let _ = sys::futex_wake(&word, ALL);
        toggled.map(|()| seconds)
    });
    drop(held);
    let seconds = seconds.map_err(|e| Error::from_raw_os_error(e.0))?;
    let Options { repeat, parallel, active, .. } = options;
    let per_op = seconds * 1e6 / f64::from(*repeat);
    if options.simple {
        writeln!(out, "{seconds:.3}")?;
    } else if options.json {
        writeln!(
            out,
            "{{\"name\":\"breakpoint-enable\",\"total_s\":{seconds:.6},\"usecs_per_op\":{per_op:.6},\
             \"repeat\":{repeat},\"passive\":{parallel},\"active\":{active}}}"
        )?;
    } else {
        writeln!(out, "# Running 'breakpoint/enable' benchmark:")?;
        writeln!(
            out,
            "# Enabled/disabled breakpoint {repeat} time with {parallel} passive and {active} active threads"
        )?;
        writeln!(out, " {:>14}: {seconds:.3} [sec]\n", "Total time")?;
        writeln!(out, " {per_op:>14.6} usecs/op")?;
    }
    beside_perf(&format!("-r {repeat} breakpoint enable -p{parallel} -a{active}"), options, out)
}

/// The same by perf, if it is installed and allowed.
fn beside_perf(line: &str, options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    if options.simple || options.json || !options.real {
        return Ok(());
    }
    let log = File::options().write(true).open("/dev/null")?;
    let perf = Command::new("perf").arg("bench").args(line.split_whitespace()).stderr(log).output();
    match perf {
        Ok(done) if done.status.success() => {
            writeln!(out, "\nperf bench {line}\n{}", String::from_utf8_lossy(&done.stdout).trim_end())
        }
        _ => writeln!(out, "\nperf is not installed or cannot run this (Debian: linux-perf)"),
    }
}
