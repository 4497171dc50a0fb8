//! One script through everything that a script goes through.
//!
//! For:     `torture lang`.
//! State:   a compiler.
//! Context: control.
//! Keeps:   P1 what is refused says why, with a place; what is refused as a defect of ours is an error here.
//! Checked: `tests/lang.rs`.

use super::Tally;
use super::generate::Kind;
use super::options::{Options, Wrong};
use bpf::helper::FIRST_MAP;
use bpf::{Callee, Op, Wide};
use jit::{Compiler, Effort, Level, Loaded, Meaning, Refusal};
use lang::ast::{AttachPoint, Spec};
use lang::program::{Event, Probe, Script};
use lang::run::{Buffering, Format, Machine, Out, Settings, Untraced, specs};
use lang::{Checked, Missing, Nowhere, Request, Site, World, check, formatted, lower};
use session::{NotProgram, Program, Wanted};
use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use wire::maps::NearTable;

/// More than any program that ends takes.
const FUEL: u64 = 100_000_000;
/// Bytes of registers that a program is given.
const CONTEXT: usize = 168;
/// Instructions of a program, expressions, and bytes of constants: bounds that no small script comes near.
const TYPES_MAX: usize = 5_000_000;
const BYTES_MAX: usize = 1 << 24;

/// What runs scripts.
pub struct Pipeline {
    compiler: Compiler,
    broken: Option<Wrong>,
}

/// A world in which every probe of a program has two places.
struct Everywhere;

impl World for Everywhere {
    fn expand(&mut self, point: &AttachPoint) -> Result<Option<Vec<Site>>, Missing> {
        let site = |place| Site { name: point.text.clone().into(), place, marks: None, is_go: false };
        let is_target = matches!(point.spec, Spec::Uprobe { .. });
        Ok(is_target.then(|| vec![site(0), site(1)]))
    }
}

impl Pipeline {
    pub fn start(options: &Options) -> Result<Pipeline, String> {
        let compiler = Compiler::new().map_err(|error| error.to_string())?;
        Ok(Pipeline { compiler, broken: options.broken.map(|broken| broken.1) })
    }

    /// An error is a defect.
    pub fn put_through(&mut self, kind: Kind, text: &str, tally: &mut Tally) -> Result<(), String> {
        if self.broken == Some(Wrong::Endless) {
            loop {
                std::hint::spin_loop();
            }
        }
        if let Ok(new) = formatted("x", text) {
            let again =
                formatted("x", &new).map_err(|refused| format!("formatted it is refused: {refused}"))?;
            if again != new {
                return Err(format!("formatted twice it differs:\n{new}\n{again}"));
            }
        }
        let mut request = Request::of(text);
        request.safe = kind == Kind::Correct;
        request.params = vec!["5".into(), "word".into()];
        let world: &mut dyn World = if text.len().is_multiple_of(2) { &mut Everywhere } else { &mut Nowhere };
        let checked = match check(&request, world) {
            Ok(checked) => checked,
            Err(refused) if refused.show().is_empty() => return Err("refused without a word".into()),
            Err(_) => return Ok(()),
        };
        bounded("types", checked.types.len(), TYPES_MAX)?;
        let options = lang::Options { says_failures: text.len().is_multiple_of(3), ncpus: 2, time_map: None };
        let script = match lower(&checked, options) {
            Ok(script) => script,
            Err(error) => return refusal(&error.show(&checked.sources)),
        };
        tally.accepted += 1;
        bounded("scratch memory", script.scratch, BYTES_MAX)?;
        bounded("constants", script.constants.len(), BYTES_MAX)?;
        // As tables of that kind would lie somewhere.
        let tables: Vec<_> =
            specs(&script.maps).iter().map(|spec| map::Form::new(spec, 2)?.near(4096, 24)).collect();
        for probe in &script.probes {
            self.program(probe, &tables, tally)?;
        }
        match kind {
            Kind::Numbers => self.compare(&script, tally),
            Kind::Correct => execute(&checked, script, tally),
            Kind::Broken => Ok(()),
        }
    }

    /// What is said of each program.
    fn program(
        &mut self,
        probe: &Probe,
        tables: &[Option<NearTable>],
        tally: &mut Tally,
    ) -> Result<(), String> {
        tally.programs += 1;
        tally.insns += probe.program.insns().len() as u64;
        let mut insns = probe.program.insns().to_vec();
        if self.broken == Some(Wrong::Refuse) {
            insns.pop();
        }
        bpf::Program::new(insns).map_err(|why| format!("{}: bpf refuses its program: {why}", probe.name))?;
        if !matches!(probe.event, Event::Target(_)) {
            return Ok(());
        }
        let meaning = |wide: Wide| match wide {
            Wide::MapIndex(number) => Some(Meaning::Arena(64 * number.cast_unsigned())),
            Wide::MapValueIndex { offset, .. } => Some(Meaning::Arena(4096 + offset)),
            _ => None,
        };
        let near = |wide: Wide| match wide {
            Wide::MapIndex(number) => *tables.get(usize::try_from(number - FIRST_MAP).ok()?)?,
            _ => None,
        };
        let wanted = Wanted {
            name: &probe.name,
            level: Level::Own,
            scratch: probe.scratch,
            meaning: &meaning,
            near: &near,
            ..Wanted::default()
        };
        match Program::new(&mut self.compiler, &probe.program, &wanted) {
            Ok(_) => tally.compiled += 1,
            // What helpers do not do at hits yet, and what is too large, is said to the user.
            Err(NotProgram::Refused(refused))
                if matches!(refused.why, Refusal::NoHelper { .. } | Refusal::TooLong { .. }) => {}
            Err(NotProgram::TooMuchScratch(_)) => {}
            Err(why) => return Err(format!("{}: it is not compiled: {why}", probe.name)),
        }
        Ok(())
    }

