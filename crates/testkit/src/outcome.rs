//! What a nanoprobe command said by its end.
//!
//! For:     end-to-end tests.
//! State:   its two outputs and its status.
//! Context: control.
//! Keeps:   G1 a number is read from text and from JSON by the rules of the manual, never guessed.
//! Checked: outcome::tests.

use std::process::ExitStatus;

use serde_json::Value;

use crate::{Error, Result};

/// A command that has ended.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// Data.
    pub stdout: String,
    /// Talk.
    pub stderr: String,
}

/// The closing statement of a run.
#[derive(Debug)]
pub struct Receipt {
    /// Times that a probe was reached.
    pub hits: u64,
    /// Of those, the ones that were counted.
    pub handled: u64,
    /// Of those, the ones that were not, summed over all causes.
    pub skipped: u64,
    /// Whether the code was read back and found as in the file.
    pub detach_verified: bool,
}

impl Outcome {
    /// The exit code; None if a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Itself, if the exit code is 0.
    pub fn success(self) -> Result<Self> {
        match self.code() {
            Some(0) => Ok(self),
            _ => Err(Error::Unexpected { wanted: "exit code 0".into(), seen: self.to_string() }),
        }
    }

    /// The rows `@[name]: number` of the table, in the order in which they were printed.
    pub fn table(&self) -> Vec<(String, u64)> {
        self.stdout.lines().filter_map(table_row).collect()
    }

    /// The number beside `name` in the table; 0 if it has no row, since such rows may be left out.
    pub fn count(&self, name: &str) -> u64 {
        self.table().iter().filter(|(key, _)| key == name).map(|(_, n)| n).sum()
    }

    /// Standard output as JSON, one object a line.
    pub fn json(&self) -> Result<Vec<Value>> {
        let parse = |line: &str| {
            serde_json::from_str(line)
                .map_err(|e| Error::Unexpected { wanted: format!("a JSON object ({e})"), seen: line.into() })
        };
        self.stdout.lines().map(parse).collect()
    }

    /// The `data` of every JSON object of this `type`.
    pub fn json_data(&self, kind: &str) -> Result<Vec<Value>> {
        let of_kind = |object: Value| (object["type"] == kind).then(|| object["data"].clone());
        Ok(self.json()?.into_iter().filter_map(of_kind).collect())
    }

    /// The number beside `name` in any JSON map of the run.
    pub fn json_count(&self, name: &str) -> Result<u64> {
        let bad = || Error::Unexpected { wanted: format!("`{name}` in a map"), seen: self.to_string() };
        let maps = self.json_data("map")?;
        let number = |map: &Value| map.as_object()?.values().find_map(|table| table[name].as_u64());
        maps.iter().find_map(number).ok_or_else(bad)
    }

    /// The one receipt of a run with `-f json`.
    pub fn json_receipt(&self) -> Result<Receipt> {
        let receipts = self.json_data("receipt")?;
        let bad = || Error::Unexpected { wanted: "one receipt in JSON".into(), seen: self.to_string() };
        let [data] = &receipts[..] else { return Err(bad()) };
        let skipped = data["skipped"].as_object().ok_or_else(bad)?;
        Ok(Receipt {
            hits: data["hits"].as_u64().ok_or_else(bad)?,
            handled: data["handled"].as_u64().ok_or_else(bad)?,
            skipped: skipped.values().filter_map(Value::as_u64).sum(),
            detach_verified: data["detach_verified"].as_bool().ok_or_else(bad)?,
        })
    }

    /// The longest time for which a thread of the target stood still, in ms, rounded up.
    pub fn longest_stall_ms(&self) -> Result<u64> {
        let bad = || Error::Unexpected { wanted: "`longest stall N us`".into(), seen: self.to_string() };
        let stall_ms = |line: &str| {
            let (number, unit) = line.split_once("longest stall ")?.1.split_once(' ')?;
            let number: f64 = number.parse().ok()?;
            let ms = match unit.trim_end_matches(['.', ',', ';']) {
                "us" => number / 1e3,
                "ms" => number,
                "s" => number * 1e3,
                _ => return None,
            };
            Some(ms.ceil() as u64)
        };
        self.stderr.lines().filter_map(stall_ms).max().ok_or_else(bad)
    }

    /// Whether the closing block of the text form says that the detach was verified.
    pub fn says_detach_verified(&self) -> bool {
        self.stderr.lines().any(|line| line.starts_with("Detach verified: yes"))
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n--- stdout\n{}--- stderr\n{}---", self.status, self.stdout, self.stderr)
    }
}

fn table_row(line: &str) -> Option<(String, u64)> {
    let (key, number) = line.strip_prefix("@[")?.rsplit_once("]: ")?;
    Some((key.to_owned(), number.trim().replace(',', "").parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn said(stdout: &str) -> Outcome {
        Outcome { status: ExitStatus::from_raw(0), stdout: stdout.into(), stderr: String::new() }
    }

    #[test]
    fn table_rows_are_read_and_other_lines_are_not() {
        let outcome = said("hello\n@[free]: 3\n@[operator new[](unsigned long)]: 12\n");
        assert_eq!(outcome.count("free"), 3);
        assert_eq!(outcome.count("operator new[](unsigned long)"), 12);
        assert_eq!(outcome.table().len(), 2);
    }

    #[test]
    fn receipt_sums_all_causes_of_skipping() {
        let line = r#"{"type":"receipt","data":{"hits":10,"handled":7,"skipped":{"a":1,"b":2},"detach_verified":true}}"#;
        let receipt = said(line).json_receipt().unwrap();
        assert_eq!((receipt.hits, receipt.handled, receipt.skipped), (10, 7, 3));
        assert!(receipt.detach_verified);
    }

    #[test]
    fn text_that_is_no_json_is_an_error() {
        assert!(said("Attached\n").json().is_err());
    }
}
