//! Programs that run for samples: what they find around them is the sample's, and nothing of the controller's. And records that come
//! faster than they can be shown.

use lang::program::{Event, Named, Script};
use lang::run::{
    Buffering, Engine, Format, Frame, Kept, Look, Machine, Out, Sample, Settings, Shared, Symbols, Traced,
};
use lang::{Nowhere, Request};
use std::rc::Rc;

/// Gives samples once.
struct Given(Vec<(usize, Sample)>);

impl Traced for Given {
    fn is_any(&self) -> bool {
        true
    }

    fn samples(&mut self) -> Vec<(usize, Sample)> {
        std::mem::take(&mut self.0)
    }

    fn look(&mut self, _: &Script, _: &Shared) -> Look {
        Look::On
    }

    fn lost_samples(&self) -> u64 {
        2
    }
}

struct Stacks;

impl Symbols for Stacks {
    fn name(&self, pid: u32, addr: u64) -> Option<(String, u64)> {
        Some((format!("f{addr:x}of{pid}"), 0))
    }

    fn stack(&self, number: u64) -> Vec<Frame> {
        vec![Frame { addr: number, name: format!("stack {number}"), ..Frame::default() }]
    }

    fn keep(&self, pid: u32, frames: &[u64]) -> u64 {
        u64::from(pid) * 1000 + frames.len() as u64
    }
}

/// What a script prints for samples that all belong to its first such probe.
fn text(script: &str, samples: Vec<Sample>) -> String {
    let request = Request { safe: false, ..Request::of(script) };
    let checked = lang::check(&request, &mut Nowhere).unwrap_or_else(|refused| panic!("{}", refused.show()));
    let mut script = lang::lower(&checked, lang::Options::default()).expect("it is lowered");
    script.symbols = Some(Named(Rc::new(Stacks)));
    let probe = script.probes.iter().position(|probe| matches!(probe.event, Event::Sampled(_))).expect("one");
    let said = Kept::default();
    let out = Out::new(Box::new(said.clone()), Format::Text, Buffering::Full, false);
    let settings = Settings {
        is_quiet: true,
        prints_maps: true,
        is_unsafe: true,
        is_silent: true,
        ..Settings::default()
    };
    let machine = Machine::new(script, settings, out, Box::new(said.clone())).expect("a machine");
    let mut traced = Given(samples.into_iter().map(|sample| (probe, sample)).collect());
    let _ = machine.run(&mut traced);
    String::from_utf8(said.bytes()).expect("text")
}

fn sample() -> Sample {
    let mut registers = [0; 21];
    registers[16] = 0x1234;
    registers[14] = 7;
    Sample {
        pid: 3,
        tid: 4,
        comm: "th".into(),
        time: 55,
        cpu: 9,
        is_user: true,
        registers,
        frames: vec![1, 2, 3],
    }
}

#[test]
fn a_program_sees_who_was_sampled() {
    let script = "profile:hz:99 { printf(\"%d %d %d %d %x %d %d %s\\n\", pid, tid, cpu, nsecs(monotonic), reg(\"ip\"), \
                  reg(\"di\"), usermode, probe); printf(\"%s %s\\n\", usym(5), ustack(2)); print(len(ustack)); exit(); }";
    let shown = text(script, vec![sample()]);
    let wanted = "3 4 9 55 1234 7 1 profile:hz:99\nf5of3 \n        stack 3002\n\n3\n";
    assert!(shown.starts_with(wanted), "{shown}");
    let kernel = Sample { is_user: false, ..sample() };
    assert!(text("profile:ms:1 { print(usermode); exit(); }", vec![kernel]).starts_with("0\n"));
}

#[test]
fn nothing_runs_behind_exit_and_what_was_lost_is_told() {
    let shown = text("profile:ms:1 { @n++; if (@n == 2) { exit(); } }", vec![sample(), sample(), sample()]);
    assert!(shown.contains("@n: 2\n") && shown.contains("Lost 2 events"), "{shown}");
}

#[test]
fn an_idle_cpu_has_no_memory_and_gets_no_signal() {
    let idle = Sample { pid: 0, tid: 0, ..Sample::default() };
    let script =
        "profile:ms:1 { signal(9); print((comm, write_user((uint8*)8, \"x\", 1), str(8))); exit(); }";
    let shown = text(script, vec![idle]);
    assert!(shown.contains("(swapper/0, false, )"), "{shown}");
}

/// Another engine, with so many records of the script's first printf.
struct Flood(usize);

impl Engine for Flood {
    fn has_program(&self, _: usize) -> bool {
        true
    }

    fn run(&mut self, _: usize) -> Result<(), String> {
        Ok(())
    }

    fn take_records(&mut self, _: u64) -> Vec<(u64, Vec<u8>)> {
        vec![(0, vec![0; 8]); std::mem::take(&mut self.0)]
    }

    fn lost(&self) -> u64 {
        0
    }

    fn bring(&mut self, _: usize, _: &Shared) {}

    fn clear(&mut self, _: usize) {}

    fn zero(&mut self, _: usize) {}
}

/// Notes how much was shown whenever it may do something.
struct Flooded {
    engine: Option<Flood>,
    said: Kept,
    shown: Vec<usize>,
}

impl Traced for Flooded {
    fn is_any(&self) -> bool {
        true
    }

    fn successor(&mut self) -> Option<Box<dyn Engine>> {
        self.engine.take().map(|flood| Box::new(flood) as Box<dyn Engine>)
    }

    fn look(&mut self, _: &Script, _: &Shared) -> Look {
        Look::Over
    }

    fn meanwhile(&mut self) {
        self.shown.push(self.said.bytes().len());
    }
}

#[test]
fn many_records_are_shown_with_room_for_what_cannot_wait() {
    let request = Request::of("interval:s:100 { printf(\"x\\n\"); }");
    let checked = lang::check(&request, &mut Nowhere).unwrap_or_else(|refused| panic!("{}", refused.show()));
    let script = lang::lower(&checked, lang::Options::default()).expect("it is lowered");
    let said = Kept::default();
    let out = Out::new(Box::new(said.clone()), Format::Text, Buffering::Line, false);
    let settings = Settings { is_quiet: true, is_silent: true, ..Settings::default() };
    let machine = Machine::new(script, settings, out, Box::new(Kept::default())).expect("a machine");
    let mut traced = Flooded { engine: Some(Flood(5000)), said: said.clone(), shown: Vec::new() };
    let _ = machine.run(&mut traced);
    assert_eq!(said.text().matches("x\n").count(), 5000);
    // Before the first, and never behind more than some hundreds of "x\n".
    assert_eq!(traced.shown.first(), Some(&0));
    let gaps = traced.shown.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(gaps.max() < Some(2 * 500) && traced.shown.last() > Some(&(2 * 4500)), "{:?}", traced.shown);
}
