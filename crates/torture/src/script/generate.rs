//! Scripts made by chance.
//!
//! For:     `torture lang`.
//! State:   none.
//! Context: control.
//! Keeps:   G1 a correct script ends: its loops have few turns.
//!          G2 a seed and a number give the same script.
//! Checked: `tests/lang.rs`: a quarter at least is accepted.

mod broken;
mod correct;
mod numbers;

use crate::rng::Rng;

/// What a script is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Numbers alone: it calls nothing and returns one.
    Numbers,
    /// Maps, texts, output, all kinds of statements.
    Correct,
    /// Anything.
    Broken,
}

/// The next one.
pub fn script(rng: &mut Rng) -> (Kind, String) {
    match rng.below(10) {
        0..4 => (Kind::Numbers, numbers::script(rng)),
        4..7 => (Kind::Correct, correct::script(rng)),
        _ => (Kind::Broken, broken::script(rng)),
    }
}

fn one<'a>(rng: &mut Rng, of: &[&'a str]) -> &'a str {
    of[rng.below(of.len() as u64) as usize]
}
