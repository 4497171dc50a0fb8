//! The monotonic clock as a line over the processor's counter, in pieces that follow one another.
//!
//! For:     [`Maps`](crate::Maps), which writes the pieces where programs at hits read them: a reading of the counter takes 10 ns where
//!          a call of the kernel's clock takes 170 (2026-11, AMD family 26).
//! State:   the piece that was made last, readings of both clocks by which the next is made.
//! Context: control.
//! Keeps:   C1 what was said of a tick stays true, and of a later tick no less is said: a piece begins where the one before ends.
//!          C2 a piece is not behind the kernel's clock while that goes as fast as before, and ends [`AHEAD`] ahead of it: so who asks
//!             the kernel between two pieces, and takes no less than the end of the first, finds no step back at either.
//!          C3 a step of either clock (suspend, a machine that was moved) begins anew: what was measured over it is not used.
//! Checked: tests below (C1 to C3 on clocks that go as they like); runtime tests/helpers (beside the kernel's clock).

/// Nanoseconds that a piece ends ahead of the kernel's clock: more than a reading is off and the kernel's rate changes meanwhile.
pub const AHEAD: u64 = 1_000;
/// The longest piece. The next is made in the second half of one.
const LONGEST: u64 = 1_000_000_000;
/// A rate that was measured for less is not used: both readings are off by some 50 ns.
const BASE_LEAST: u64 = 10_000_000;
/// A piece is at most so many times as long as its rate was measured, ...
const TIMES_BASE: u64 = 8;
/// ... or so long, for a rate that was known before a step.
const SHORTEST: u64 = 80_000_000;
/// After so long the rate is measured from a later reading on.
const BASE_ENOUGH: u64 = 1_000_000_000;
/// A rate that differs by more than this part of itself was measured over a step.
const STEP: u64 = 1_000;

/// The counter, and the monotonic clock at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Ticks.
    pub ticks: u64,
    /// Nanoseconds.
    pub ns: u64,
}

/// The clock from one tick up to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first tick.
    pub from: u64,
    /// Behind the last.
    pub until: u64,
    /// Nanoseconds at the first.
    pub ns: u64,
    /// Nanoseconds for each tick, times 2^32.
    pub ns_per_tick: u64,
}

impl Piece {
    /// Nanoseconds at a tick of it, or at its end.
    pub fn at(&self, ticks: u64) -> u64 {
        self.ns.wrapping_add(scaled(ticks.clamp(self.from, self.until) - self.from, self.ns_per_tick))
    }
}

fn scaled(ticks: u64, ns_per_tick: u64) -> u64 {
    ((u128::from(ticks) * u128::from(ns_per_tick)) >> 32) as u64
}

fn ratio(ns: u64, ticks: u64) -> u64 {
    u64::try_from((u128::from(ns) << 32) / u128::from(ticks.max(1))).unwrap_or(u64::MAX)
}

/// Nanoseconds a tick, how many of these a piece may be long, and whether neither clock has made a step.
struct Rate {
    rate: u64,
    longest: u64,
    is_of_now: bool,
}

/// Makes the pieces.
#[derive(Clone, Debug)]
pub struct Timekeeper {
    /// Where the measured rate begins, and where the next one will.
    since: Reading,
    later: Reading,
    rate: Option<u64>,
    /// The one before the last, and the last.
    pieces: [Option<Piece>; 2],
}

impl Timekeeper {
    /// Begins to measure.
    pub fn new(now: Reading) -> Timekeeper {
        Timekeeper { since: now, later: now, rate: None, pieces: [None; 2] }
    }

    /// The piece that is to be written now: none while the last one goes on for long enough, or the rate is not known yet.
    pub fn next(&mut self, now: Reading) -> Option<Piece> {
        let Rate { rate, longest, is_of_now } = self.measured(now)?;
        let is_current = |piece: &Piece| now.ticks < piece.until;
        let goes_on = |piece: &Piece| piece.until.saturating_sub(now.ticks) > (piece.until - piece.from) / 2;
        let (from, least) = match self.pieces[1] {
            _ if !is_of_now => (now.ticks, 0),
            Some(last) if goes_on(&last) => return None,
            Some(last) if is_current(&last) => (last.until, last.at(last.until)),
            Some(last) => (now.ticks, last.at(last.until)),
            None => (now.ticks, 0),
        };
        let until = from.checked_add(ratio(longest, 1) / rate)?;
        // The kernel's clock at a tick to come, as far as can be told, and a little more.
        let aim = |ticks: u64| now.ns.saturating_add(scaled(ticks - now.ticks, rate)).saturating_add(AHEAD);
        let ns = least.max(aim(from));
        let ns_per_tick =
            ratio(aim(until).saturating_sub(ns), until - from).clamp(rate / 2 + 1, rate.saturating_mul(2));
        let piece = Piece { from, until, ns, ns_per_tick };
        self.pieces = [self.pieces[1], Some(piece)];
        if now.ns.saturating_sub(self.later.ns) >= BASE_ENOUGH {
            (self.since, self.later) = (self.later, now);
        }
        Some(piece)
    }

