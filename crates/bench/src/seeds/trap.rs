//! The published rows for entries, and a probe of `trap` in this very program, by each flavour of its readers.
//!
//! For:     `bench seeds trap`.
//! State:   the results of one row at a time.
//! Context: control; a child for each figure, since an engine has its readers for life.
//! Keeps:   X1 all cells of a row come from one run, taken in turns.
//!          X2 hits = calls in each of them, or the run fails.
//! Checked: X2 in every child.

use super::published::Table;
use super::table::line;
use super::{Options, load};
use crate::Summary;
use crate::pin::{self, Gate};
use percpu::Counter;
use probe::{Consumer, Protection, Regs, Verdict};
use std::io::{Error, Result, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use trap::{Config, Engine, Vectors};

const READERS: [Protection; 4] =
    [Protection::Fast, Protection::Lite, Protection::Normal, Protection::Sigsafe];
const RUNS: usize = 11;

// A nop of five bytes, and back: a function of the program's, whose start is known.
std::arch::global_asm!(
    ".p2align 4, 0xcc\n.globl seeds_trap_probed\n.type seeds_trap_probed, @function\nseeds_trap_probed:\n.cfi_startproc",
    ".byte 0x0f, 0x1f, 0x44, 0, 0\nret",
    ".cfi_endproc\n.size seeds_trap_probed, . - seeds_trap_probed\n.p2align 4, 0xcc",
);

unsafe extern "C" {
    fn seeds_trap_probed();
}

/// How the probe stands, and which vector registers it saves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    JumpLow,
    Jump,
    Trap,
}

impl Way {
    const ALL: [Way; 3] = [Way::JumpLow, Way::Jump, Way::Trap];

    /// As the rows call it, and a child's arguments.
    fn name(self) -> &'static str {
        match self {
            Way::JumpLow => "jump, xmm",
            Way::Jump => "jump",
            Way::Trap => "int3",
        }
    }
}

/// What one child measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    readers: Protection,
    way: Way,
    cpus: usize,
}

impl Cell {
    /// As it stands in the child's arguments: `lite:jump:2`.
    pub fn parse(text: &str) -> Option<Cell> {
        let mut parts = text.split(':');
        let (name, way, cpus) = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
        let readers = READERS.into_iter().find(|readers| readers.name() == name)?;
        let way = Way::ALL.into_iter().find(|one| one.name() == way)?;
        (1..=pin::online()).contains(&cpus).then_some(Cell { readers, way, cpus })
    }

    fn text(self) -> String {
        format!("{}:{}:{}", self.readers, self.way.name(), self.cpus)
    }
}

/// Measures and prints, for the CPU counts that this machine has.
pub fn print(table: &Table, options: &Options, out: &mut impl Write) -> Result<()> {
    writeln!(out, "{}, M/s; ours: trap, a probe in its own program, one consumer that counts", table.title)?;
    line(out, "readers", READERS.into_iter().map(|readers| readers.to_string()))?;
    for row in table.rows.iter().filter(|row| row.cpus <= pin::online()) {
        for way in Way::ALL {
            print_row(row.cpus, way, options, out)?;
        }
    }
    writeln!(
        out,
        "jump: saves all vector registers; xmm: the low 128 bits of sixteen, for consumers that use no others"
    )?;
    writeln!(out, "hits = calls in every cell\n")
}

fn print_row(cpus: usize, way: Way, options: &Options, out: &mut impl Write) -> Result<()> {
    let at_first = load();
    let mut results: [Vec<f64>; READERS.len()] = Default::default();
    for _ in 0..options.runs.unwrap_or(RUNS) {
        for (readers, results) in READERS.into_iter().zip(&mut results) {
            results.push(in_child(Cell { readers, way, cpus }, options.calls)?);
        }
    }
    let ours = |results: &Vec<f64>| {
        let summary = Summary::of(results);
        format!("{:.2}±{:.2}", summary.median, summary.sd)
    };
    line(out, &format!("{cpus} CPU  {}", way.name()), results.iter().map(ours))?;
    writeln!(out, "{:<7}load average {at_first} to {}", "", load())
}

fn in_child(cell: Cell, calls: u64) -> Result<f64> {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["bench", "seeds", "trap", "--cell", &cell.text(), "--calls", &calls.to_string()]);
    let got = child.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&got.stdout);
    let rate = text.trim().parse().ok().filter(|_| got.status.success());
    rate.ok_or_else(|| Error::other(format!("{} gave no figure: {text}", cell.text())))
}

struct Count(Counter);

impl Consumer for Count {
    fn handler(&self, _: &mut Regs, _: &mut u64) -> Verdict {
        self.0.inc();
        Verdict::Continue
    }
}

/// The child's part: measures, and prints one figure.
pub fn cell(cell: Cell, calls: u64, out: &mut impl Write) -> Result<()> {
    let other = |error: trap::ProbeError| Error::other(error.to_string());
    let vectors = if cell.way == Way::JumpLow { Vectors::Low } else { Vectors::All };
    let jumps = cell.way != Way::Trap;
    let config = Config { readers: cell.readers, jumps, vectors, ..Config::default() };
    let engine = Engine::start(config).map_err(other)?;
    let function = seeds_trap_probed as *const () as u64;
    let count = Arc::new(Count(Counter::new()));
    // SAFETY: an instruction begins there, and the consumer only counts.
    let probe = unsafe { engine.probe(function, count.clone()) }.map_err(other)?;
    let rate = rate(cell.cpus, calls);
    let way = probe.way();
    engine.remove([probe]);
    let (hits, made) = (count.0.sum(), calls * cell.cpus as u64);
    if hits != made {
        return Err(Error::other(format!("hits {hits}, calls {made}")));
    }
    if way.is_none_or(|way| (way.rung != trap::Rung::Trap) != jumps) {
        return Err(Error::other("it stands another way than it was asked for"));
    }
    writeln!(out, "{}", rate / 1e6)
}

/// Calls a second of all threads together.
fn rate(threads: usize, calls: u64) -> f64 {
    // SAFETY: it does nothing.
    let call = |_| unsafe { seeds_trap_probed() };
    let (start, end) = (&Gate::new(threads), &Gate::new(threads));
    std::thread::scope(|s| {
        let work = |cpu: usize| {
            move || {
                pin::pin_to(cpu);
                start.pass();
                let began = Instant::now();
                (0..calls).for_each(call);
                let seconds = began.elapsed().as_secs_f64();
                end.arrive();
                calls as f64 / seconds
            }
        };
        let all: Vec<_> = (0..threads).map(|cpu| s.spawn(work(cpu))).collect();
        all.into_iter().map(|thread| thread.join().expect("a caller does not panic")).sum()
    })
}
