//! When to stop.
//!
//! For:     the engine's main loop.
//! State:   the pipe from the front.
//! Context: control.
//! Keeps:   nothing beyond the call.
//! Checked: testkit `faces`.

use session::Heritage;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// What the front said.
#[derive(Debug)]
pub struct Stop {
    pipe: std::fs::File,
    /// What a command takes over from whoever started us.
    pub heritage: Heritage,
    /// The command that was started, 0 if none: what it sends to its own group is not meant for us.
    pub command: i32,
    /// Readable when something else is to be looked at before the time is up; -1 if nothing can be.
    pub also: RawFd,
}

/// Why waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woke {
    /// The time was up.
    Time,
    /// A signal asked us to end.
    Signal,
    /// The front is gone.
    FrontGone,
}

/// When results are due, and when all is over.
pub struct Due {
    pub end: Option<Instant>,
    tick: Option<Instant>,
    interval: Option<Duration>,
}

impl Due {
    pub fn from_now(duration: Option<Duration>, interval: Option<Duration>) -> Due {
        let now = Instant::now();
        Due { end: duration.map(|d| now + d), tick: interval.map(|i| now + i), interval }
    }

    /// Whichever comes first: `look`, or something that is due.
    pub fn or(&self, look: Instant) -> Instant {
        [Some(look), self.end, self.tick].into_iter().flatten().min().unwrap_or(look)
    }

    pub fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Whether results are due; the next are an interval later.
    pub fn take_tick(&mut self) -> bool {
        let is_due = self.tick.is_some_and(|tick| Instant::now() >= tick);
        if is_due {
            self.tick = self.tick.zip(self.interval).map(|(tick, interval)| tick + interval);
        }
        is_due
    }
}

impl Stop {
    pub fn new(pipe: OwnedFd, heritage: Heritage) -> Stop {
        Stop { pipe: pipe.into(), heritage, command: 0, also: -1 }
    }

    /// The front has said something, or is gone; [`Stop::wait`] says what.
    pub fn is_asked(&self) -> bool {
        is_readable(&self.pipe)
    }

    /// Asks the same from elsewhere; never true if that cannot be.
    pub fn asker(&self) -> impl Fn() -> bool + 'static {
        let pipe = self.pipe.try_clone().ok();
        move || pipe.as_ref().is_some_and(is_readable)
    }

    /// Readable when something was said that was not heard yet.
    pub fn watched(&self) -> RawFd {
        self.pipe.as_raw_fd()
    }

    /// Waits until `until`, or until the front says something.
    pub fn wait(&mut self, until: Instant) -> Woke {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut fds = [self.pipe.as_raw_fd(), self.also].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            let millis = left.as_millis().min(1 << 20) as i32 + i32::from(left > Duration::ZERO);
            // SAFETY: two pollfds, alive for the call; one that is negative is passed over.
            let got = unsafe { libc::poll(fds.as_mut_ptr(), 2, millis) };
            if got > 0 && fds[0].revents != 0 {
                // The front writes who has asked, a word each.
                let mut words = [[0u8; 4]; 16];
                match self.pipe.read(words.as_flattened_mut()) {
                    Ok(0) | Err(_) => return Woke::FrontGone,
                    Ok(n) => {
                        let senders = words[..n / 4].iter().map(|w| i32::from_le_bytes(*w));
                        // It may have ended by now, when only we knew it.
                        if senders.into_iter().any(|sender| sender == 0 || sender != self.command) {
                            return Woke::Signal;
                        }
                    }
                }
            }
            if Instant::now() >= until || (got > 0 && fds[1].revents != 0) {
                return Woke::Time;
            }
        }
    }
}

fn is_readable(pipe: &std::fs::File) -> bool {
    let mut fd = libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, alive for the call.
    unsafe { libc::poll(&raw mut fd, 1, 0) > 0 }
}
