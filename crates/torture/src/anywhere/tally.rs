//! What `torture anywhere` has done so far.
//!
//! For:     its lines.
//! State:   counters.
//! Context: control.
//! Keeps:   T1 each is zero if nothing was tested.
//! Checked: by reading.

use session::{Receipt, RefusedSite, Session};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Default)]
pub struct Tally {
    pub runs: u64,
    pub rounds: u64,
    pub sites: u64,
    pub sites_hit: u64,
    pub hits: u64,
    pub missed: u64,
    pub refused: u64,
    /// Rounds that ended with the process.
    pub gone: u64,
    /// Rounds after which a thread kept our memory mapped.
    pub held: u64,
    pub has_failed: bool,
    stall_max: Duration,
    rungs: BTreeMap<String, u64>,
    reasons: BTreeMap<String, u64>,
}

impl Tally {
    pub fn count_round(&mut self, session: &Session, receipt: &Receipt) {
        self.rounds += 1;
        self.missed += session.missed().len() as u64;
        for site in session.sites() {
            let hits = site.hits();
            self.sites += 1;
            self.hits += hits;
            self.sites_hit += u64::from(hits > 0);
        }
        for (rung, many) in session.rungs() {
            *self.rungs.entry(rung.to_string()).or_default() += many as u64;
        }
        self.gone += u64::from(receipt.was_gone());
        self.held += u64::from(!receipt.was_gone() && !receipt.is_unmapped());
        self.stall_max = self.stall_max.max(receipt.longest_stall);
    }

    pub fn count_refusals(&mut self, refused: &[RefusedSite]) {
        self.refused += refused.len() as u64;
        for site in refused {
            *self.reasons.entry(without_numbers(&site.why)).or_default() += 1;
        }
    }

    pub fn line(&self) -> String {
        let rungs: String = self.rungs.iter().map(|(rung, many)| format!(" {rung} {many}")).collect();
        format!(
            "runs {} rounds {} sites {} hit {} hits {} missed {} refused {} gone {} held {} stall_max_us {}{rungs}",
            self.runs,
            self.rounds,
            self.sites,
            self.sites_hit,
            self.hits,
            self.missed,
            self.refused,
            self.gone,
            self.held,
            self.stall_max.as_micros()
        )
    }

    /// The most frequent reasons for refusals.
    pub fn print_refusals(&self) {
        let mut all: Vec<_> = self.reasons.iter().collect();
        all.sort_by_key(|(_, many)| std::cmp::Reverse(**many));
        for (why, many) in all.iter().take(12) {
            println!("refused {many:8}: {why}");
        }
    }
}

/// The reason of the longest jump, or the whole text, with a # for each number, so that equal reasons are one.
fn without_numbers(why: &str) -> String {
    let part = why.split("; ").find(|part| part.starts_with("window: ")).unwrap_or(why);
    let is_number = |word: &&str| word.chars().next().is_some_and(|c| c.is_ascii_digit());
    let words = part.split(' ').map(|word| if is_number(&word) { "#" } else { word });
    words.collect::<Vec<_>>().join(" ")
}
