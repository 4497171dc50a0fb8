//! Programs placed in the process.
//!
//! For:     `Session::attach`, when it writes trampolines.
//! State:   each program's code once in each region, and its description in the arena.
//! Context: control, while the target runs and nothing leads there yet.
//! Keeps:   P1 code stands in the region, behind the agent, and calls that region's helpers.
//!          P2 a description is complete before a consumer leads to it.
//! Checked: tests below; testkit `programs`.

use crate::enter::arena::Arena;
use crate::enter::region::Region;
use crate::enter::setup::Asking;
use crate::facts::error::Broken;
use crate::facts::program::Program;
use crate::find::process;
use crate::live::lists::ProgramAt;
use crate::live::session::Session;
use insn::RegSet;
use std::mem::offset_of;
use wire::maps::ReadWay;
use wire::{HandlerKind, Helper, ProgramDesc, WORKSPACES_EACH, needs};

/// r8 to r11: what a trampoline saves only where a handler writes or reads it.
const SAVED_ON_WISH: u16 = 0b1111 << 8;

impl Session {
    /// Writes all programs' code into each region, for how hits count here.
    pub(crate) fn place_programs(&mut self) -> Result<(), Broken> {
        let mut placed = Vec::with_capacity(self.regions.regions.len());
        // Of one thread there is one place, whichever region it is in.
        let inside = self.regions.regions.first().map_or(0, Region::inside);
        for (number, region) in self.regions.regions.iter().enumerate() {
            let clobbers = region.clobbers.counting(self.rseq_offset.is_some());
            let helpers = match self.rseq_offset {
                Some(_) => &region.agent.rseq.helpers,
                None => &region.agent.locked.helpers,
            };
            let mut at = region.programs;
            let mut of_region = Vec::with_capacity(self.programs.len());
            for (i, program) in self.programs.iter().enumerate() {
                let address = |helper| Some(helpers[Helper::of(helper)? as usize]);
                let bytes = program.code.at(at, address).map_err(|e| Broken::Agent(e.to_string()))?;
                self.memory.write(at, &bytes)?;
                let desc = self.regions.arena.layout.program(number * self.programs.len() + i);
                describe(&self.regions.arena, desc, program, at);
                let needs = program.needs_with(self.has_counter);
                self.regions.arena.publish(desc + offset_of!(ProgramDesc, needs), needs);
                self.regions.arena.publish(desc + offset_of!(ProgramDesc, inside), inside);
                self.regions.arena.publish(desc + offset_of!(ProgramDesc, mark), i as u64);
                let arg = (program.needs() & needs::KEPT) as u32;
                let handler = match program.needs_workspace() {
                    true => HandlerKind::ProgramInSpace,
                    false => HandlerKind::Program,
                };
                let called = program.code.helpers().into_iter().filter_map(Helper::of);
                let by_helpers = called.fold(0, |bits, helper| bits | clobbers.helper(helper).bits());
                let writes =
                    clobbers.handler(handler).bits() | program.code.passed.clobbers.bits() | by_helpers;
                let uses = RegSet::from(writes & SAVED_ON_WISH | program.reads());
                let desc = self.regions.arena.remote + desc as u64;
                of_region.push(ProgramAt { desc, arg, handler, uses });
                at += bytes.len().next_multiple_of(16) as u64;
            }
            placed.push(of_region.into());
        }
        self.placed = placed;
        self.tell_helpers()
    }
}

