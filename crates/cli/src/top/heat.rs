//! Latency over time of one function: a column a second, a row for each power of two.
//!
//! For:     the live view.
//! State:   what was counted in each column.
//! Context: control.
//! Keeps:   A1 a column has the calls that returned in its time, and no others.
//! Checked: tests below.

use crate::render::octaves;
use session::Calls;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// No screen is wider.
const COLUMNS_MAX: usize = 512;
/// How many calls took so long: less than `2^k` ns at `k`, and not less than half of that.
pub type Column = Vec<u64>;

#[derive(Clone, Debug, Default)]
pub struct Heat {
    /// Whose.
    pub function: Option<usize>,
    pub name: String,
    pub columns: VecDeque<Column>,
    before: Option<(Instant, Column)>,
}

impl Heat {
    /// Of another function, from the beginning, unless it is the same.
    pub fn choose(&mut self, function: usize, name: &str) {
        if self.function != Some(function) {
            *self = Heat { function: Some(function), name: name.into(), ..Heat::default() };
        }
    }

    /// What the function has counted until now. A column is `width` long.
    pub fn look(&mut self, calls: &Calls, now: Instant, width: Duration) {
        let all = octaves(&calls.buckets);
        match &self.before {
            Some((then, _)) if now.saturating_duration_since(*then) < width => {}
            None => self.before = Some((now, all)),
            Some((then, before)) => {
                let column = all.iter().zip(before).map(|(now, then)| now.saturating_sub(*then)).collect();
                // On the grid, so that a late look does not shift all that follow; a long pause is not made up for.
                let next = *then + width;
                let at = if now.saturating_duration_since(next) < width { next } else { now };
                self.before = Some((at, all));
                self.columns.push_back(column);
                if self.columns.len() > COLUMNS_MAX {
                    self.columns.pop_front();
                }
            }
        }
    }

    /// The powers of two that were hit, from the lowest to the highest, in the last so many columns; the highest count.
    pub fn span(&self, last: usize) -> Option<(std::ops::RangeInclusive<usize>, u64)> {
        let seen = || self.columns.iter().rev().take(last);
        let is_hit = |k: &usize| seen().any(|column| column[*k] > 0);
        let rows = self.columns.back()?.len();
        let low = (0..rows).find(is_hit)?;
        let high = (0..rows).rfind(is_hit)?;
        let most = seen().flatten().copied().max().unwrap_or(0);
        Some((low..=high, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use map::Buckets;

    fn calls(of: &[(u64, u64)]) -> Calls {
        let mut calls = Calls { buckets: vec![0; Buckets::DURATIONS.count() as usize], ..Calls::default() };
        of.iter().for_each(|(ns, n)| calls.buckets[Buckets::DURATIONS.of(*ns) as usize] += n);
        calls
    }

    #[test]
    fn a_column_has_what_came_in_its_second() {
        let (mut heat, start, second) = (Heat::default(), Instant::now(), Duration::from_secs(1));
        let at = |ms| start + Duration::from_millis(ms);
        heat.look(&calls(&[(100, 50)]), at(0), second);
        heat.look(&calls(&[(100, 55)]), at(500), second);
        assert!(heat.columns.is_empty());
        heat.look(&calls(&[(100, 60), (5000, 2)]), at(1010), second);
        heat.look(&calls(&[(100, 60), (5000, 5)]), at(2000), second);
        assert_eq!(heat.columns.len(), 2, "on the grid");
        assert_eq!((heat.columns[0][7], heat.columns[0][13]), (10, 2));
        assert_eq!((heat.columns[1][7], heat.columns[1][13]), (0, 3));
        assert_eq!(heat.span(9), Some((7..=13, 10)));
        assert_eq!(heat.span(1), Some((13..=13, 3)));
        heat.choose(3, "f");
        assert_eq!((heat.columns.len(), heat.span(9)), (0, None));
    }
}
