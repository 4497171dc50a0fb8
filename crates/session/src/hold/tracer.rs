//! Which threads this OS thread traces and could not stop yet, and how it lets go of them.
//!
//! For:     stops with a bound: the kernel lets a tracer leave a thread that stands, and no other.
//! State:   thread-local; the threads that were asked to stop and have not.
//! Context: control.
//! Keeps:   T1 work that runs [`apart`] leaves no thread traced: when its OS thread ends, the kernel lets all go, those
//!             that never stopped too, and takes back what they were asked.
//!          T2 a thread that was asked to stop runs none of its own code until it has stopped or was let go.
//!          T3 who helps a seizure to its end takes ends of threads, and no report of a stop.
//! Checked: testkit `endings` (vfork children); T3 by a test below.
//! Source:  ptrace(2): a tracer's end detaches its tracees, in whatever state; tracers are OS threads, not processes.

use crate::arch::SleptIn;
use crate::facts::inject;
use crate::find::process;
use crate::hold::reports;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use sys::{Errno, ptrace};

/// How long the kernel may take to let go of what an ended thread has traced; it is done in its last steps.
const LETTING_GO: Duration = Duration::from_secs(1);

thread_local! {
    /// A process that this OS thread keeps in a stop.
    static HELD: Cell<i32> = const { Cell::new(0) };
    static SEIZING: RefCell<Option<Arc<Seizing>>> = const { RefCell::new(None) };
    static IS_APART: Cell<bool> = const { Cell::new(false) };
    /// Seized and asked to stop, by thread; with its process, and since when.
    static LATE: RefCell<BTreeMap<i32, Asked>> = const { RefCell::new(BTreeMap::new()) };
}

/// A thread that was asked to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub tid: i32,
    /// Its process.
    pub group: i32,
    pub since: Instant,
    /// What it slept in before, where that has to be known.
    pub slept: Option<SleptIn>,
}

/// Whether this OS thread has seized the thread and asked it to stop, and has not heard of it since.
pub(crate) fn late(tid: i32) -> Option<Asked> {
    LATE.with_borrow(|late| late.get(&tid).copied())
}

/// All that this OS thread has asked to stop, and has not heard of since.
pub(crate) fn all_late() -> Vec<Asked> {
    LATE.with_borrow(|late| late.values().copied().collect())
}

/// It is asked to stop from now on.
pub(crate) fn is_asked(asked: Asked) {
    LATE.with_borrow_mut(|late| late.insert(asked.tid, asked));
}

/// It has stopped, or ended.
pub(crate) fn is_heard_of(tid: i32) {
    LATE.with_borrow_mut(|late| late.remove(&tid));
}

