//! Records that programs left: read in their order and done.
//!
//! For:     the machine.
//! State:   none of its own.
//! Context: control.
//! Keeps:   V1 a record that is too short for its arguments is read as zeros.
//!          V2 a warning that comes without end is told a few times and then counted.
//! Checked: tests/output.rs, tests/scripts.rs (V2).

use super::machine::Machine;
use super::os;
use super::out::Format;
use super::printf::printf;
use super::report::{self, How};
use super::show::{Shown, number, quoted, value};
use super::traced::{Traced, Untraced};
use crate::program::{Place, Record, Trouble, What};
use std::io::Read;
use std::process::{Command, Stdio};
use wire::maps::HelperError;

/// Output of a command, and a file, are read up to this.
const OUTPUT_MAX: u64 = 1 << 26;

/// So often the same warning of the same place is told.
const TOLD_MAX: u64 = 10;

/// So many records are shown at once.
const AT_ONCE: usize = 256;

/// Nanoseconds after which no hit leaves a record with an older stamp, unless it was kept from running.
const SETTLED: u64 = 1_000_000;

impl Machine {
    /// Reads all records that wait: those of traced processes and of another engine as far as no older one can come, then our own.
    pub(super) fn drain(&mut self, traced: &mut dyn Traced) {
        self.drain_hits(os::clock(os::MONOTONIC).saturating_sub(SETTLED), traced);
        self.drain_own();
    }

    /// Reads all records; no hit leaves one any more.
    pub(super) fn drain_all(&mut self) {
        self.drain_hits(u64::MAX, &mut Untraced);
        self.drain_own();
    }

    /// Records that hits left before a time, in one order over all CPUs and both engines.
    fn drain_hits(&mut self, until: u64, traced: &mut dyn Traced) {
        let records = self.shared.borrow_mut().take_records(until);
        let mut records: Vec<(u64, Vec<u8>)> =
            records.into_iter().map(|record| (record.stamp, record.bytes)).collect();
        if let Some(engine) = &mut self.engine {
            records.extend(engine.take_records(until));
            records.sort_by_key(|(stamp, _)| *stamp);
            let lost = engine.lost();
            self.memory.lost += lost.saturating_sub(std::mem::replace(&mut self.lost_in_engine, lost));
        }
        self.show_all(records.into_iter().map(|(_, bytes)| bytes), traced);
        let maps = self.shared.borrow();
        let lost = maps.errors(HelperError::RingFull).saturating_add(maps.errors(HelperError::RecordTooLong));
        // Of who was killed while he wrote one.
        let lost = lost.saturating_add(maps.abandoned());
        drop(maps);
        self.memory.lost += lost.saturating_sub(std::mem::replace(&mut self.lost_in_rings, lost));
    }

    /// Shows some and others; there may be more than is shown in a second.
    fn show_all(&mut self, records: impl IntoIterator<Item = Vec<u8>>, traced: &mut dyn Traced) {
        for (n, record) in records.into_iter().enumerate() {
            if n % AT_ONCE == 0 {
                traced.meanwhile();
            }
            // What comes behind exit() is not shown.
            if self.exit.is_none() {
                self.record(&record);
            }
        }
    }

    pub(super) fn drain_own(&mut self) {
        let ring = std::mem::take(&mut self.memory.ring);
        let mut rest = ring.as_slice();
        while let Some((len, behind)) = rest.split_first_chunk::<8>() {
            let len = (u64::from_le_bytes(*len) as usize).min(behind.len());
            self.record(&behind[..len]);
            rest = &behind[len..];
        }
        // The memory is used again.
        let mut ring = ring;
        ring.clear();
        self.memory.ring = ring;
        if self.memory.lost > 0 {
            let lost = std::mem::take(&mut self.memory.lost);
            self.lost += lost;
            match self.out.format {
                Format::Text => self.say(&format!("Lost {lost} events\n")),
                Format::Json => {
                    let line = format!(
                        "{{\"type\": \"lost_events\", \"count\": {lost}, \"data\": {{\"events\": {lost}}}}}\n"
                    );
                    self.out.raw(line.as_bytes());
                }
            }
        }
    }

