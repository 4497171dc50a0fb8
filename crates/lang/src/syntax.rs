//! Text to tree.
mod cursor;
mod expr;
mod literal;
mod points;
mod script;
mod stmt;
mod typename;

pub(crate) use cursor::{Cursor, Read};
pub(crate) use literal::number;
pub(crate) use script::parse;