    /// Interpreted, and compiled in four ways: one result.
    fn compare(&mut self, script: &Script, tally: &mut Tally) -> Result<(), String> {
        for probe in script.probes.iter().filter(|probe| is_alone(&probe.program)) {
            let mut memory = [0; CONTEXT];
            let mut host = bpf::Buffer::new(&mut memory, |_, _| None);
            let args = [bpf::BUFFER_ADDR, CONTEXT as u64, 0, 0, 0];
            let wanted = bpf::run(&probe.program, &mut host, args, FUEL);
            let wanted = wanted.map_err(|fault| format!("interpreted: {fault}\n{}", probe.program))?;
            for (level, effort) in [Level::Own, Level::Checked]
                .into_iter()
                .flat_map(|level| [Effort::Speed, Effort::None].map(|effort| (level, effort)))
            {
                let broken = match self.broken {
                    Some(Wrong::Compiler(broken)) => Some(broken),
                    _ => None,
                };
                let options = jit::Options { level, effort, broken, ..jit::Options::default() };
                let code = self.compiler.compile(&probe.program, &options);
                let code = code.map_err(|why| format!("it is not compiled: {why}\n{}", probe.program))?;
                let loaded = Loaded::new(&code, |_| None).map_err(|why| why.to_string())?;
                // SAFETY: it calls no helper and names no map, so it touches its stack and its context alone, and the
                // interpreter has just run it without a fault.
                let ran = unsafe { loaded.run_on(&mut [0; CONTEXT], FUEL) };
                let ran = ran.map_err(|fault| format!("{level:?} {effort:?}: {fault}\n{}", probe.program))?;
                if ran != wanted {
                    return Err(format!(
                        "{level:?} {effort:?}: {ran:#x} and not {wanted:#x}\n{}",
                        probe.program
                    ));
                }
                tally.compared += 1;
            }
        }
        Ok(())
    }
}

/// It calls nothing, and has no memory but its stack and context.
fn is_alone(program: &bpf::Program) -> bool {
    program.ops().all(|(_, op)| match op {
        Op::Call(callee) => matches!(callee, Callee::Local(_)),
        Op::Wide { wide, .. } => matches!(wide, Wide::Value(_)),
        _ => true,
    })
}

/// What the lowering refuses has to be more than can be had, and not what it made wrong.
fn refusal(said: &str) -> Result<(), String> {
    let is_ours = said.contains("the program of this probe is too large") && !said.contains("instructions");
    match said.is_empty() || is_ours {
        true => Err(format!("the lowering made a program that is refused: {said}")),
        false => Ok(()),
    }
}

fn bounded(what: &str, n: usize, max: usize) -> Result<(), String> {
    if n < max { Ok(()) } else { Err(format!("{n} {what}; {max} at most")) }
}

/// Runs it in the controller.
fn execute(checked: &Checked, script: Script, tally: &mut Tally) -> Result<(), String> {
    if script.probes.iter().any(|probe| !matches!(probe.event, Event::Begin | Event::End)) {
        return Ok(());
    }
    let settings = Settings {
        is_quiet: true,
        prints_maps: true,
        trailer: checked.config.str_trunc_trailer.clone(),
        cat_max: checked.config.max_cat_bytes,
        ..Settings::default()
    };
    let format = if tally.runs.is_multiple_of(2) { Format::Text } else { Format::Json };
    let said = Said::default();
    let out = Out::new(Box::new(io::sink()), format, Buffering::Full, false);
    let machine = Machine::new(script, settings, out, Box::new(said.clone()))?;
    let ended = machine.run(&mut Untraced);
    tally.runs += 1;
    if let Some(error) = ended.failure {
        return Err(format!("its output can't be written: {error}"));
    }
    let said = String::from_utf8_lossy(&said.0.borrow()).into_owned();
    match said.lines().find(|line| line.contains("ended before its end") && !line.contains("out of fuel")) {
        Some(fault) => Err(fault.to_owned()),
        None => Ok(()),
    }
}

/// Bytes of the end of what a script says beside its output that are kept.
const SAID_MAX: usize = 1 << 20;

/// What is said beside the output.
#[derive(Clone, Default)]
struct Said(Rc<RefCell<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A script may warn without end; what is looked for is said at its end, and is short.
        let mut said = self.0.borrow_mut();
        said.extend_from_slice(bytes);
        if said.len() > 2 * SAID_MAX {
            let gone = said.len() - SAID_MAX;
            said.drain(..gone);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