impl Session {
    /// Tells helpers what they may do in this process: whether memory may be read by a call, and where the first thread's stack is.
    fn tell_helpers(&self) -> Result<(), Broken> {
        if self.programs.is_empty() {
            return Ok(());
        }
        let may_call = self.calls != Asking::Nothing;
        if let Some(helper) = self.programs.asks_the_kernel(self.has_counter).filter(|_| !may_call) {
            return Err(Broken::HelperFiltered { pid: self.pid(), helper });
        }
        let way = if may_call { ReadWay::VmReadv } else { ReadWay::Refused };
        let stack = self.mappings.iter().find(|mapping| mapping.path.as_os_str() == "[stack]");
        let (low, high) = stack.map_or((0, 0), |stack| (stack.range.start.0, stack.range.end.0));
        for (at, value) in [
            (offset_of!(ProgramDesc, reads), way as u64),
            (offset_of!(ProgramDesc, stack_low), low),
            (offset_of!(ProgramDesc, stack_high), high),
        ] {
            self.tell_programs(at, value);
        }
        Ok(())
    }

    /// Writes a word into the description of each program in each region.
    fn tell_programs(&self, at: usize, value: u64) {
        let arena = &self.regions.arena;
        (0..arena.layout.programs())
            .for_each(|number| arena.publish(arena.layout.program(number) + at, value));
    }
}

impl Session {
    /// Has helpers make no system call any more if a thread has taken a seccomp filter since the attach, or one more.
    ///
    /// What a hit asks of the kernel between the filter and this look is not prevented: look often.
    ///
    /// # Context
    /// Control. Costs a read of `/proc` for each thread.
    pub fn look_for_filters(&self) {
        if self.programs.is_empty() {
            return;
        }
        // A process of which nothing can be read has ended, or nobody knows what it does.
        let filters = process::filters(self.pid()).unwrap_or(None);
        if filters.is_none_or(|number| self.calls != Asking::Filtered(number)) {
            self.tell_programs(offset_of!(ProgramDesc, reads), ReadWay::Refused as u64);
        }
    }

    /// False if helpers of its programs make no system call, by which they read what is not known to stay: a seccomp filter could end the
    /// process for one.
    pub fn reads_memory(&self) -> bool {
        self.calls != Asking::Nothing
    }
}

fn describe(arena: &Arena, desc: usize, program: &Program, entry: u64) {
    let layout = &arena.layout;
    let in_target = |at: Option<usize>| at.map_or(0, |at| arena.remote + at as u64);
    let (first, len) = layout.workspaces();
    let words = [
        (offset_of!(ProgramDesc, entry), entry),
        (offset_of!(ProgramDesc, fuel), program.fuel),
        (offset_of!(ProgramDesc, arena), arena.base_of_programs()),
        (offset_of!(ProgramDesc, workspaces), in_target(first)),
        (offset_of!(ProgramDesc, workspace_len), len as u64),
        (
            offset_of!(ProgramDesc, workspaces_count),
            first.map_or(0, |_| (layout.cpus * WORKSPACES_EACH) as u64),
        ),
        (offset_of!(ProgramDesc, scratch_len), program.scratch as u64),
        (offset_of!(ProgramDesc, maps), arena.maps_in_target().unwrap_or(0)),
    ];
    words.into_iter().for_each(|(at, value)| arena.publish(desc + at, value));
}

#[cfg(test)]
mod tests {
    use crate::facts::inject::tests::{Subject, sites};
    use crate::{Action, Attach, Consumer, Program, Programs, Room, Session, SitePlan, Wanted};
    use jit::{Compiler, Level, Meaning};
    use map::{Agg, Kind, Outside, Plan, Slot, Spec};
    use std::time::Duration;
    use wire::{Helper, MAPS};

    fn program(text: &str, level: Level, scratch: usize) -> Program {
        let insns = bpf::assemble(text).unwrap();
        let meaning = |wide| match wide {
            bpf::Wide::MapValueIndex { index: 0, offset } => Some(Meaning::Arena(MAPS as u32 + offset)),
            bpf::Wide::MapValueIndex { index: 1, offset } => Some(Meaning::Scratch(offset)),
            _ => None,
        };
        let wanted =
            Wanted { name: text, level, scratch, meaning: &meaning, fuel: 1000, ..Wanted::default() };
        Program::new(&mut Compiler::new().unwrap(), &bpf::Program::new(insns).unwrap(), &wanted).unwrap()
    }