    /// The rate of now, or the one that was known before a step.
    fn measured(&mut self, now: Reading) -> Option<Rate> {
        let base = now.ns.checked_sub(self.since.ns).zip(now.ticks.checked_sub(self.since.ticks));
        let (ns, ticks) = base.unwrap_or_default();
        let measured = (ns >= BASE_LEAST && ticks > 0).then(|| ratio(ns, ticks).max(1));
        let is_of_now = match (self.rate, measured) {
            (Some(old), Some(new)) => old.abs_diff(new) <= old / STEP,
            _ => base.is_some(),
        };
        if is_of_now {
            self.rate = measured.or(self.rate);
        } else {
            (self.since, self.later) = (now, now);
        }
        let longest = ns.saturating_mul(TIMES_BASE).clamp(SHORTEST, LONGEST);
        self.rate.map(|rate| Rate { rate, longest: if is_of_now { longest } else { SHORTEST }, is_of_now })
    }

    /// The piece that was made last.
    pub fn last(&self) -> Option<Piece> {
        self.pieces[1]
    }

    /// The clock at a tick, if a piece has it.
    pub fn at(&self, ticks: u64) -> Option<u64> {
        let piece = self.pieces.iter().flatten().find(|piece| (piece.from..piece.until).contains(&ticks));
        piece.map(|piece| piece.at(ticks))
    }
}

/// True if the kernel's clocks go by the processor's counter, which then is one for all CPUs and never stands.
pub fn is_clock_by_counter() -> bool {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::fs::read_to_string(source).is_ok_and(|name| name.trim() == "tsc")
}

/// The counter.
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a counter; this process has not asked for a trap of it.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// Both clocks now: of a few readings the one that took least.
pub(crate) fn read() -> Reading {
    let readings = (0..5).map(|_| {
        let (before, ns) = (ticks(), sys::monotonic_ns());
        let took = ticks().saturating_sub(before);
        (took, Reading { ticks: before + took / 2, ns })
    });
    readings.min_by_key(|(took, _)| *took).map_or(Reading { ticks: 0, ns: 0 }, |(_, reading)| reading)
}

/// Waits until the rate can be measured.
pub(crate) fn wait_for_base(keeper: &Timekeeper, now: Reading) {
    let missing = BASE_LEAST.saturating_sub(now.ns.saturating_sub(keeper.since.ns));
    if keeper.rate.is_none() && missing > 0 {
        std::thread::sleep(std::time::Duration::from_nanos(missing));
    }
}