    fn record(&mut self, bytes: &[u8]) {
        let number = u64::from_le_bytes(bytes.first_chunk().copied().unwrap_or_default()) as usize;
        let Some(record) = self.script.records.get(number).cloned() else { return };
        let args = bytes.get(8..).unwrap_or_default();
        match &record.what {
            What::Printf(format) => {
                let text = self.formatted(format, &record, args);
                self.out.text("printf", &text);
            }
            What::Debug(format) => {
                let text = self.formatted(format, &record, args);
                self.trace(&text);
            }
            What::Message { is_error, format } => {
                let text = self.formatted(format, &record, args);
                self.message(*is_error, &text, &record.place);
            }
            What::Print => {
                let shown = self.shown(&record, args).pop().unwrap_or(Shown::Null);
                match self.out.format {
                    Format::Text => {
                        let text = self.out.foreign(shown.text());
                        self.out.raw(&[text, b"\n".to_vec()].concat());
                    }
                    Format::Json => self.out.line("value", &shown.json()),
                }
            }
            What::PrintMap(map) => self.print_map(*map, args),
            What::PrintElement(map) => {
                self.fetch(*map);
                let how =
                    How { top: 0, div: 1, trailer: &self.trailer, is_real: self.is_real, is_falling: false };
                if let Some(map) = self.memory.maps.get(*map) {
                    let size = map.decl.key_size.min(args.len());
                    report::element(&mut self.out, &self.script, map, &args[..size], how);
                }
            }
            What::Clear(map) => {
                self.engine.iter_mut().for_each(|engine| engine.clear(*map));
                self.memory.maps.get(*map).into_iter().for_each(super::maps::Map::clear);
            }
            What::Zero(map) => {
                self.engine.iter_mut().for_each(|engine| engine.zero(*map));
                self.memory.maps.get(*map).into_iter().for_each(super::maps::Map::zero);
            }
            What::Time(format) => {
                let text = os::format_time(format, i128::from(os::clock(os::REAL)));
                self.out.text("time", &text);
            }
            What::Cat(format) => {
                let name = self.formatted(format, &record, args);
                self.cat(&name);
            }
            What::System(format) => {
                let command = self.formatted(format, &record, args);
                self.system(&command);
            }
            What::Join(separator) => self.join(separator, &record, args),
            What::Exit => {
                if self.exit.is_none() {
                    self.exit = Some(number_at(args, 0) as i32);
                }
            }
            What::Trouble(trouble) => self.trouble(*trouble, number_at(args, 0), &record.place),
        }
    }

    /// The arguments of a record as they are shown.
    fn shown(&self, record: &Record, args: &[u8]) -> Vec<Shown> {
        let (offsets, _) = self.script.ctypes.layout(record.args.iter());
        let of = |(ty, at): (&crate::types::Type, u32)| {
            let end = (at + self.script.ctypes.size(ty)) as usize;
            let bytes = args.get(at as usize..end.min(args.len())).unwrap_or_default();
            value(&self.script, &self.trailer, ty, bytes, 1)
        };
        record.args.iter().zip(offsets).map(of).collect()
    }

    /// A format with a record's arguments. What came from elsewhere than the script is made fit for a terminal.
    fn formatted(&self, format: &[u8], record: &Record, args: &[u8]) -> Vec<u8> {
        let shown = self.shown(record, args).into_iter().map(|shown| match shown {
            Shown::Text(text) => Shown::Text(self.out.foreign(text)),
            Shown::Stack(_) => Shown::Text(self.out.foreign(shown.text())),
            other => other,
        });
        printf(format, &shown.collect::<Vec<_>>())
    }