/// Runs `work` in an OS thread of its own, which traces whom it traces and lets go of all at its end.
///
/// While this OS thread keeps a process in a stop, that one alone is worked on: then in this one.
pub(crate) fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = Mutex::new(Some(work));
    let take = || work.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    let run = || take().map(|work| work());
    if HELD.get() != 0 || IS_APART.get() {
        return run().unwrap_or_else(|| unreachable!("it is taken once"));
    }
    let steps = inject::left();
    let (seizing, outside) = (Arc::new(Seizing::default()), thread::current());
    let (value, late, steps) = thread::scope(|scope| {
        let aside = || {
            IS_APART.set(true);
            SEIZING.replace(Some(Arc::clone(&seizing)));
            inject::set_left(steps);
            let done = (run(), LATE.take(), inject::left());
            seizing.is_over.store(true, Ordering::Release);
            outside.unpark();
            done
        };
        // Others that meet it as a tracer wait for it.
        let Ok(worker) = thread::Builder::new().name(process::ENGINE_NAME.into()).spawn_scoped(scope, aside)
        else {
            // No room for a thread: here, and who stays late is let go when this process ends.
            return (run(), BTreeMap::new(), inject::left());
        };
        while !seizing.is_over.load(Ordering::Acquire) && !worker.is_finished() {
            thread::park_timeout(STUCK);
            seizing.unstick();
        }
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    inject::set_left(steps);
    late.values().for_each(await_release);
    value.unwrap_or_else(|| unreachable!("it is taken once"))
}

/// How long a seizure may take before we look whether it waits for us.
const STUCK: Duration = Duration::from_millis(20);

/// Whom an OS thread has seized, and how often it began and ended a seizure.
///
/// The kernel has a seizure of a thread that executes another program wait until the others of its process are reaped, which
/// its tracer, who waits there, cannot do: another OS thread of ours does.
#[derive(Debug, Default)]
struct Seizing {
    seized: Mutex<Vec<i32>>,
    /// Odd while it seizes.
    turns: AtomicU64,
    seen: AtomicU64,
    is_over: AtomicBool,
}

impl Seizing {
    fn seized(&self) -> MutexGuard<'_, Vec<i32>> {
        self.seized.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reaps those that have ended, if one seizure has lasted since we looked last; it does not end meanwhile: whoever waits
    /// for one of them is told of its end.
    fn unstick(&self) {
        let seized = self.seized();
        // Relaxed: it turns to even under the lock, which orders that; to odd at any time, which is looked for again.
        let turns = self.turns.load(Ordering::Relaxed);
        if turns % 2 == 1 && self.seen.swap(turns, Ordering::Relaxed) == turns {
            reports::reap_ended(&seized);
        }
    }
}

/// Seizes a thread from this OS thread.
///
/// # Errors
/// As for [`sys::ptrace::seize`].
pub(crate) fn seize(tid: i32, options: usize) -> Result<(), Errno> {
    SEIZING.with_borrow(|seizing| {
        let Some(seizing) = seizing else { return ptrace::seize(tid, options) };
        seizing.turns.fetch_add(1, Ordering::Relaxed);
        let done = ptrace::seize(tid, options);
        let mut seized = seizing.seized();
        seizing.turns.fetch_add(1, Ordering::Relaxed);
        seized.extend(done.is_ok().then_some(tid));
        done
    })
}

/// The end of an OS thread is seen some steps before it has let go.
fn await_release(late: &Asked) {
    let end = Instant::now() + LETTING_GO;
    let ours =
        |s: &process::Status| s.tracer != 0 && process::Status::of(s.tracer).is_ok_and(|t| t.is_none());
    let is_ours =
        || process::Status::of_thread(late.group, late.tid).ok().flatten().is_some_and(|s| ours(&s));
    while is_ours() && Instant::now() < end {
        thread::sleep(Duration::from_micros(50));
    }
}

/// A process whose first thread stands in a ptrace stop of ours: as long as it does, `World::stop` takes it as it is, and
/// leaves it so.
#[derive(Debug)]
pub struct Held {
    pid: i32,
}

impl Held {
    /// `pid` must be seized by this OS thread, and stopped.
    pub(crate) fn new(pid: i32) -> Held {
        HELD.set(pid);
        Held { pid }
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }
}

/// Lets it run.
impl Drop for Held {
    fn drop(&mut self) {
        if is_held(self.pid) {
            HELD.set(0);
            reports::let_go(self.pid, 0);
        }
    }
}

/// The process that this OS thread keeps in a stop is somebody else's matter from now on.
pub(crate) fn forget_held() {
    HELD.set(0);
}

/// This OS thread keeps the process in a stop.
pub(crate) fn is_held(pid: i32) -> bool {
    pid != 0 && HELD.get() == pid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::reports::NOHANG;
    use std::process::Command;
    use sys::wait::Status;

    #[test]
    fn who_helps_a_seizure_to_its_end_takes_no_report_of_a_stop() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let tid = child.id().cast_signed();
        ptrace::seize(tid, 0).expect("it is ours");
        ptrace::interrupt(tid).expect("it is ours");
        while sys::wait::await_any() != Ok(tid) {
            thread::yield_now();
        }
        // Of another thread, which lasts.
        let seizing =
            Seizing { seized: Mutex::new(vec![tid]), turns: AtomicU64::new(1), ..Seizing::default() };
        seizing.unstick();
        seizing.unstick();
        let report = reports::take(tid, NOHANG);
        assert!(matches!(report, Ok(Some((_, Status::Event(ptrace::event::STOP, _))))), "{report:?}");
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }

    #[test]
    fn work_apart_runs_once_in_another_thread_and_within_it_in_the_same() {
        let here = sys::gettid();
        let (outer, inner) = apart(|| (sys::gettid(), apart(sys::gettid)));
        assert!(outer != here && outer == inner);
    }
}
