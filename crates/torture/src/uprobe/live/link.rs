//! A link: some probes that come and go together.
//!
//! For:     the roles, which do not know who places the probes.
//! State:   none; the backends have it.
//! Context: control.
//! Keeps:   K1 a link that says that it is detached has been looked at.
//! Checked: `tests/uprobe_live.rs`.

/// Whom a link is put on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// The target's program.
    Target,
    /// The library that comes and goes.
    Library,
    /// A forked child, which may have executed itself or ended meanwhile.
    Child(i32),
}

/// How a link sees functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counts hits.
    Count,
    /// Counts hits in the other way that the backend has, if it has one.
    OtherCount,
    /// Times calls, if the backend can; the probes are at entries and exits then.
    Calls,
}

/// A probe that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    pub function: usize,
    pub is_return: bool,
}

/// A link that is wanted.
#[derive(Clone, Debug)]
pub struct Wish {
    pub whom: Whom,
    pub kind: Kind,
    pub probes: Vec<Probe>,
    /// Hits of all processes, if the backend can.
    pub everywhere: bool,
}

/// What one function's probe has counted.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    pub function: usize,
    pub is_return: bool,
    pub hits: u64,
    /// Hits in forked children, if they are counted apart.
    pub children: Option<u64>,
}

/// Why there is no link.
#[derive(Debug)]
pub enum NoLink {
    /// The library, or the child, was not there or went away: no error.
    Gone,
    /// Others were at work on the target for too long: no error.
    Busy,
    /// An error.
    Broken(String),
}

/// Probes that are in.
pub trait Link {
    /// What each has counted; stays readable after `detach`.
    fn counts(&self) -> Vec<Count>;

    /// Probes that were wanted and are not in.
    fn missed(&self) -> usize;

    /// Takes all out.
    ///
    /// # Errors
    /// What was found in the target that must not be there.
    fn detach(&mut self) -> Result<(), String>;
}

/// Who places probes.
pub trait Placer: Send + Sync {
    /// Puts probes on.
    fn link(&self, wish: &Wish) -> Result<Box<dyn Link>, NoLink>;

    /// Puts probes on the first functions, by every way to count that there is.
    fn stay(&self, functions: usize) -> Result<Box<dyn Link>, String>;
}
