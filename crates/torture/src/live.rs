//! Consumers that come and go in one session, under threads that hit them all the time.
//!
//! For:     `nanoprobe torture live`: lists replaced under readers of another process, and their memory used again.
//! State:   a child process with the threads; one session.
//! Context: control.
//! Keeps:   V1 the last line begins with PASS or FAIL, and agrees with the exit status.
//!          V2 who stays counts every call; who comes and goes counts all calls that began after it came and were over
//!             before it went, and no other; who is where nobody calls counts nothing.
//!          V3 no thread of the target is stopped for consumers, and no memory is left in use.
//!          V4 a whole probe counts every call that it stood for from its begin to its end.
//! Checked: `--broken NAME` must end in FAIL: `tests/live.rs`.

mod options;
mod oracle;
pub(crate) mod programs;
pub mod target;
mod whole;
mod world;

use std::io::Write;

pub use target::{ROLE, STEPS};

/// Runs `nanoprobe torture live`; the exit status: 0 passed, 1 failed, 2 could not begin.
pub fn live_main(args: &[String]) -> i32 {
    let options = match options::parse(args) {
        Ok(Some(options)) => options,
        Ok(None) => {
            let _ = writeln!(std::io::stdout(), "{}", options::HELP);
            return 0;
        }
        Err(why) => {
            eprintln!("nanoprobe: torture live: {why}");
            return 2;
        }
    };
    println!("torture live: {options}");
    let broken = options.broken.map_or("none", |(name, _)| name);
    let mut tally = world::Tally::default();
    let verdict = world::run(&options, &mut tally);
    match verdict {
        Ok(()) => {
            println!("PASS broken={broken} {tally}");
            0
        }
        Err(why) => {
            println!("FAIL broken={broken} {tally}: {why}");
            1
        }
    }
}
