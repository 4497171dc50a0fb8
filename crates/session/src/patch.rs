//! The bytes at a site, ours and other controllers'.

pub(crate) mod chain;
pub(crate) mod pages;
