//! Traced processes, as the machine needs them.
//!
//! For:     whoever attaches: the machine knows events and maps, and nothing of how a probe is set.
//! State:   the implementor's.
//! Context: control; the machine's thread.
//! Keeps:   T1 nothing is attached before `begin` has run, and a command runs none of its own code before everything is in place.
//!          T2 after `detach` no record comes any more.
//! Checked: testkit `scripts`.

use super::maps::Shared;
use super::sample::Sample;
use crate::program::Script;
use std::collections::BTreeSet;
use std::time::Duration;

/// What waiting for traced processes has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Go on.
    On,
    /// The traced process, or the command, has ended.
    Over,
    /// Somebody asks us to end.
    Asked,
}

/// What is said at the end beside results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// In words.
    pub text: String,
    /// The same for machines: a line.
    pub json: String,
    /// Results are not understood without it.
    pub is_needed: bool,
}

/// The processes of a run.
pub trait Traced {
    /// Starts the command, if there is one, and holds it; its number, 0 without one.
    ///
    /// # Errors
    /// It can't be started, as it is told.
    fn start(&mut self) -> Result<u32, String> {
        Ok(0)
    }

    /// Puts the probes of a script in, its maps with what is in them already, and lets the command go.
    ///
    /// # Errors
    /// Why not, as it is told.
    fn attach(&mut self, script: &Script, maps: &Shared) -> Result<(), String> {
        let _ = (script, maps);
        Ok(())
    }

    /// Who runs programs and has maps beside this machine from now on, or all of them, if that has changed by an attach or a look;
    /// with what was in the maps.
    fn successor(&mut self) -> Option<Box<dyn Engine>> {
        None
    }

    /// Names of places that are in no process, though their file is in one.
    fn left_out(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    /// Numbers of the places where the kernel runs the programs, while processes have others.
    fn aside(&self) -> BTreeSet<u32> {
        BTreeSet::new()
    }

    /// True if there is something to wait for.
    fn is_any(&self) -> bool {
        false
    }

    /// How long nothing needs to be looked at, if that is not long; it is not heard of by a descriptor.
    fn pause(&self) -> Option<Duration> {
        None
    }

    /// Descriptors that are readable when [`Traced::look`] has something to do.
    fn watched(&self) -> Vec<i32> {
        Vec::new()
    }

    /// Does what waits to be done: new processes are entered.
    fn look(&mut self, script: &Script, maps: &Shared) -> Look {
        let _ = (script, maps);
        Look::On
    }

    /// Does what does not wait until all records are shown: called between some and others.
    fn meanwhile(&mut self) {}

    /// The samples that came since the last call, each with the number of its probe, in order.
    fn samples(&mut self) -> Vec<(usize, Sample)> {
        Vec::new()
    }

    /// Samples that were lost, so far.
    fn lost_samples(&self) -> u64 {
        0
    }

    /// Takes everything out again.
    fn detach(&mut self) {}

    /// What the results are of, if not of everything; asked behind [`detach`](Self::detach).
    fn told(&mut self) -> Option<Told> {
        None
    }

    /// What is said behind everything else: how many hits were handled and skipped, and that memory is as before; and whether that
    /// is so.
    fn receipt(&mut self) -> (Vec<String>, bool) {
        (Vec::new(), true)
    }
}

/// Another engine beside this machine's, for some programs and maps of a script or for all of them.
pub trait Engine {
    /// Whether it has this program, which is not run at hits.
    fn has_program(&self, probe: usize) -> bool;

    /// Runs a program that it has.
    ///
    /// # Errors
    /// Why not, as it is told.
    fn run(&mut self, probe: usize) -> Result<(), String>;

    /// The records that programs left since, in their order, with their times: those before `until` at the least.
    fn take_records(&mut self, until: u64) -> Vec<(u64, Vec<u8>)>;

    /// Records that found no room, so far.
    fn lost(&self) -> u64;

    /// Brings up to date what the machine has of a map: makes it what the engine has of one that is its own, and takes in what has come
    /// there since of one that is on both sides.
    fn bring(&mut self, map: usize, maps: &Shared);

    /// Removes all keys of a map.
    fn clear(&mut self, map: usize);

    /// Makes all values of a map zeros.
    fn zero(&mut self, map: usize);

    /// Names of maps that had no room for what came from here, with how many keys that were.
    fn missing(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}

/// No process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Untraced;

impl Traced for Untraced {}

/// Names of addresses in traced processes.
pub trait Symbols {
    /// The function of an address, and how far behind its start that is.
    fn name(&self, pid: u32, addr: u64) -> Option<(String, u64)>;

    /// The frames of the stack of this number, the probed one first; several of one address where functions were inlined.
    fn stack(&self, number: u64) -> Vec<Frame>;

    /// Keeps a stack of a process that was sampled; its number.
    fn keep(&self, pid: u32, frames: &[u64]) -> u64 {
        let _ = (pid, frames);
        0
    }
}

/// A frame of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The address: the probed one, or that behind a call.
    pub addr: u64,
    /// The function, or what else there is to call it.
    pub name: String,
    /// How far behind the function's beginning, if it is one.
    pub offset: Option<u64>,
    /// It was inlined, into the next frame.
    pub is_inlined: bool,
    /// `file:line`.
    pub source: Option<String>,
    /// The mapped file.
    pub file: Option<String>,
    /// The file's own number, in hex, and the address's place in it.
    pub build_id: Option<(String, u64)>,
}