    fn print_map(&mut self, map: usize, args: &[u8]) {
        let top = number_at(args, 0).max(0) as usize;
        let div = i128::from(number_at(args, 8)).max(1);
        self.fetch(map);
        let how = How { top, div, trailer: &self.trailer, is_real: self.is_real, is_falling: false };
        if let Some(map) = self.memory.maps.get(map) {
            report::map(&mut self.out, &self.script, map, how);
        }
    }

    fn join(&mut self, separator: &[u8], record: &Record, args: &[u8]) {
        let texts: Vec<Vec<u8>> = self.shown(record, args).iter().map(Shown::text).collect();
        let count = texts.iter().rposition(|text| !text.is_empty()).map_or(0, |last| last + 1);
        let text = self.out.foreign(texts[..count].join(separator));
        match self.out.format {
            Format::Text => self.out.raw(&[text, b"\n".to_vec()].concat()),
            Format::Json => self.out.line("join", &quoted(&text)),
        }
    }

    fn cat(&mut self, name: &[u8]) {
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::OsStr::from_bytes(name);
        let mut text = Vec::new();
        let done = std::fs::File::open(path)
            .and_then(|file| file.take(self.cat_max.min(OUTPUT_MAX)).read_to_end(&mut text));
        match done {
            Ok(_) => {
                let text = self.out.foreign(text);
                self.out.text("cat", &text);
            }
            Err(error) => {
                let why = super::out_error(&error);
                self.say(&format!("ERROR: failed to open file '{}': {why}\n", path.to_string_lossy()));
            }
        }
    }

    fn system(&mut self, command: &[u8]) {
        use std::os::unix::ffi::OsStrExt;
        if !self.memory.is_unsafe {
            return self.say("ERROR: system() needs --unsafe\n");
        }
        self.out.flush();
        let started = Command::new("/bin/sh")
            .arg("-c")
            .arg(std::ffi::OsStr::from_bytes(command))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => return self.say(&format!("ERROR: the command can't be started: {error}\n")),
        };
        let mut text = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            // What could be read is shown; the rest of a command that writes without end is not waited for.
            let _ = stdout.take(OUTPUT_MAX).read_to_end(&mut text);
        }
        let _ = child.wait();
        match self.out.format {
            Format::Text => self.out.raw(&text),
            Format::Json => self.out.line("syscall", &quoted(&text)),
        }
    }

    /// The kernel's trace, which `debugf` writes to.
    fn trace(&mut self, text: &[u8]) {
        let message = format!("bpf_trace_printk: {}", String::from_utf8_lossy(text));
        let paths = ["/sys/kernel/tracing/trace_marker", "/sys/kernel/debug/tracing/trace_marker"];
        let is_written = paths.iter().any(|path| std::fs::write(path, &message).is_ok());
        if !is_written && self.says_no_trace {
            self.says_no_trace = false;
            self.say("WARNING: debugf(): the kernel's trace can't be written to\n");
        }
    }

    /// How often the warnings came that were told no more.
    pub(super) fn tell_untold(&mut self) {
        if !self.says_warnings {
            return;
        }
        for ((_, at), count) in std::mem::take(&mut self.troubles) {
            let Some(untold @ 1..) = count.checked_sub(TOLD_MAX) else { continue };
            match self.out.format {
                Format::Text => self.say(&format!("{at}: WARNING: the same {untold} times more\n")),
                Format::Json => {
                    let data = format!("{{\"place\": {}, \"count\": {untold}}}", quoted(at.as_bytes()));
                    self.out.line("untold_warnings", &data);
                }
            }
        }
    }

    /// A warning or an error with its place.
    fn message(&mut self, is_error: bool, text: &[u8], place: &Place) {
        self.errors += u64::from(is_error);
        if !is_error && !self.says_warnings {
            return;
        }
        match self.out.format {
            Format::Text => {
                let text = String::from_utf8_lossy(text).into_owned();
                let level = if is_error { "ERROR" } else { "WARNING" };
                self.say(&format!("{}: {level}: {text}\n", place.at));
            }
            Format::Json => {
                let kind = if is_error { "errorf" } else { "warnf" };
                self.placed_line(kind, "", text, place);
            }
        }
    }

    fn placed_line(&mut self, kind: &str, more: &str, text: &[u8], place: &Place) {
        let line = format!(
            "{{\"type\": \"{kind}\", \"msg\": {}{more}, \"filename\": {}, \"line\": {}, \"col\": {}}}\n",
            quoted(text),
            quoted(place.file.as_bytes()),
            place.line,
            place.column
        );
        self.out.raw(line.as_bytes());
    }

    fn trouble(&mut self, trouble: Trouble, code: i64, place: &Place) {
        let count = self.troubles.entry((trouble, place.at.clone())).or_default();
        *count += 1;
        if *count > TOLD_MAX {
            return;
        }
        let (text, helper) = in_words(trouble, code);
        if !self.says_warnings {
            return;
        }
        match (self.out.format, helper) {
            (Format::Text, helper) => {
                let info = helper.map_or(String::new(), |(name, code)| {
                    format!("\nAdditional Info - helper: {name}, retcode: {code}")
                });
                let context: String = place.context.iter().map(|line| format!("{line}\n")).collect();
                self.say(&format!("{}: WARNING: {text}{info}\n{context}", place.at));
            }
            (Format::Json, Some((name, code))) => {
                let more = format!(", \"helper\": \"{name}\", \"retcode\": {code}");
                self.placed_line("helper_error", &more, text.as_bytes(), place);
            }
            (Format::Json, None) => self.placed_line("runtime_error", "", text.as_bytes(), place),
        }
    }
}

