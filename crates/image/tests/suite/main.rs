//! What the crate says about real files and processes, compared with what binutils, the programs themselves
//! and the languages' own tools say.

mod elf;
mod go;
mod languages;
mod marks;
mod mutants;
mod pointers;
mod process;
mod programs;
mod select;
