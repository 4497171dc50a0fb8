//! The seat of a thread: a number that is its own while it lives.
//!
//! For:     readers of domains without fences, which count in the copy of their thread's seat.
//! State:   one bit a seat, and the highest seat that was ever taken; in each thread, its seat.
//! Context: `sit`: target, hit, signal: no allocation, lock or system call. `prepare`: set-up.
//! Keeps:   A1 a seat is one thread's at a time, and who takes it sees the counts of who had it.
//!          A2 `high` is raised before anybody counts on the seat.
//!          A3 a thread that finds no seat, or has given its own back, counts by its CPU instead.
//! Checked: model `seats` (mutants RCU-23, RCU-24, low-seat), tests below, `torture rcu`.

#[cfg(not(loom))]
use crate::prim::AtomicUsize;
use crate::prim::{Acquire, AtomicU64, Relaxed, Release};

/// How many threads can sit at a time.
pub const SEATS: u32 = if cfg!(loom) { 2 } else { 256 };

const WORDS: usize = SEATS.div_ceil(64) as usize;

/// All seats.
pub struct Seats {
    taken: [AtomicU64; WORDS],
    high: AtomicU64,
}

impl Seats {
    /// Seats that are free.
    #[cfg(not(loom))]
    pub const fn new() -> Seats {
        Seats { taken: [const { AtomicU64::new(0) }; WORDS], high: AtomicU64::new(0) }
    }

    /// Seats that are free.
    #[cfg(loom)]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Seats {
        Seats { taken: core::array::from_fn(|_| AtomicU64::new(0)), high: AtomicU64::new(0) }
    }

    /// Takes the lowest free seat; they count from 1.
    pub fn take(&self) -> Option<u32> {
        for (w, word) in self.taken.iter().enumerate() {
            loop {
                let bit = (!word.load(Relaxed)).trailing_zeros();
                let seat = w as u32 * 64 + bit + 1;
                if bit == 64 || seat > SEATS {
                    break;
                }
                // [RCU-23] Sees the counts of who had the seat. Pairs with [RCU-24].
                #[cfg(not(mutant = "RCU-23"))]
                let order = Acquire;
                #[cfg(mutant = "RCU-23")]
                let order = Relaxed;
                if word.fetch_or(1 << bit, order) & 1 << bit == 0 {
                    // Before the first count: the fence behind that count orders both for a grace period.
                    #[cfg(not(mutant = "low-seat"))]
                    self.high.fetch_max(u64::from(seat), Relaxed);
                    return Some(seat);
                }
            }
        }
        None
    }

    /// Gives a seat back.
    pub fn give_back(&self, seat: u32) {
        let (word, bit) = ((seat as usize - 1) / 64, (seat - 1) % 64);
        // [RCU-24] Shows the counts to who takes the seat next. Pairs with [RCU-23].
        #[cfg(not(mutant = "RCU-24"))]
        let order = Release;
        #[cfg(mutant = "RCU-24")]
        let order = Relaxed;
        self.taken[word].fetch_and(!(1 << bit), order);
    }

    /// The highest seat that anybody ever had.
    pub fn high(&self) -> u32 {
        self.high.load(Relaxed) as u32
    }

    /// The child of a fork: one thread is left.
    #[cfg(not(loom))]
    fn keep(&self, seat: u32) {
        for (w, word) in self.taken.iter().enumerate() {
            let own = seat > 0 && (seat as usize - 1) / 64 == w;
            word.store(if own { 1 << ((seat - 1) % 64) } else { 0 }, Relaxed);
        }
    }
}

#[cfg(all(feature = "std", not(loom)))]
pub(crate) use here::{after_fork, high, mine, prepare, sit};

#[cfg(all(feature = "std", not(loom)))]
mod here {
    use super::{AtomicUsize, Relaxed, SEATS, Seats};
    use crate::block::place_of;
    use crate::prim::AtomicU32;

    static ALL: Seats = Seats::new();

    /// The key whose destructor gives seats back, plus one; 0 before there is one.
    static KEY: AtomicU32 = AtomicU32::new(0);

