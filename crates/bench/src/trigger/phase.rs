//! Some samples of calls, of a second each unless asked otherwise.
//!
//! For:     the unprobed, the probed and the kernel's part of a run.
//! State:   none between phases.
//! Context: control.
//! Keeps:   P1 samples with index 0 to warm + seconds are taken, those from `warm` on are used.
//!          P2 hits are read after the producers ended, and so are all of them.
//! Checked: tests below.
//! Source:  kernel-facts 6.1. Departs: differences where the kernel exchanges with zero.

use super::child::Traced;
use super::error::TriggerError;
use super::functions::Function;
use super::shared::Shared;
use crate::Summary;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How often in a sample producers note their processor time.
pub const TICKS_A_SAMPLE: u64 = 10;
/// A sample, as in the kernel's bench.
pub const SECOND: Duration = Duration::from_secs(1);
/// A producer that has just started meets cold caches: so many of its first ticks are never used.
const COLD_TICKS: u64 = 2;

/// What to run, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// Samples that are not used.
    pub warm: usize,
    /// Samples that are, less one.
    pub seconds: usize,
    /// Each of them.
    pub sample: Duration,
}

impl Length {
    /// The unprobed phases around a probed one.
    pub fn baseline(sample: Duration) -> Length {
        Length { warm: 0, seconds: 1, sample }
    }
}

/// One sample, as it is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Iteration {
    /// Its number.
    pub index: usize,
    /// Hits since the last.
    pub hits: u64,
    /// How long it really was.
    pub took: Duration,
}

impl Iteration {
    /// Hits a second in millions, by the real length.
    pub fn mega_hits(&self) -> f64 {
        self.hits as f64 / 1e6 / self.took.as_secs_f64()
    }
}

/// What a phase has shown.
#[derive(Clone, Debug)]
pub struct Phase {
    /// The samples to be used.
    pub samples: Vec<Iteration>,
    /// Nanoseconds of processor time a call, a value for each producer and tick.
    pub cpu_ns: Vec<f64>,
    /// Hits from start to end.
    pub hits: u64,
    /// Calls from start to end.
    pub calls: u64,
    /// What a sample was to be.
    pub sample: Duration,
}

impl Phase {
    /// Runs producers for the length; `hits` reads the count of the probe, or of the calls if there is none.
    pub fn run(
        traced: &mut Traced,
        function: Function,
        length: Length,
        hits: &dyn Fn(&Shared) -> Result<u64, TriggerError>,
        mut progress: impl FnMut(&Iteration) -> std::io::Result<()>,
    ) -> Result<Phase, TriggerError> {
        traced.shared().clear();
        let at_start = hits(traced.shared())?;
        traced.go(function)?;
        let mut samples = Vec::new();
        let began = Instant::now();
        let (mut last, mut counted) = (began, hits(traced.shared())?);
        for index in 0..=length.warm + length.seconds {
            wait_a_sample(began, length.sample, index as u64, traced.shared());
            let (now, count) = (Instant::now(), hits(traced.shared())?);
            let iteration = Iteration { index, hits: count - counted, took: now - last };
            progress(&iteration)?;
            samples.push(iteration);
            (last, counted) = (now, count);
        }
        traced.stop()?;
        samples.drain(..length.warm);
        let first_tick = (length.warm as u64 * TICKS_A_SAMPLE).max(COLD_TICKS);
        let last_tick = (length.warm + length.seconds + 1) as u64 * TICKS_A_SAMPLE;
        let shared = traced.shared();
        Ok(Phase {
            samples,
            cpu_ns: cpu_ns(shared, first_tick, last_tick),
            hits: hits(shared)? - at_start,
            calls: shared.all_calls(),
            sample: length.sample,
        })
    }

    /// Hits a second in millions as the sources' summary has them: each sample counts as what it was to be.
    pub fn nominal(&self) -> Summary {
        let seconds = self.sample.as_secs_f64();
        let rates: Vec<f64> = self.samples.iter().map(|s| s.hits as f64 / 1e6 / seconds).collect();
        Summary::of(&rates)
    }

    /// The same by real lengths, ascending.
    pub fn rates(&self) -> Vec<f64> {
        let mut rates: Vec<f64> = self.samples.iter().map(Iteration::mega_hits).collect();
        rates.sort_by(f64::total_cmp);
        rates
    }

    /// The middle of the nanoseconds of processor time a call.
    pub fn ns_per_call(&self) -> f64 {
        Summary::of(&self.cpu_ns).median
    }

    /// The least of them: what a call costs while nobody else uses the core.
    pub fn least_ns_per_call(&self) -> f64 {
        Summary::of(&self.cpu_ns).min
    }
}

/// Sleeps to the end of sample `index`, and moves the tick on the way.
fn wait_a_sample(began: Instant, sample: Duration, index: u64, shared: &Shared) {
    for step in 1..=TICKS_A_SAMPLE {
        let tick = index * TICKS_A_SAMPLE + step;
        let until = began + sample.mul_f64(tick as f64 / TICKS_A_SAMPLE as f64);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        shared.tick().store(tick, Relaxed);
    }
}

/// Processor time a call between each two records, from `first` to `last`.
fn cpu_ns(shared: &Shared, first: u64, last: u64) -> Vec<f64> {
    let of_producer = |producer: usize| {
        let records: Vec<_> = (first..=last).filter_map(|tick| shared.recorded(producer, tick)).collect();
        let between = |w: &[super::shared::Record]| {
            let calls = w[1].calls - w[0].calls;
            (calls > 0).then(|| (w[1].cpu_ns - w[0].cpu_ns) as f64 / calls as f64)
        };
        records.windows(2).filter_map(between).collect::<Vec<f64>>()
    };
    (0..shared.producers()).flat_map(of_producer).collect()
}

#[cfg(test)]
mod tests {
    use super::super::shared::Record;
    use super::*;

    #[test]
    fn processor_time_is_divided_by_the_calls_of_the_same_stretch() {
        let fd = sys::memfd_inheritable(c"test", Shared::len_bytes(1, 8)).unwrap();
        let shared = Shared::map(fd, 1, 8).unwrap();
        for (tick, calls, cpu_ns) in [(1, 10, 100), (2, 20, 120), (4, 30, 150), (5, 30, 190)] {
            shared.record(0, tick, Record { calls, cpu_ns });
        }
        assert_eq!(cpu_ns(&shared, 1, 5), [2.0, 3.0]);
        assert_eq!(cpu_ns(&shared, 2, 5), [3.0]);
    }

    #[test]
    fn the_summary_counts_samples_and_the_median_measures_them() {
        let sample = |hits| Iteration { index: 0, hits, took: Duration::from_millis(2000) };
        let samples = vec![sample(4_000_000), sample(2_000_000)];
        let mut phase = Phase { samples, cpu_ns: vec![], hits: 0, calls: 0, sample: SECOND };
        assert_eq!(phase.nominal().mean, 3.0);
        assert_eq!(phase.rates(), [1.0, 2.0]);
        phase.sample = SECOND / 4;
        assert_eq!(phase.nominal().mean, 12.0);
    }
}
