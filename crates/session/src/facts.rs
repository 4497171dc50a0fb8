//! What every room speaks of, and imports of none.

pub(crate) mod descriptor;
pub(crate) mod ending;
pub(crate) mod error;
pub(crate) mod inject;
pub(crate) mod site;
