//! `torture live` passes, and fails in every broken variant; and the matrix of consumers in another process.
//!
//! Each run is a process of its own: this program, called again with its arguments in the environment. Its target is this
//! program too.

#[path = "itself/again.rs"]
mod again;

use again::{Verdict, again, be_the_run};
use image::Spec;
use session::{Consumer, ConsumerId, HookId, NotChanged, Room, Session, Verb};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// In the environment: be a controller that changes its consumers until it is killed.
const CHANGER: &str = "NANOPROBE_LIVE_CHANGER";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "torture-target") {
        std::process::exit(torture::target_main(&args[1..]));
    }
    if let Ok(pid) = std::env::var(CHANGER) {
        change_for_ever(pid.parse().expect("a process"));
    }
    be_the_run(torture::live_main);
    every_set_of_four_consumers_is_changed_inside_a_call_and_called_as_it_is_then();
    println!("test every set of four consumers is changed inside a call, and called as it is then ... ok");
    sixty_four_consumers_are_changed_at_random_inside_calls();
    println!("test sixty-four consumers are changed at random inside calls ... ok");
    what_cannot_be_changed_is_refused_and_changes_nothing();
    println!("test what cannot be changed is refused, and changes nothing ... ok");
    two_sessions_of_one_process_change_at_a_time_and_neither_counts_for_the_other();
    println!("test two sessions of one process change at a time, and neither counts for the other ... ok");
    a_controller_that_is_killed_in_the_midst_of_changes_leaves_what_can_be_taken_back();
    println!("test a controller that is killed in the midst of changes leaves what can be taken back ... ok");
    let mut verdict = Verdict::default();
    // Beside forkers a round of whole probes takes a second, in which children are looked for, and each round is compared by itself.
    for args in ["", " --late", " --forkers 2 --probes 40", " --stop", " --hostile 1000"] {
        let run = again(&format!("--changes 12000 --many 2000 --threads 16{args}"));
        verdict.say(run.ended(0, "PASS broken=none "), &format!("honest with{args} passes"), &run);
    }
    for name in ["no-wait", "wrong-rank", "in-place"] {
        let run = again(&format!("--broken {name} --changes 1000000 --many 0 --threads 16 --for 60s"));
        let caught = run.ended(1, &format!("FAIL broken={name} "));
        verdict.say(caught, &format!("broken variant {name} is caught"), &run);
    }
    verdict.end()
}

/// A process that stands inside a call until it is told to go on.
struct Steps {
    child: Child,
    stdin: ChildStdin,
    out: BufReader<ChildStdout>,
}

