#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod assembler;
mod disassembler;
mod guard;
pub mod helper;
mod insn;
mod interpreter;
mod op;
mod program;
mod refusal;

pub use assembler::{Misread, Wanted, assemble};
pub use guard::{GUARDS_MAX, Guard, guards};
pub use insn::{INSN_LEN, Insn};
pub use interpreter::{BUFFER_ADDR, Buffer, FRAME_LEN, FRAMES_MAX, Fault, Faulted, Host, Stack, run};
pub use op::{Alu, Atomic, Callee, Cond, Op, Operand, Order, Reg, Size, Wide, Width};
pub use program::{INSNS_MAX, Program};
pub use refusal::{Refusal, Refused};
