//! `torture uprobe` passes with sessions of nanoprobe on a real process, and fails in every broken variant.
//!
//! Each run is a process of its own: this program, called again with its arguments in the environment. Its target is this
//! program too. With `NANOPROBE_KERNEL` in the environment the kernel's uprobes are tried as well, which takes root.

#[path = "itself/again.rs"]
mod again;

use again::{Verdict, again, be_the_run};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "torture-target") {
        std::process::exit(torture::target_main(&args[1..]));
    }
    be_the_run(torture::uprobe_main);
    let mut verdict = Verdict::default();
    let backends: &[&str] = if std::env::var_os("NANOPROBE_KERNEL").is_some() {
        &["nanoprobe", "kernel"]
    } else {
        &["nanoprobe"]
    };
    for backend in backends {
        let run = again(&format!("--backend {backend} --for 3s --seed 1"));
        verdict.say(
            run.ended(0, &format!("PASS backend={backend} broken=none ")),
            &format!("honest {backend} passes"),
            &run,
        );
        for name in ["forgotten-byte", "kept-link", "dropped-count"] {
            let run = again(&format!("--backend {backend} --broken {name} --for 2s --seed 1"));
            let caught = run.ended(1, &format!("FAIL backend={backend} broken={name} "));
            verdict.say(caught, &format!("broken variant {name} of {backend} is caught"), &run);
        }
    }
    let run = again("--broken no-wait");
    verdict.say(run.status == Some(2), "a broken variant of another backend is refused", &run);
    verdict.end()
}