impl Steps {
    fn start() -> Steps {
        let program = std::env::current_exe().expect("a path");
        let mut command = Command::new(program);
        command.args(["torture-target", "live-steps"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("runs itself");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let stdin = child.stdin.take().expect("a pipe");
        let mut steps = Steps { child, stdin, out };
        steps.hear("ready");
        steps
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn hear(&mut self, word: &str) {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("the target speaks");
        assert_eq!(line.trim(), word);
    }

    fn say(&mut self, word: &str) {
        self.stdin.write_all(format!("{word}\n").as_bytes()).expect("the target listens");
    }

    /// One call, with something done in its midst.
    fn call(&mut self, function: usize, inside: impl FnOnce()) {
        self.say(&function.to_string());
        self.hear("inside");
        inside();
        self.say("go on");
        self.hear("out");
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A session with the entry and the exit of function 0, and these two hooks.
fn attached(pid: i32, room: Room) -> (Session, HookId, HookId) {
    let hook = |session: &Session, name: &str, is_exit: bool| {
        let site =
            session.sites().find(|s| s.plan.name.contains(name) && s.plan.exit_of.is_some() == is_exit);
        session.hooks(site.expect("the site is armed").plan.addr())[0]
    };
    let specs = ["u::live_fn_0", "ur::live_fn_0"].map(|s| Spec::parse(s).expect("a specification"));
    let plan = session::plan(pid, &specs, Verb::CountByHandler).expect("a plan");
    assert!(plan.refused.is_empty(), "{:?}", plan.refused);
    let session = Session::attach_with_room(pid, plan.sites, room).expect("it attaches");
    let hooks = (hook(&session, "live_fn_0", false), hook(&session, "live_fn_0", true));
    (session, hooks.0, hooks.1)
}

fn leave(mut session: Session) {
    let receipt = session.detach().expect("it detaches");
    assert!(receipt.is_verified() && receipt.is_unmapped(), "{receipt:?}");
}

/// Consumers of which a set is there: even ones at the entry, odd ones at the exit; and what each must have counted.
struct Guests {
    hooks: [HookId; 2],
    there: BTreeMap<usize, ConsumerId>,
    wanted: BTreeMap<ConsumerId, u64>,
    seen: BTreeMap<ConsumerId, u64>,
}

impl Guests {
    fn new(entry: HookId, exit: HookId) -> Guests {
        let (there, wanted, seen) = Default::default();
        Guests { hooks: [entry, exit], there, wanted, seen }
    }

    /// One change: from the set that is there to another.
    fn change(&mut self, session: &mut Session, set: u64) {
        let is_in = |i: &usize| set >> i & 1 == 1;
        let gone: Vec<usize> = self.there.keys().copied().filter(|i| !is_in(i)).collect();
        let remove: Vec<ConsumerId> = gone.iter().filter_map(|i| self.there.remove(i)).collect();
        let new: Vec<usize> = (0..64).filter(|i| is_in(i) && !self.there.contains_key(i)).collect();
        let add: Vec<_> = new.iter().map(|i| (self.hooks[i % 2], Consumer::Count)).collect();
        let added = session.change(&add, &remove).expect("there is room");
        self.there.extend(new.into_iter().zip(added));
    }

    /// All that are there at the entry, or at the exit, are called now.
    fn are_called(&mut self, place: usize) {
        for (_, id) in self.there.iter().filter(|(i, _)| **i % 2 == place) {
            *self.wanted.entry(*id).or_default() += 1;
        }
    }

    fn settle(&mut self, session: &mut Session) {
        let settled = session.settle(Duration::from_secs(60));
        assert!(settled.late.is_none() && settled.waiting == 0, "{settled:?}");
        self.seen.extend(settled.removed.into_iter().map(|(id, cells)| (id, cells.iter().sum::<u64>())));
    }

    fn compare(&mut self, session: &mut Session) {
        self.change(session, 0);
        self.settle(session);
        for (id, seen) in &self.seen {
            assert_eq!(*seen, self.wanted.remove(id).unwrap_or(0), "{id:?}");
        }
        assert!(self.wanted.is_empty(), "{:?} were called and never settled", self.wanted);
    }
}

/// Who is there when the function is entered is called at its entry, who is there when it returns at its exit: 16 by 16.
fn every_set_of_four_consumers_is_changed_inside_a_call_and_called_as_it_is_then() {
    let mut steps = Steps::start();
    let (mut session, entry, exit) = attached(steps.pid(), Room::for_counts(64));
    let mut guests = Guests::new(entry, exit);
    let stops = session::stops();
    for (before, after) in (0..16).flat_map(|b| (0..16).map(move |a| (b, a))) {
        guests.change(&mut session, before);
        guests.are_called(0);
        steps.call(0, || guests.change(&mut session, after));
        guests.are_called(1);
        if after == 15 {
            guests.settle(&mut session);
        }
    }
    guests.compare(&mut session);
    assert_eq!(session::stops(), stops, "a thread was stopped");
    for site in session.sites() {
        assert_eq!(site.hits(), 256, "who stayed at {}", site.plan.name);
    }
    leave(session);
}

fn sixty_four_consumers_are_changed_at_random_inside_calls() {
    let mut steps = Steps::start();
    let (mut session, entry, exit) = attached(steps.pid(), Room::for_counts(1024));
    let mut guests = Guests::new(entry, exit);
    let mut random = 1u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 1..=64 {
        guests.change(&mut session, next());
        guests.are_called(0);
        let (first, second) = (next(), next());
        steps.call(0, || {
            guests.change(&mut session, first);
            guests.change(&mut session, second);
        });
        guests.are_called(1);
        if round % 8 == 0 {
            guests.settle(&mut session);
        }
    }
    guests.compare(&mut session);
    leave(session);
}

fn what_cannot_be_changed_is_refused_and_changes_nothing() {
    let steps = Steps::start();
    let (mut session, entry, exit) = attached(steps.pid(), Room { consumers: 6, cells: 3, probes: 0 });
    let free = session.free_room();
    let count = |hook: HookId| (hook, Consumer::Count);
    let first = session.consumers(entry)[0].0;
    let refused = |session: &mut Session, add: &[(HookId, Consumer)], remove: &[ConsumerId]| {
        let why = session.change(add, remove).expect_err("it is refused");
        assert_eq!(session.free_room(), free, "{why}");
        why
    };
    let ring = (exit, Consumer::Ring);
    assert!(matches!(refused(&mut session, &[count(entry), ring], &[]), NotChanged::NotAlone(_)));
    // A list of eleven: the room is for six consumers.
    let many = [count(entry); 10];
    assert!(matches!(refused(&mut session, &many, &[]), NotChanged::NoRoom { wanted: 11, .. }));
    assert!(matches!(refused(&mut session, &[], &[first, first]), NotChanged::Twice(_)));
    let added = session.change(&[count(entry)], &[]).expect("there is room");
    session.change(&[], &added).expect("it is there");
    assert!(matches!(session.change(&[], &added), Err(NotChanged::NoConsumer(_))), "it is no more");
    let settled = session.settle(Duration::from_secs(60));
    assert_eq!((settled.removed.len(), settled.waiting), (1, 0));
    assert_eq!(session.free_room(), free);
    leave(session);
}

fn two_sessions_of_one_process_change_at_a_time_and_neither_counts_for_the_other() {
    let mut steps = Steps::start();
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let (session, entry, exit) = attached(steps.pid(), Room::for_counts(512));
        sessions.push((session, Guests::new(entry, exit)));
    }
    let mut random = 7u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 0..32 {
        for (session, guests) in &mut sessions {
            guests.change(session, next() & next());
            guests.are_called(0);
        }
        steps.call(0, || {
            sessions.iter_mut().for_each(|(session, guests)| guests.change(session, next() & next()))
        });
        sessions.iter_mut().for_each(|(_, guests)| guests.are_called(1));
        let (session, guests) = &mut sessions[round % 2];
        guests.settle(session);
    }
    for (mut session, mut guests) in sessions {
        guests.compare(&mut session);
        leave(session);
    }
}

/// Is the controller that will be killed.
fn change_for_ever(pid: i32) -> ! {
    let (mut session, entry, exit) = attached(pid, Room::for_counts(256));
    println!("changing");
    let mut there = Vec::new();
    loop {
        let add = [(entry, Consumer::Count), (exit, Consumer::Count), (exit, Consumer::Count)];
        there = match session.change(&add, &there) {
            Ok(added) => added,
            Err(NotChanged::NoRoom { .. }) => {
                session.settle(Duration::from_secs(10));
                continue;
            }
            Err(why) => panic!("{why}"),
        };
    }
}

fn a_controller_that_is_killed_in_the_midst_of_changes_leaves_what_can_be_taken_back() {
    let mut steps = Steps::start();
    for round in 0..5 {
        let program = std::env::current_exe().expect("a path");
        let mut command = Command::new(program);
        let mut changer = command
            .env(CHANGER, steps.pid().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("runs itself");
        let mut line = String::new();
        BufReader::new(changer.stdout.take().expect("a pipe")).read_line(&mut line).expect("it speaks");
        assert_eq!(line.trim(), "changing");
        (0..round * 7).for_each(|_| steps.call(0, || {}));
        changer.kill().expect("it lives");
        changer.wait().expect("it can be waited for");
        steps.call(0, || {});
        for receipt in session::recover(steps.pid()).expect("it is recovered") {
            assert!(receipt.is_verified() && receipt.is_unmapped(), "{receipt:?}");
        }
        steps.call(0, || {});
    }
}
