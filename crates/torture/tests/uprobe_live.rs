//! `torture uprobe` passes with sessions of nanoprobe on a real process, and fails in every broken variant; and what it
//! has found that can be shown without chance.
//!
//! Each run is a process of its own: this program, called again with its arguments in the environment. Its target is this
//! program too. With `NANOPROBE_KERNEL` in the environment the kernel's uprobes are tried as well, which takes root.

#[path = "itself/again.rs"]
mod again;

use again::{Verdict, again, be_the_run};
use image::Spec;
use session::{Missed, Session, Verb};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "torture-target") {
        std::process::exit(torture::target_main(&args[1..]));
    }
    be_the_run(torture::uprobe_main);
    an_entry_and_a_tail_jump_do_not_meet_under_two_controllers();
    println!("test an entry and a tail jump do not meet under two controllers ... ok");
    returns_are_counted_at_all_exits_or_at_none();
    println!("test returns are counted at all exits or at none ... ok");
    let mut verdict = Verdict::default();
    let mut backends = vec![("nanoprobe", "")];
    if std::env::var_os("NANOPROBE_KERNEL").is_some() {
        // Its probes on 5-byte nops end forked children by SIGSEGV: docs/uprobe-stress.md.
        backends.push(("kernel", " --fork 0 --exec 0"));
    }
    for (backend, options) in backends {
        let run = again(&format!("--backend {backend} --for 3s --seed 1{options}"));
        let passed = run.ended(0, &format!("PASS backend={backend} broken=none "));
        verdict.say(passed, &format!("honest {backend} passes"), &run);
        let all = [
            ("forgotten-byte", " lost-detach=0 "),
            ("kept-link", " lost-detach=0 "),
            ("dropped-count", " lost=0 "),
            ("lost-run", " lost-detach=0 "),
        ];
        for (name, nothing) in
            all.into_iter().filter(|(name, _)| backend == "nanoprobe" || *name != "lost-run")
        {
            let run = again(&format!("--backend {backend} --broken {name} --for 2s --seed 1{options}"));
            let is_cause = !run.last().contains(nothing) || run.last().contains(": crash");
            let caught = is_cause && run.ended(1, &format!("FAIL backend={backend} broken={name} "));
            verdict.say(caught, &format!("broken variant {name} of {backend} is caught"), &run);
        }
    }
    let run = again("--broken no-wait");
    verdict.say(run.status == Some(2), "a broken variant of another backend is refused", &run);
    verdict.end()
}

/// The target of `torture attach`, which is this program and has the functions of `torture uprobe` too.
fn target() -> (Child, impl Sized) {
    let program = std::env::current_exe().expect("a path");
    let mut command = Command::new(program);
    command.args(["torture-target", "1"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("runs itself");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    out.read_line(&mut String::new()).expect("says ready");
    (child, out)
}

/// `add rdi, 9; jmp`: the entry's jump covers the first byte of the other, which looks as in the file with a jump there.
fn an_entry_and_a_tail_jump_do_not_meet_under_two_controllers() {
    let (mut child, _out) = target();
    let pid = child.id() as i32;
    let sites = |spec: &str| {
        let spec = Spec::parse(spec).expect("a specification");
        session::plan(pid, &[spec], Verb::CountByHandler).expect("a plan").sites
    };
    let (entry, exit) = (sites("u::stress_fn_08"), sites("ur::stress_fn_08"));
    for (first, second) in [(&exit, &entry), (&entry, &exit)] {
        let mut one = Session::attach(pid, first.clone()).expect("the first attaches");
        let mut other = Session::attach(pid, second.clone()).expect("the second attaches");
        assert_eq!((one.sites().count(), other.sites().count()), (1, 0));
        assert!(
            matches!(other.missed()[0].1, Missed::OtherHook | Missed::Changed { .. }),
            "{:?}",
            other.missed()
        );
        for session in [&mut one, &mut other] {
            let receipt = session.detach().expect("it detaches");
            assert!(receipt.is_verified() && receipt.is_unmapped(), "{receipt:?}");
        }
    }
    child.kill().expect("it can be killed");
    child.wait().expect("it can be waited for");
}

/// Two exits, and another controller's jump over one of them.
fn returns_are_counted_at_all_exits_or_at_none() {
    let (mut child, _out) = target();
    let pid = child.id() as i32;
    let spec = Spec::parse("ur::stress_fn_09").expect("a specification");
    let plan =
        || session::plan(pid, std::slice::from_ref(&spec), Verb::CountByHandler).expect("a plan").sites;
    let mut alone = plan();
    assert_eq!(alone.len(), 2);
    alone.truncate(1);
    // As of a controller that stands before another instruction under the same jump.
    alone[0].exit_of = None;
    alone[0].placement.hooks[0].offset = 0;
    let mut one = Session::attach(pid, alone).expect("the first attaches");
    let mut other = Session::attach(pid, plan()).expect("the second attaches");
    assert_eq!((one.sites().count(), other.sites().count()), (1, 0), "{:?}", other.missed());
    assert!(other.missed().iter().any(|(_, why)| matches!(why, Missed::Incomplete)), "{:?}", other.missed());
    for session in [&mut other, &mut one] {
        let receipt = session.detach().expect("it detaches");
        assert!(receipt.is_verified() && receipt.is_unmapped(), "{receipt:?}");
    }
    child.kill().expect("it can be killed");
    child.wait().expect("it can be waited for");
}
