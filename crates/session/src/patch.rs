//! The bytes at a site, ours and other controllers'.
//!
//! For:     arming, leaving, and the kernel's probes.
//! State:   the process's text.
//! Context: control, in a stop.
//! Keeps:   no controller's jump is lost, hidden or written over.
//! Checked: testkit `two`, `crowd`; `torture uprobe`.
//!
//! - [`pages`] text read and written page by page
//! - [`chain`] several controllers on one site

pub(crate) mod chain;
pub(crate) mod pages;
