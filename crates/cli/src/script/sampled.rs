//! Probes of a script whose programs run in the controller, a run a sample: profile, software, hardware, watchpoint.
//!
//! For:     live.
//! State:   samplers, each with the number of its probe.
//! Context: control.
//! Keeps:   C1 a probe that cannot be had is an error that says why, and then none is in.
//! Checked: testkit `sampled`.

use lang::ast::{Spec, WatchAt};
use lang::events;
use lang::program::{Event, Script};
use lang::run;
use session::watch::{Access, Sample, Sampler, Watch, WatchError, WatchSpec, What, Whom, resolve};

/// Samplers that run.
#[derive(Default)]
pub struct Sampled {
    all: Vec<(usize, Sampler)>,
}

/// True if a script has such probes.
pub fn has_any(script: &Script) -> bool {
    script.probes.iter().any(|probe| matches!(probe.event, Event::Sampled(_)))
}

impl Sampled {
    /// Takes samples for all such probes of a script, of these processes or of all.
    ///
    /// # Errors
    /// Why not, as it is told.
    pub fn start(&mut self, script: &Script, whom: &[Whom]) -> Result<(), String> {
        for (number, probe) in script.probes.iter().enumerate() {
            let Event::Sampled(spec) = &probe.event else { continue };
            for whom in whom {
                let sampler =
                    what(spec, &probe.name, whom).and_then(|what| started(&what, whom, &probe.name));
                match sampler {
                    Ok(sampler) => self.all.push((number, sampler)),
                    Err(why) => {
                        self.all.clear();
                        return Err(why);
                    }
                }
            }
        }
        Ok(())
    }

    /// What came since the last call, by time.
    pub fn take(&mut self) -> Vec<(usize, run::Sample)> {
        let mut samples = Vec::new();
        for (number, sampler) in &mut self.all {
            samples.extend(sampler.take().into_iter().map(|sample| (*number, told(sample))));
        }
        samples.sort_by_key(|(_, sample)| sample.time);
        samples
    }

    /// Samples that found no room.
    pub fn lost(&self) -> u64 {
        self.all.iter().map(|(_, sampler)| sampler.lost()).sum()
    }

    /// Takes none any more; those that are there stay.
    pub fn stop(&mut self) {
        self.all.iter_mut().for_each(|(_, sampler)| sampler.stop());
    }
}

fn told(sample: Sample) -> run::Sample {
    let Sample { pid, tid, comm, time, cpu, is_user, registers, frames } = sample;
    run::Sample { pid: pid as u32, tid: tid as u32, comm, time, cpu, is_user, registers, frames }
}

fn started(what: &What, whom: &Whom, name: &str) -> Result<Sampler, String> {
    Sampler::start(what, whom).map_err(|why| {
        let more = match &why {
            WatchError::NoRegister { holders, .. } => {
                holders.iter().map(|holder| format!("\n  held by {holder}")).collect()
            }
            WatchError::NotAllowed { paranoid, has_filter: false, .. } => format!(
                "\n  /proc/sys/kernel/perf_event_paranoid is {paranoid}\n  try      sudo, or the capability PERFMON"
            ),
            WatchError::NotAllowed { .. } => {
                "\n  a seccomp filter is on us, as in a container: let it allow perf_event_open".to_owned()
            }
            _ => String::new(),
        };
        format!("ERROR: {name}: {why}{more}")
    })
}

/// What an attach point asks for.
fn what(spec: &Spec, name: &str, whom: &Whom) -> Result<What, String> {
    let numbered = |events: &[events::Event], event: &str, count: &Option<u64>| {
        let found = events.iter().find(|known| event == known.name || event == known.alias);
        let names = || events.iter().map(|known| known.name).collect::<Vec<_>>().join(", ");
        let found = found
            .ok_or_else(|| format!("ERROR: {name}: no event is called {event}; there are {}", names()))?;
        Ok((found.number, count.unwrap_or(found.usual)))
    };
    match spec {
        Spec::Period(nanos) => Ok(What::Clock(*nanos)),
        Spec::Event(event, count) if name.starts_with("hardware") => {
            numbered(&events::HARDWARE, event, count).map(|(number, period)| What::Hardware(number, period))
        }
        Spec::Event(event, count) => {
            numbered(&events::SOFTWARE, event, count).map(|(number, period)| What::Software(number, period))
        }
        Spec::Watchpoint { execute: true, .. } => {
            Err(format!("ERROR: {name}: code is probed, not watched: uprobe:FILE:0xADDRESS"))
        }
        Spec::Watchpoint { at, len, read, .. } => {
            let Whom::Process(pid) = whom else {
                return Err(format!(
                    "ERROR: {name}: name a process with -p, or a command with -c: addresses are a process's own"
                ));
            };
            watch(at, *len, *read, *pid).map(What::Access).map_err(|why| format!("ERROR: {name}: {why}"))
        }
        _ => Err(format!("ERROR: {name}: nothing to take samples of")),
    }
}

fn watch(at: &WatchAt, len: u8, read: bool, pid: i32) -> Result<Watch, WatchError> {
    let access = if read { Access::ReadWrite } else { Access::Write };
    match at {
        // Nothing may be mapped there yet.
        WatchAt::Address(addr) if addr % u64::from(len) != 0 => {
            Err(WatchError::NotAligned { name: format!("{addr:#x}"), addr: *addr, len: len.into() })
        }
        WatchAt::Address(addr) => {
            Ok(Watch { name: format!("{addr:#x}"), addr: *addr, len: len.into(), access })
        }
        WatchAt::Symbol { path, name } => {
            let mode = if read { "rw" } else { "w" };
            let spec = WatchSpec::parse(&format!("w:{path}:{name}:{len}:{mode}"))?;
            let found = resolve(pid, &[spec])?;
            found.into_iter().next().ok_or(WatchError::NotMapped { name: name.clone(), addr: 0 })
        }
    }
}
