//! Where the functions that benchmarks call do not exist: they are x86-64 code.
//!
//! For:     the command line.
//! State:   none.
//! Context: control.
//! Keeps:   nothing is measured, and nothing said to be.
//! Checked: by who asks: there is no figure.

use crate::Price;
use session::{Programs, Session, Verb};

/// None: it is not measured here.
pub fn price(_: &[Verb]) -> Option<Price> {
    None
}

/// None: it is not measured here.
pub fn price_of_program(_: &Programs, _: (u32, u64), _: &mut dyn FnMut(&Session)) -> Option<Price> {
    None
}

/// Says that there is no benchmark here; the exit status.
pub fn bench_main(_: &[String]) -> i32 {
    eprintln!("nanoprobe: benchmarks do not exist on {} yet", std::env::consts::ARCH);
    1
}