/// How far another clock is ahead of the monotonic one, modulo 2^64: as `known`, if that may still be so.
pub(crate) fn ahead(clock: usize, known: Option<u64>) -> Option<u64> {
    /// Whoever reads both clocks finds them so far apart that nobody would tell.
    const SAME: u64 = 1_000;
    let readings = (0..5).map(|_| {
        let (before, other, after) = (sys::monotonic_ns(), sys::clock_ns(clock), sys::monotonic_ns());
        (after - before, other.wrapping_sub(before + (after - before) / 2))
    });
    let (took, found) = readings.min_by_key(|(took, _)| *took)?;
    let differs = |known: u64| (known.wrapping_sub(found).cast_signed()).unsigned_abs() > took / 2 + SAME;
    Some(known.filter(|known| !differs(*known)).unwrap_or(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel's clock over a counter of 2.6 GHz whose rate changes, and both of which may step.
    struct World {
        ticks: f64,
        ns: f64,
        /// Nanoseconds a tick.
        rate: f64,
    }

    impl World {
        fn new() -> World {
            World { ticks: 7e12, ns: 3e15, rate: 1e9 / 2.6e9 }
        }

        fn pass(&mut self, ns: f64) -> Reading {
            self.ticks += ns / self.rate;
            self.ns += ns;
            self.now()
        }

        fn now(&self) -> Reading {
            Reading { ticks: self.ticks as u64, ns: self.ns as u64 }
        }
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % n
        }
    }

    /// As runtime/helpers/world.rs has it.
    const STEPPED: u64 = 100_000;

    /// Who reads the clock at hits: by the two pieces that were written last, or of the kernel, as the helper does.
    #[derive(Default)]
    struct Reader {
        spans: [Option<Piece>; 2],
        written: usize,
        asked: u64,
    }

    impl Reader {
        fn write(&mut self, piece: Option<Piece>) {
            if piece.is_some() {
                self.spans[self.written % 2] = piece;
                self.written += 1;
            }
        }

        fn clock(&mut self, now: Reading) -> u64 {
            let mut least = 0;
            for piece in self.spans.iter().flatten().filter(|piece| piece.from <= now.ticks) {
                if now.ticks < piece.until {
                    return piece.at(now.ticks);
                }
                least = least.max(piece.at(now.ticks));
            }
            self.asked += 1;
            if least > now.ns + STEPPED { now.ns } else { now.ns.max(least) }
        }
    }

    #[test]
    fn it_is_the_kernels_clock_and_never_goes_back_however_late_the_next_piece_is() {
        for seed in 1..60 {
            let (mut world, mut random, mut reader) =
                (World::new(), Random(seed * 0x9e37_79b9), Reader::default());
            let mut keeper = Timekeeper::new(world.now());
            let (mut last, mut worst) = (0, 0);
            for _ in 0..20_000 {
                // Looks are 50 ms apart, and now and then much more; the rate wanders by parts in 10^8.
                let pause = if random.below(100) == 0 { 3_000_000_000 } else { 50_000_000 };
                world.rate *= 1.0 + (random.below(21) as f64 - 10.0) * 1e-9;
                let steps = random.below(4) + 1;
                for _ in 0..steps {
                    let now = world.pass((random.below(pause) / steps) as f64);
                    let said = reader.clock(now);
                    assert!(said >= last, "seed {seed}: {said} after {last}");
                    assert!(said >= now.ns, "seed {seed}: behind by {}", now.ns - said);
                    worst = worst.max(said - now.ns);
                    last = said;
                }
                // A reading is off by up to 30 ns, and what is written is seen some time later.
                let mut now = world.now();
                now.ns = now.ns + random.below(61) - 30;
                let piece = keeper.next(now);
                let late = random.below(200_000);
                last = last.max(reader.clock(world.pass(late as f64)));
                reader.write(piece);
            }
            assert!(worst <= 2_000, "seed {seed}: ahead by {worst}");
            assert!(reader.asked < 5_000 && reader.written > 500, "{} {}", reader.asked, reader.written);
        }
    }

    #[test]
    fn a_step_of_either_clock_begins_anew() {
        // The counter goes on while the clock stands (suspend), begins at 0, jumps back; the clock jumps ahead.
        let steps: [fn(&mut World); 4] =
            [|w| w.ticks += 1e13, |w| w.ticks = 1e6, |w| w.ticks -= 1e10, |w| w.ns += 1e12];
        for (number, step) in steps.into_iter().enumerate() {
            let (mut world, mut reader) = (World::new(), Reader::default());
            let mut keeper = Timekeeper::new(world.now());
            for round in 0..400 {
                if round == 200 {
                    step(&mut world);
                    reader.write(keeper.next(world.now()));
                }
                reader.write(keeper.next(world.pass(50e6)));
                let now = world.pass(1e6);
                let said = reader.clock(now);
                assert!(said.abs_diff(now.ns) <= 2_000, "step {number}, round {round}: {said}, {}", now.ns);
            }
            assert!(reader.asked < 10, "{}", reader.asked);
        }
    }

    #[test]
    fn nothing_is_said_before_the_rate_is_known_and_pieces_grow_with_what_is_known() {
        let mut world = World::new();
        let mut keeper = Timekeeper::new(world.now());
        assert_eq!(keeper.next(world.pass(1e6)), None);
        let first = keeper.next(world.pass(11e6)).unwrap();
        let len = |piece: Piece| piece.at(piece.until) - piece.ns;
        assert!((95_000_000..97_000_000).contains(&len(first)), "{first:?}");
        assert_eq!(keeper.next(world.pass(30e6)), None);
        let second = keeper.next(world.pass(40e6)).unwrap();
        assert!(second.from == first.until && second.ns - first.at(first.until) < 3, "{first:?} {second:?}");
        assert!(len(second) > 500_000_000, "{second:?}");
        assert_eq!((keeper.last(), keeper.at(first.from)), (Some(second), Some(first.ns)));
        assert_eq!((keeper.at(second.from), keeper.at(second.until)), (Some(second.ns), None));
    }

    #[test]
    fn no_reading_is_too_odd() {
        let mut random = Random(99);
        let mut keeper = Timekeeper::new(Reading { ticks: 0, ns: 0 });
        let mut last = 0;
        for _ in 0..200_000 {
            let odd = [0, 1, 1 << 40, u64::MAX / 4];
            let mut word = || odd[random.below(4) as usize].wrapping_add(random.below(1 << 33));
            if let Some(piece) = keeper.next(Reading { ticks: word(), ns: word() }) {
                last = piece.at(piece.until);
                assert!(piece.from < piece.until && piece.ns_per_tick > 0, "{piece:?}");
            }
        }
        assert!(last > 0);
    }
}