    /// Keys below this have their room in the thread itself with every C library: setting one allocates nothing.
    const SMALL_KEYS: u32 = 32;

    /// No seat, and none wanted.
    const NONE: usize = 1;

    std::thread_local! {
        /// The seat's place, 0 before the thread asked for one.
        static MINE: AtomicUsize = const { AtomicUsize::new(0) };
    }

    unsafe extern "C" {
        fn pthread_key_create(key: *mut u32, destructor: Option<unsafe extern "C" fn(*mut u8)>) -> i32;
        fn pthread_setspecific(key: u32, value: *const u8) -> i32;
    }

    /// Makes the key, once.
    pub(crate) fn prepare() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let mut key = 0;
            // SAFETY: `key` is writable, and the function fits and stays in the program.
            let made = !cfg!(miri) && unsafe { pthread_key_create(&mut key, Some(leave)) } == 0;
            if made && key < SMALL_KEYS {
                KEY.store(key + 1, Relaxed);
            }
        });
    }

    /// The place of the calling thread's seat in a block; 0 or 1 without one.
    #[inline(always)]
    pub(crate) fn mine() -> usize {
        MINE.with(|mine| mine.load(Relaxed))
    }

    /// The same; a seat is taken now if it can be had.
    #[cold]
    pub(crate) fn sit() -> usize {
        let key = KEY.load(Relaxed);
        if mine() != 0 || key == 0 {
            return mine();
        }
        let Some(seat) = ALL.take() else { return NONE };
        // A signal handler may have sat down meanwhile.
        let first = MINE.with(|mine| mine.compare_exchange(0, place_of(seat), Relaxed, Relaxed));
        if first.is_err() {
            ALL.give_back(seat);
            return mine();
        }
        // SAFETY: `prepare` made the key; the value is a number that `leave` alone looks at.
        if unsafe { pthread_setspecific(key - 1, core::ptr::without_provenance(seat as usize)) } != 0 {
            MINE.with(|mine| mine.store(NONE, Relaxed));
            ALL.give_back(seat);
        }
        mine()
    }

    /// The thread ends. Readers in what is still to run count by CPU.
    unsafe extern "C" fn leave(seat: *mut u8) {
        MINE.with(|mine| mine.store(NONE, Relaxed));
        ALL.give_back(seat.addr() as u32);
    }

    /// The highest seat that was ever taken.
    pub(crate) fn high() -> u32 {
        ALL.high()
    }

    /// In the child of a fork, whose one thread this is.
    pub(crate) fn after_fork() {
        let mine = mine();
        ALL.keep((1..=SEATS).find(|seat| place_of(*seat) == mine).unwrap_or(0));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_seat_is_taken_once_and_the_lowest_free_one_first() {
        let seats = Seats::new();
        let all: std::vec::Vec<_> = (0..SEATS).map(|_| seats.take().unwrap()).collect();
        assert!(all.iter().copied().eq(1..=SEATS) && seats.take().is_none());
        assert_eq!(seats.high(), SEATS);
        seats.give_back(200);
        seats.give_back(3);
        assert_eq!([seats.take(), seats.take(), seats.take()], [Some(3), Some(200), None]);
        seats.keep(65);
        let again: std::vec::Vec<_> = (1..SEATS).map(|_| seats.take().unwrap()).collect();
        assert!(again.iter().copied().eq((1..=SEATS).filter(|n| *n != 65)) && seats.take().is_none());
    }

    #[test]
    #[cfg(not(miri))]
    fn a_thread_keeps_its_seat_and_gives_it_back_at_its_end() {
        prepare();
        let used = || {
            let place = sit();
            assert_eq!(mine(), place);
            assert_eq!(sit(), place);
            place
        };
        // Far more threads than seats, one after the other, all find one.
        for _ in 0..2 * SEATS {
            let place = std::thread::spawn(used).join().unwrap();
            assert!((1..=SEATS).any(|seat| crate::block::place_of(seat) == place), "{place:#x}");
        }
    }
}