    /// Adds one to a word of the maps, and what r6 holds to the next.
    fn adds(word: usize) -> String {
        format!(
            "lddw %r2, map_value 0 {0}\nmov %r3, 1\nlock add [%r2+0], %r3\nlock add [%r2+8], %r6\nmov %r0, 0\nexit",
            word * 8
        )
    }

    fn with(mut plans: Vec<SitePlan>, consumers: &[Consumer]) -> Vec<SitePlan> {
        for action in plans.iter_mut().flat_map(|plan| &mut plan.actions) {
            *action = Action::Consumers(consumers.to_vec());
        }
        plans
    }

    fn words(session: &Session, count: usize) -> Vec<u64> {
        (0..count).map(|i| session.maps().unwrap().load(i * 8).unwrap()).collect()
    }

    #[test]
    fn programs_run_at_entries_and_returns_and_every_hit_is_counted() {
        let subject = Subject::start();
        let run = |program| Consumer::Program { program, cookie: 7 };
        // The argument's lowest bit; what comes back; the cookie, which a helper tells.
        let programs = vec![
            program(&format!("ldxdw %r6, [%r1+112]\nand %r6, 1\n{}", adds(0)), Level::Own, 0),
            program(&format!("call 174\nmov %r6, %r0\n{}", adds(2)), Level::Own, 0),
            program("mov %r0, 0\nagain:\nja again", Level::Checked, 0),
            program("stxdw [%r1+112], %r1\nexit", Level::Checked, 0),
            program(
                &format!("lddw %r4, map_value 1 8\nstdw [%r4+0], 3\nldxdw %r6, [%r4+0]\n{}", adds(4)),
                Level::Own,
                64,
            ),
            // Ours, on the thread's stack.
            program("mov %r0, 0\nagain:\nja again", Level::Own, 0),
        ];
        let programs = Programs::new(programs, vec![0; 4096]);
        let mut plans = with(
            sites(subject.pid(), &["u::injected_other"]),
            &[Consumer::Count, run(0), run(1), run(2), run(3), run(4), run(5)],
        );
        let exits = sites(subject.pid(), &["ur::injected_long"]);
        let exits = with(exits, &[Consumer::Count, run(1)]);
        assert!(!exits.is_empty());
        plans.extend(exits);
        let attach = Attach { programs, ..Attach::default() };
        let mut session = Session::attach_with(subject.pid(), plans, attach).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let receipt = session.detach().unwrap();
        assert!(receipt.is_verified() && receipt.is_unmapped(), "{receipt:?}");
        let sites: Vec<_> = session.sites().collect();
        let (entry, exits) = sites.split_first().unwrap();
        let hits = entry.hits_of_each()[0];
        let runs = entry.runs();
        assert!(hits > 1000 && runs.len() == 6, "{hits} {runs:?}");
        for (number, runs) in &runs {
            assert_eq!(runs.hits(), hits, "program {number}: {runs:?}");
        }
        let returns: u64 = exits.iter().map(|exit| exit.hits_of_each()[0]).sum();
        let ran: u64 = exits.iter().map(|exit| exit.runs()[0].1.ran).sum();
        assert!(returns > 1000 && ran == returns, "{returns} {ran}");
        let became = [runs[0].1.ran, runs[1].1.ran, runs[2].1.fuel, runs[3].1.fault, runs[5].1.fuel];
        assert_eq!(became, [hits; 5]);
        let words = words(&session, 6);
        assert_eq!(words[0], hits);
        assert!(words[1] <= hits);
        assert_eq!((words[2], words[3]), (hits + ran, 7 * (hits + ran)));
        let (ran, spaces) = (runs[4].1.ran, runs[4].1.no_workspace);
        assert_eq!((words[4], words[5], ran + spaces), (ran, 3 * ran, hits));
        assert!(session.last_fault(3).is_some() && session.last_fault(0).is_none());
    }

