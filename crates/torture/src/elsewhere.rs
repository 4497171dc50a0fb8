//! Where the programs that are tortured do not exist: they are x86-64 code.
//!
//! For:     the command line.
//! State:   none.
//! Context: control.
//! Keeps:   nothing is tried, and nothing said to have passed.
//! Checked: by who asks: the status is 1.

/// Says that there is no torture here; the exit status.
pub fn torture_main(_: &[String]) -> i32 {
    eprintln!("nanoprobe: tortures do not exist on {} yet", std::env::consts::ARCH);
    1
}

/// The same.
pub fn target_main(args: &[String]) -> i32 {
    torture_main(args)
}
