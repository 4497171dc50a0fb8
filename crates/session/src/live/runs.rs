//! In which order a hit comes by its consumers, and which of them one call of a handler serves.
//!
//! For:     `live::lists`, which writes the consumers of a hook down.
//! State:   none.
//! Context: control; touches nothing.
//! Keeps:   R1 a run is of consumers with the same handler, which knows runs, [`wire::ConsumerDesc::run`]; others stand alone.
//!          R2 consumers of which one may see what another does keep their order.
//! Checked: tests below; `bench trig-uprobe-multi8 trig-uprobe-mixed8`, where each consumer counts every call.

use crate::facts::site::Consumer;
use wire::HandlerKind;

/// Who serves many such consumers by one call, and what they must have in common; of those that others beside them do not see.
fn alone(consumer: Consumer) -> Option<(HandlerKind, u32)> {
    let by = match consumer {
        Consumer::Count => HandlerKind::Counts,
        Consumer::Log2Histogram { .. } => HandlerKind::Log2Histograms,
        _ => return None,
    };
    Some((by, consumer.handler().1))
}

/// Consumers in the order in which a hit comes by them: those that nobody sees first, like ones side by side, so that there are few
/// runs; others as they are.
pub(crate) fn sorted<T: Copy>(list: &[T], consumer: impl Fn(&T) -> Consumer) -> Vec<T> {
    let mut list = list.to_vec();
    list.sort_by_key(|one| match alone(consumer(one)) {
        Some((by, arg)) => (false, by as u32, arg),
        None => (true, 0, 0),
    });
    list
}

/// All handlers that serve runs.
pub(crate) const OF_RUNS: [HandlerKind; 2] = [HandlerKind::Counts, HandlerKind::Log2Histograms];

/// How many consumers, from the first on, are a run, and the handler that serves it: counts, or histograms of one argument, two or more.
pub(crate) fn run_handler(list: &[Consumer]) -> Option<(usize, HandlerKind)> {
    let like = alone(*list.first()?)?;
    let len = list.iter().take_while(|c| alone(**c) == Some(like)).count();
    (len > 1).then_some((len, like.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_of_counts_in_a_row_or_of_histograms_of_one_argument() {
        use Consumer::{Count, Ring};
        let hist = |register| Consumer::Log2Histogram { register };
        let list = [Count, Count, hist(112), Count, hist(112), hist(112), hist(104), Ring, Ring];
        let runs: Vec<usize> =
            (0..list.len()).map(|i| run_handler(&list[i..]).map_or(1, |run| run.0)).collect();
        assert_eq!(runs, [2, 1, 1, 1, 2, 1, 1, 1, 1]);
        assert_eq!(run_handler(&list), Some((2, HandlerKind::Counts)));
        assert_eq!(run_handler(&list[4..]), Some((2, HandlerKind::Log2Histograms)));
    }

    #[test]
    fn what_others_may_see_keeps_its_order() {
        use Consumer::{Count, Enter, Ring};
        let hist = |register| Consumer::Log2Histogram { register };
        let enter = Enter { function: 3, is_go: false };
        let list = [enter, hist(112), Ring, Count, hist(104), hist(112), Count, enter];
        let in_order = [hist(104), hist(112), hist(112), Count, Count, enter, Ring, enter];
        assert_eq!(sorted(&list, |c| *c), in_order);
    }
}
