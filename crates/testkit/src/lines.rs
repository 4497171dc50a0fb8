//! The lines that a process writes, read with a deadline.
//!
//! For:     `Running` and `Tracing`, which wait for a line of a child.
//! State:   a thread per stream; everything read so far.
//! Context: control.
//! Keeps:   G1 a line is given out once and in order; G2 `text` has all that was written, also
//!          what no one waited for; G3 the child never blocks on a full pipe.
//! Checked: tests/targets.rs.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// The lines of one stream.
pub(crate) struct Lines {
    incoming: Receiver<String>,
    text: String,
}

impl Lines {
    /// Starts to read `stream`.
    pub(crate) fn read(stream: impl Read + Send + 'static) -> Self {
        let (outgoing, incoming) = channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stream);
            let mut bytes = Vec::new();
            while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
                let line = String::from_utf8_lossy(&bytes).into_owned();
                if outgoing.send(line).is_err() {
                    return;
                }
                bytes.clear();
            }
        });
        Self { incoming, text: String::new() }
    }

    /// The next line that satisfies `wanted`; lines before it are skipped, but kept in the text.
    pub(crate) fn find(
        &mut self,
        waited_for: &str,
        within: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let limit = Instant::now() + within;
        loop {
            match self.incoming.recv_timeout(limit.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.text.push_str(&line);
                    let line = line.trim_end_matches('\n');
                    if wanted(line) {
                        return Ok(line.to_owned());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let (waited_for, seen) = (waited_for.into(), self.text.clone());
                    return Err(Error::Deadline { waited_for, within, seen });
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let wanted = format!("{waited_for}, and the stream ended");
                    return Err(Error::Unexpected { wanted, seen: self.text.clone() });
                }
            }
        }
    }

    /// All that was written until the stream's end, which must come within the limit.
    pub(crate) fn text_to_end(&mut self, within: Duration) -> Result<String> {
        match self.find("the end of the stream", within, |_| false) {
            Err(Error::Unexpected { .. }) => Ok(self.text.clone()),
            Err(other) => Err(other),
            Ok(_) => unreachable!("no line is wanted"),
        }
    }
}
