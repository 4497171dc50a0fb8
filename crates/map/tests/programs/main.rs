//! The maps of programs.

mod glance;
mod ground;
mod hostile;
mod maps;
mod sleep;
mod stay;
mod table;
