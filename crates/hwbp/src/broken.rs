//! Ways to break the accounts on purpose.
//!
//! For:     `torture hwbp`, which must catch each of them.
//! State:   which one.
//! Context: as the accounts.
//! Keeps:   B1 without the feature `broken` there is none, and no code for any.
//! Checked: torture's `tests/broken.rs`.

/// What is left out.
#[cfg(feature = "broken")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// Histogram engine: operations of one task do not wait for each other.
    NoTaskLock,
    /// Histogram engine: a breakpoint of a CPU does not stop the tasks' operations.
    SharedCpuLock,
    /// Histogram engine: the first breakpoint that binds a task to a CPU does not take its others along.
    NoMove,
    /// Any engine: a kind that cannot be changed is lost.
    ModifyForgets,
}

/// `broken!(subject, Way)`: false unless the feature is on and the subject is broken so.
macro_rules! broken {
    ($subject:expr, $way:ident) => {{
        #[cfg(feature = "broken")]
        {
            $subject.broken == Some(crate::Broken::$way)
        }
        #[cfg(not(feature = "broken"))]
        {
            let _ = &$subject;
            false
        }
    }};
}

pub(crate) use broken;
