//! Where most of the programs that are tortured do not exist: they are x86-64 code.
//!
//! For:     the command line.
//! State:   none.
//! Context: control.
//! Keeps:   what is not there is not tried, and nothing said to have passed.
//! Checked: `anywhere` by scripts/aarch64-live; of the others by who asks: the status is 1.

/// Runs `nanoprobe torture anywhere ...`, whose targets are the system's programs; says of any other that it is not here. The exit status.
pub fn torture_main(args: &[String]) -> i32 {
    match args.split_first() {
        Some((name, rest)) if name == "anywhere" => crate::anywhere_main(rest),
        _ => {
            eprintln!("nanoprobe: of the tortures there is on {} only: anywhere", std::env::consts::ARCH);
            1
        }
    }
}

/// Says that there is no target for a torture here.
pub fn target_main(_: &[String]) -> i32 {
    torture_main(&[])
}
