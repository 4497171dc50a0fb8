//! Tasks-trace: readers without a cookie, one global domain.
//!
//! For:     code that cannot carry a guard or cookie, such as a hook that nests at will.
//! State:   a nesting count in each thread's record; one domain per form.
//! Context: target; a thread's first reader allocates, later ones are loads and stores.
//! Keeps:   Z1 readers nest; only the outermost counts.
//!          Z2 both forms give the same promises, so that they can be compared.
//! Checked: `tests/tasks.rs`, `torture rcu --flavour tasks-holdout`, `--flavour tasks-fast`.
//!
//! Two forms were published. [`holdout`] is the classic one (5.8 to 6.2): a reader counts in its own
//! thread and a grace period looks at every thread. [`on_fast`] is the one since 2025: the outermost
//! reader is a fast reader of an ordinary domain, and the thread keeps its cookie.

pub mod holdout;
pub mod on_fast;