    /// A program that asks for a bit of the argument has run at all hits, and done something at those alone that came in.
    #[test]
    fn hits_that_a_guard_turns_down_are_handled() {
        let subject = Subject::start();
        let asks = format!(
            "ldxdw %r6, [%r1+112]\njset %r6, 16, on\nmov %r0, 0\nexit\non:\nand %r6, 16\nrsh %r6, 4\n{}",
            adds(0)
        );
        let never = format!("ldxdw %r6, [%r1+112]\njeq %r6, %r6, out\n{}\nout:\nexit", adds(2));
        let never = never.replace("jeq %r6, %r6, out", "jne32 %r6, -77, out");
        let programs = vec![program(&asks, Level::Own, 0), program(&never, Level::Checked, 0)];
        assert!(programs.iter().all(|program| program.guards[0].is_some()));
        let run = |program| Consumer::Program { program, cookie: 0 };
        let mut plans = with(sites(subject.pid(), &["u::injected_other"]), &[run(0)]);
        plans.extend(with(sites(subject.pid(), &["u::injected_long"]), &[run(1)]));
        let attach = Attach { programs: Programs::new(programs, vec![0; 4096]), ..Attach::default() };
        let addr = plans[0].addr();
        let mut session = Session::attach_with(subject.pid(), plans, attach).unwrap();
        let hook = session.hooks(addr)[0];
        let (first, _) = session.consumers(hook)[0];
        assert_eq!(session.change(&[], &[first]), Err(crate::NotChanged::Guarded(hook)));
        assert_eq!(session.change(&[(hook, run(0))], &[]), Err(crate::NotChanged::Guarded(hook)));
        std::thread::sleep(Duration::from_millis(200));
        assert!(session.detach().unwrap().is_verified());
        let runs: Vec<_> = session.sites().flat_map(|site| site.runs()).map(|(_, runs)| runs).collect();
        let words = words(&session, 4);
        assert!(
            runs[0].ran > 1000 && runs[1].ran > 1000 && runs.iter().all(|runs| runs.skipped() == 0),
            "{runs:?}"
        );
        assert!(words[0] > 100 && words[0] < runs[0].ran, "{words:?} {runs:?}");
        assert_eq!((words[1], words[2], session.entered()), (words[0], 0, words[0]), "{runs:?}");
    }

