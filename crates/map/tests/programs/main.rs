//! The maps of programs.

mod ground;
mod hostile;
mod maps;
mod table;