/// A trouble as it is told, and the helper that said so with what it gave.
fn in_words(trouble: Trouble, code: i64) -> (String, Option<(&'static str, i64)>) {
    const EBUSY: i64 = -16;
    let (text, helper) = match trouble {
        Trouble::Division => (
            "Divide or modulo by 0 detected. This can lead to unexpected results. 1 is being used as the result.",
            None,
        ),
        Trouble::MapFull if code == EBUSY => (
            "Can't update map element because another thread was changing its place in the map.",
            Some(("map_update_elem", EBUSY)),
        ),
        Trouble::MapFull => (
            "Map full; can't update element. Try increasing max_map_keys config or manually setting the max entries \
             in a map declaration e.g. `let @a = hash(5000)`",
            Some(("map_update_elem", -7)),
        ),
        Trouble::NoKey if code == EBUSY => (
            "Can't delete map element because another thread was changing its place in the map.",
            Some(("map_delete_elem", EBUSY)),
        ),
        Trouble::NoKey => {
            ("Can't delete map element because it does not exist.", Some(("map_delete_elem", -2)))
        }
        Trouble::Lookup => {
            ("Can't lookup map element because it does not exist.", Some(("map_lookup_elem", 0)))
        }
        Trouble::Read { helper } => {
            return (os::error_text(code.unsigned_abs() as i32), Some((helper, code)));
        }
        Trouble::Bounds => ("Array access out of bounds. This can lead to unexpected results.", None),
        Trouble::NoChild => ("cpid: there is no child process; 0 is being used.", None),
    };
    (text.to_owned(), helper)
}

fn number_at(args: &[u8], at: usize) -> i64 {
    number(args.get(at..).unwrap_or_default(), report::INT64) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_is_being_changed_is_not_said_to_be_full_or_without_the_key() {
        for (trouble, code) in [(Trouble::MapFull, -7), (Trouble::NoKey, -2)] {
            let (text, helper) = in_words(trouble, -16);
            assert!(text.contains("another thread was changing"), "{text}");
            assert_eq!(helper.map(|(_, code)| code), Some(-16));
            let (text, helper) = in_words(trouble, code);
            assert!(!text.contains("another thread"), "{text}");
            assert_eq!(helper.map(|(_, code)| code), Some(code));
        }
    }
}
