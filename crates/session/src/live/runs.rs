//! Which consumers one call of a handler serves.
//!
//! For:     `live::lists`, which writes the consumers of a hook down.
//! State:   none.
//! Context: control; touches nothing.
//! Keeps:   R1 a run is of consumers whose handler knows runs, [`wire::ConsumerDesc::run`]; others stand alone.
//! Checked: test below; `bench trig-uprobe-multi8 trig-uprobe-mixed8`, where each consumer counts every call.

use crate::facts::site::Consumer;

/// How many consumers, from the first on, are one run: counting ones in a row. At least one.
pub(crate) fn run_of(list: &[Consumer]) -> usize {
    list.iter().take_while(|c| matches!(c, Consumer::Count)).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_of_counting_consumers_in_a_row_and_of_others_one() {
        use Consumer::{Count, Ring};
        let hist = Consumer::Log2Histogram { register: 112 };
        let list = [Count, Count, hist, Count, hist, hist, Ring];
        let runs: Vec<usize> = (0..list.len()).map(|i| run_of(&list[i..])).collect();
        assert_eq!(runs, [2, 1, 1, 1, 1, 1, 1]);
    }
}
