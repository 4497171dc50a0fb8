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

/// What a consumer does that others beside it do not see, and of which many can be served by one call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Alone {
    Count,
    Histogram,
}

impl Alone {
    fn of(consumer: Consumer) -> Option<Alone> {
        match consumer {
            Consumer::Count => Some(Alone::Count),
            Consumer::Log2Histogram { .. } => Some(Alone::Histogram),
            _ => None,
        }
    }
}

/// Consumers in the order in which a hit comes by them: those that nobody sees first, one kind after the other, so that there are few
/// runs; others as they are.
pub(crate) fn sorted<T: Copy>(list: &[T], consumer: impl Fn(&T) -> Consumer) -> Vec<T> {
    let mut list = list.to_vec();
    list.sort_by_key(|one| Alone::of(consumer(one)).map_or((true, None), |kind| (false, Some(kind))));
    list
}

/// How many consumers, from the first on, are a run, and the handler that serves it: counting ones in a row, or histograms, two or more.
pub(crate) fn run_handler(list: &[Consumer]) -> Option<(usize, HandlerKind)> {
    let kind = Alone::of(*list.first()?)?;
    let len = list.iter().take_while(|c| Alone::of(**c) == Some(kind)).count();
    let handler = match kind {
        Alone::Count => HandlerKind::Count,
        Alone::Histogram => HandlerKind::Log2Histograms,
    };
    (len > 1).then_some((len, handler))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_of_counting_consumers_in_a_row_or_of_histograms() {
        use Consumer::{Count, Ring};
        let hist = |register| Consumer::Log2Histogram { register };
        let list = [Count, Count, hist(112), Count, hist(112), hist(104), Ring, Ring];
        let runs: Vec<usize> =
            (0..list.len()).map(|i| run_handler(&list[i..]).map_or(1, |run| run.0)).collect();
        assert_eq!(runs, [2, 1, 1, 1, 2, 1, 1, 1]);
        assert_eq!(run_handler(&list), Some((2, HandlerKind::Count)));
        assert_eq!(run_handler(&list[4..]), Some((2, HandlerKind::Log2Histograms)));
    }

    #[test]
    fn what_others_may_see_keeps_its_order() {
        use Consumer::{Count, Enter, Ring};
        let hist = |register| Consumer::Log2Histogram { register };
        let enter = Enter { function: 3, is_go: false };
        let list = [enter, hist(112), Ring, Count, hist(104), Count, enter];
        assert_eq!(sorted(&list, |c| *c), [Count, Count, hist(112), hist(104), enter, Ring, enter]);
    }
}