    /// What programs do with maps is there, exactly, also for who takes part from outside meanwhile.
    #[test]
    fn programs_use_maps_that_the_controller_uses_too() {
        let subject = Subject::start();
        let spec = |agg| Spec { kind: Kind::Hash, key: 8, value: 8, limit: 100, agg };
        let tables = vec![spec(Some(Agg::Count)), spec(None), spec(Some(Agg::Hist { bits: 0 }))];
        let plan = Plan { tables, first_table: 3, ring_bytes: 1 << 16, ..Plan::default() };
        let mut maps = map::Maps::new(&plan).unwrap();
        // What was there before the attach is there afterwards.
        let seven = 7u64.to_ne_bytes();
        (0..5).for_each(|_| maps.table(0).aggregate(&seven, 0, 0, Outside).unwrap());
        let handles: Vec<u32> = (0..6).map(|n| maps.handle(n).unwrap() as u32).collect();
        let meaning = |wide| match wide {
            bpf::Wide::MapIndex(n) => Some(Meaning::Arena(MAPS as u32 + handles[n as usize])),
            _ => None,
        };
        // By the argument's lowest bits: a count, a sum by the value's address, a histogram; every 256th leaves a record.
        // Its own text is read, by a call, and its stack, without one.
        let text = "mov %r7, %r1
            ldxdw %r6, [%r1+112]
            and %r6, 7
            stxdw [%r10-8], %r6
            mov %r1, %r10
            add %r1, -24
            mov %r2, 8
            ldxdw %r3, [%r7+128]
            call 112
            mov %r1, %r10
            add %r1, -24
            mov %r2, 8
            ldxdw %r3, [%r7+152]
            call 112
            call 14
            stxdw [%r10-16], %r0
            lddw %r1, map 3
            mov %r2, %r10
            add %r2, -8
            call 0x4e500001
            lddw %r1, map 4
            mov %r2, %r10
            add %r2, -8
            call 0x4e500000
            jeq %r0, 0, full
            mov %r1, 2
            lock add [%r0+0], %r1
            full:
            lddw %r1, map 5
            mov %r2, %r10
            add %r2, -8
            mov %r3, %r6
            call 0x4e500001
            call 7
            and %r0, 255
            jne %r0, 0, out
            lddw %r1, map 2
            mov %r2, %r10
            add %r2, -16
            mov %r3, 16
            call 130
            out:
            mov %r0, 0
            exit";
        let insns = bpf::assemble(text).unwrap();
        let wanted = Wanted { name: "maps", level: Level::Own, meaning: &meaning, ..Wanted::default() };
        let program = bpf::Program::new(insns).unwrap();
        let program = Program::new(&mut Compiler::new().unwrap(), &program, &wanted).unwrap();
        let programs = Programs::new(vec![program], maps.image());
        let plans = with(
            sites(subject.pid(), &["u::injected_other"]),
            &[Consumer::Count, Consumer::Program { program: 0, cookie: 0 }],
        );
        let attach = Attach { programs, ..Attach::default() };
        let mut session = Session::attach_with(subject.pid(), plans, attach).unwrap();
        maps.go_on_in(std::sync::Arc::new(session.ground().unwrap())).unwrap();
        let (mut records, mut own) = (0, 5);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(10));
            maps.table(0).aggregate(&seven, 0, 0, Outside).unwrap();
            own += 1;
            for record in maps.take_records(u64::MAX) {
                let (tid, bits) = record.bytes.split_at(8);
                assert_eq!(u64::from_ne_bytes(tid.try_into().unwrap()) >> 32, subject.pid() as u64);
                assert!(u64::from_ne_bytes(bits.try_into().unwrap()) < 8);
                records += 1;
            }
        }
        assert!(session.detach().unwrap().is_verified());
        let hits = session.sites().next().unwrap().hits_of_each()[0];
        assert!(hits > 1000 && records > 0, "{hits} hits, {records} records");
        let sum = |number: usize, of: &dyn Fn(&map::Table<map::Checked<'_>>, Slot) -> u64| {
            let table = maps.table(number);
            let slots = std::iter::successors(table.next(Slot(0)), |slot| table.next(*slot));
            slots.map(|slot| of(&table, slot)).sum::<u64>()
        };
        assert_eq!(sum(0, &|table, slot| table.aggregated(slot)), hits + own);
        assert_eq!(sum(2, &|table, slot| table.words(slot).iter().sum()), hits);
        let value = |table: &map::Table<map::Checked<'_>>, slot| {
            let mut value = [0; 8];
            assert!(table.value(slot, &mut value));
            u64::from_ne_bytes(value)
        };
        assert_eq!(sum(1, &value), 2 * hits);
        let errors = wire::maps::HelperError::ALL.map(|cause| maps.errors(cause));
        assert_eq!(errors.iter().sum::<u64>(), maps.errors(wire::maps::HelperError::RingFull));
    }

    /// What code does by itself where its thread found a key before is what the helpers do: exact sums, and keys that come and go.
    #[test]
    fn keys_that_a_program_looks_for_itself_are_those_of_the_maps() {
        let subject = Subject::start();
        let spec = |kind, agg| Spec { kind, key: 8, value: 8, limit: 100, agg };
        let hash = |agg| spec(Kind::Hash, Some(agg));
        let tables = vec![
            hash(Agg::Count),
            hash(Agg::Sum { signed: false }),
            hash(Agg::Hist { bits: 1 }),
            spec(Kind::OwnHash, None),
            spec(Kind::Hash, None),
        ];
        let plan = Plan { tables, first_table: 3, ..Plan::default() };
        let mut maps = map::Maps::new(&plan).unwrap();
        let handles: Vec<u32> = (0..8).map(|n| maps.handle(n).unwrap() as u32).collect();
        let meaning = |wide| match wide {
            bpf::Wide::MapIndex(n) => Some(Meaning::Arena(MAPS as u32 + handles[n as usize])),
            _ => None,
        };
        let near = |wide| match wide {
            bpf::Wide::MapIndex(n) => maps.near(n as usize, MAPS),
            _ => None,
        };
        // One key for all; the thread's own, which is set, found, and removed; one that is set again and again.
        let text = "ldxdw %r6, [%r1+112]
            and %r6, 1023
            lddw %r1, map 3
            mov %r2, 7
            call 0x4e500019
            lddw %r1, map 4
            mov %r2, 7
            mov %r3, %r6
            call 0x4e500019
            lddw %r1, map 5
            mov %r2, 7
            mov %r3, %r6
            call 0x4e500019
            call 14
            mov32 %r7, %r0
            lddw %r1, map 6
            mov %r2, %r7
            mov %r3, %r6
            call 0x4e500017
            lddw %r1, map 6
            mov %r2, %r7
            call 0x4e500015
            jeq %r0, 0, wrong
            ldxdw %r0, [%r0+0]
            jne %r0, %r6, wrong
            lddw %r1, map 6
            mov %r2, %r7
            call 0x4e500018
            jne %r0, 0, wrong
            lddw %r1, map 6
            mov %r2, %r7
            call 0x4e500018
            jne %r0, -2, wrong
            lddw %r1, map 6
            mov %r2, %r7
            call 0x4e500015
            jne %r0, 0, wrong
            lddw %r1, map 7
            mov %r2, 9
            mov %r3, %r6
            call 0x4e500017
            mov %r0, 0
            exit
            wrong:
            lddw %r1, map 3
            mov %r2, 666
            call 0x4e500019
            mov %r0, 0
            exit";
        let insns = bpf::Program::new(bpf::assemble(text).unwrap()).unwrap();
        let wanted =
            Wanted { name: "near", level: Level::Own, meaning: &meaning, near: &near, ..Wanted::default() };
        let program = Program::new(&mut Compiler::new().unwrap(), &insns, &wanted).unwrap();
        let helpers = program.code().helpers();
        assert!([Helper::NearSet, Helper::NearAdd].iter().all(|near| helpers.contains(&near.number())));
        let plans = with(
            sites(subject.pid(), &["u::injected_other"]),
            &[Consumer::Count, Consumer::Program { program: 0, cookie: 0 }],
        );
        let programs = Programs::new(vec![program], maps.image());
        let attach = Attach { programs, ..Attach::default() };
        let mut session = Session::attach_with(subject.pid(), plans, attach).unwrap();
        maps.go_on_in(std::sync::Arc::new(session.ground().unwrap())).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert!(session.detach().unwrap().is_verified());
        let site = session.sites().next().unwrap();
        let hits = site.hits_of_each()[0];
        assert!(hits > 1000 && site.runs()[0].1.ran == hits, "{hits}");
        let slot = |number: usize, key: u64| maps.table(number).find(&key.to_ne_bytes());
        assert!(slot(0, 666).is_err(), "a key was not as it was left");
        let table = |number| (maps.table(number), slot(number, 7).unwrap());
        let (count, at) = table(0);
        assert_eq!(count.aggregated(at), hits);
        let (hist, at) = table(2);
        assert_eq!(hist.words(at).iter().sum::<u64>(), hits);
        // The sum is that of the buckets, each between its lowest value and the next one's.
        let words = hist.words(at);
        let bounds = |n: usize| {
            words.iter().skip(1).enumerate().map(|(i, w)| w * map::hist_low(i + n, 1) as u64).sum::<u64>()
        };
        let (sum, at) = table(1);
        let sum = sum.aggregated(at);
        assert!((bounds(0)..=bounds(1)).contains(&sum), "{sum}");
        assert_eq!((maps.table(3).len(), maps.table(4).len()), (0, 1));
        let errors = wire::maps::HelperError::ALL.map(|cause| maps.errors(cause));
        assert_eq!(errors.iter().sum::<u64>(), 0);
    }

    /// They are given addresses that nobody checks.
    #[test]
    fn what_stands_for_helpers_is_not_for_programs() {
        for helper in [Helper::NearSet, Helper::NearAdd] {
            let insns = bpf::assemble(&format!("call {}\nexit", helper.number())).unwrap();
            for level in [Level::Own, Level::Checked] {
                let wanted = Wanted { level, ..Wanted::default() };
                let program = bpf::Program::new(insns.clone()).unwrap();
                let made = Program::new(&mut Compiler::new().unwrap(), &program, &wanted);
                let number = i64::from(helper.number());
                let why = jit::Refusal::NoHelper { number };
                assert!(
                    matches!(&made, Err(crate::NotProgram::Refused(refused)) if refused.why == why),
                    "{made:?}"
                );
            }
        }
    }

    #[test]
    fn a_signal_inside_a_program_does_not_begin_it_again() {
        let subject = Subject::start_with_signals();
        // Long enough for signals to come; and another that is not the same.
        let long = "mov %r2, 20000\nagain:\nsub %r2, 1\njne %r2, 0, again\nmov %r0, 0\nexit";
        let mut programs = vec![program(long, Level::Own, 0), program(long, Level::Checked, 0)];
        programs.iter_mut().for_each(|program| program.fuel = 1_000_000);
        let run = |program| Consumer::Program { program, cookie: 0 };
        let plans = sites(subject.pid(), &["u::injected_other"]);
        let plans = with(plans, &[Consumer::Count, run(0), run(1)]);
        let attach = Attach { programs: Programs::new(programs, Vec::new()), ..Attach::default() };
        let mut session = Session::attach_with(subject.pid(), plans, attach).unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(60);
        let nested =
            |session: &Session| session.sites().next().unwrap().runs().iter().all(|(_, r)| r.nested > 0);
        while !nested(&session) && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(session.detach().unwrap().is_verified());
        let site = session.sites().next().unwrap();
        let hits = site.hits_of_each()[0];
        for (number, runs) in site.runs() {
            assert_eq!(runs.hits(), hits, "program {number}: {runs:?}");
            assert!(
                runs.nested > 0 && runs.ran > 0 && runs.ran + runs.nested == hits,
                "program {number}: {runs:?}"
            );
        }
    }

    #[test]
    fn programs_come_and_go_while_hits_run() {
        let subject = Subject::start();
        let programs = vec![program(&format!("mov %r6, 2\n{}", adds(0)), Level::Own, 0)];
        let attach = Attach {
            programs: Programs::new(programs, vec![0; 64]),
            room: Room::for_programs(4),
            ..Attach::default()
        };
        let plans = with(sites(subject.pid(), &["u::injected_other"]), &[Consumer::Count]);
        let mut session = Session::attach_with(subject.pid(), plans, attach).unwrap();
        let hook = session.hooks(session.armed[0].plan.addr())[0];
        let (mut ran, one) = (0, (hook, Consumer::Program { program: 0, cookie: 0 }));
        for _ in 0..5 {
            let added = session.change(&[one], &[]).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            session.change(&[], &added).unwrap();
            let settled = session.settle(Duration::from_secs(60));
            assert_eq!(settled.removed[0].0, added[0]);
            let runs = crate::Runs::of(&settled.removed[0].1);
            assert_eq!((runs.skipped(), runs.hits()), (0, runs.ran));
            ran += runs.ran;
        }
        assert_eq!(words(&session, 2), [ran, 2 * ran]);
        assert!(ran > 1000);
        let none = (hook, Consumer::Program { program: 1, cookie: 0 });
        assert_eq!(session.change(&[none], &[]), Err(crate::NotChanged::NoProgram(1)));
        assert!(session.detach().unwrap().is_verified());
    }
}
