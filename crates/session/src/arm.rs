//! Sites armed, in one go.

pub(crate) mod attach;
pub(crate) mod numbers;
pub(crate) mod runs;
