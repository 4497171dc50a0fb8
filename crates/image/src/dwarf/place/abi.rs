//! Where the calling convention puts arguments and values: System V, x86-64.
//!
//! For:     functions at their first instruction, where debug information does not say it.
//! State:   which registers are taken by the arguments so far.
//! Context: control.
//! Keeps:   A1 a value of more than 16 bytes, or with a member that is not where its alignment puts it, is in memory.
//! Checked: dwarf/tests.rs: structs of 1 to 24 bytes, floats, doubles, mixed, more arguments than registers.
//! Source:  System V Application Binary Interface, AMD64, 3.2.3.

use super::super::types::DebugType;
use super::super::{DebugInfo, TypeRef};
use super::{Part, unknown};
use crate::loc::{Address, Loc, STACK_POINTER};

/// DWARF's numbers of the registers that hold the first integers: rdi, rsi, rdx, rcx, r8, r9.
const INTEGERS: [u8; 6] = [5, 4, 1, 2, 8, 9];
const VECTORS: u8 = 8;
/// Structs in structs.
const NESTED_MAX: usize = 16;
const MEMBERS_MAX: usize = 256;

/// What a half of a value of up to 16 bytes is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    None,
    Integer,
    Vector,
}

/// The arguments of a call so far.
pub struct Convention<'a> {
    info: &'a DebugInfo,
    integers: usize,
    vectors: u8,
    /// Bytes of the stack behind the return address.
    stack: i64,
}

impl<'a> Convention<'a> {
    /// Of a function that returns this.
    pub fn new(info: &'a DebugInfo, returns: Option<TypeRef>) -> Convention<'a> {
        let mut convention = Convention { info, integers: 0, vectors: 0, stack: 0 };
        // The caller says where a value goes that does not fit registers.
        let is_large = returns.is_some() && convention.classes(returns).is_none();
        convention.integers = usize::from(is_large);
        convention
    }

    /// Where a value is returned.
    pub fn value(&self, returns: Option<TypeRef>) -> Vec<Part> {
        let Some(size) = self.info.size(returns) else { return Vec::new() };
        let Some(classes) = self.classes(returns) else {
            // rax has its address.
            return vec![memory(0, 0, size)];
        };
        let (mut integers, mut vectors) = ([0u8, 1].into_iter(), 0..2u8);
        self.halves(classes, size, |class| match class {
            Class::Vector => vectors.next().map(|number| Loc::Vector { number, byte: 0 }),
            _ => integers.next().map(|number| Loc::Register { number, shift: 0 }),
        })
    }

    /// Where the next argument is.
    pub fn next(&mut self, ty: Option<TypeRef>) -> Vec<Part> {
        let Some(size) = self.info.size(ty) else { return unknown("its type is not known") };
        if size == 0 {
            return Vec::new();
        }
        if let Some(classes) = self.classes(ty) {
            let count = |class| classes.iter().filter(|c| **c == class).count();
            let (integers, vectors) = (count(Class::Integer), count(Class::Vector));
            // The whole of it, or nothing.
            if self.integers + integers <= INTEGERS.len()
                && usize::from(self.vectors) + vectors <= VECTORS.into()
            {
                let (mut integer, mut vector) = (self.integers, self.vectors);
                self.integers += integers;
                self.vectors += vectors as u8;
                return self.halves(classes, size, |class| match class {
                    Class::Vector => {
                        vector += 1;
                        Some(Loc::Vector { number: vector - 1, byte: 0 })
                    }
                    _ => {
                        integer += 1;
                        Some(Loc::Register { number: INTEGERS[integer - 1], shift: 0 })
                    }
                });
            }
        }
        let at = self.stack;
        self.stack = at.saturating_add(i64::try_from(size.next_multiple_of(8)).unwrap_or(i64::MAX));
        vec![memory(STACK_POINTER, at.saturating_add(8), size)]
    }

    fn halves(
        &self,
        classes: [Class; 2],
        size: u64,
        mut place: impl FnMut(Class) -> Option<Loc>,
    ) -> Vec<Part> {
        let mut parts = Vec::new();
        for (at, class) in (0u32..).step_by(8).zip(classes) {
            let len = size.saturating_sub(at.into()).min(8) as u32;
            if len > 0 {
                parts.extend(place(class).map(|loc| Part { loc, at, len }));
            }
        }
        parts
    }

    /// What the two halves of a value are in; `None`: in memory.
    fn classes(&self, ty: Option<TypeRef>) -> Option<[Class; 2]> {
        let size = self.info.size(ty)?;
        let mut classes = [Class::None; 2];
        if size > 16 || !self.classify(ty, 0, &mut classes, NESTED_MAX) {
            return None;
        }
        // A half without members is like padding: nothing reads it.
        if size > 8 && classes[1] == Class::None {
            classes[1] = Class::Integer;
        }
        if classes[0] == Class::None {
            classes[0] = Class::Integer;
        }
        Some(classes)
    }

    /// Marks what a value at an offset is in; false: it has to be in memory.
    fn classify(&self, ty: Option<TypeRef>, at: u64, classes: &mut [Class; 2], depth: usize) -> bool {
        let (Some((_, bare)), Some(depth)) = (self.info.bare(ty), depth.checked_sub(1)) else { return false };
        let mut mark = |class: Class, size: u64| {
            let Some(half) = classes.get_mut((at / 8) as usize) else { return false };
            if class == Class::Integer || *half == Class::None {
                *half = class;
            }
            size > 0 && at.is_multiple_of(size)
        };
        match bare {
            DebugType::Bool => mark(Class::Integer, 1),
            DebugType::Int { size: 16, .. } => {
                *classes = [Class::Integer; 2];
                at == 0
            }
            DebugType::Int { size, .. } | DebugType::Enum { size, .. } => mark(Class::Integer, size.into()),
            DebugType::Pointer(_) => mark(Class::Integer, 8),
            DebugType::Float(size) => mark(Class::Vector, size.into()),
            DebugType::Array(of, counts) => {
                let count = counts.iter().product::<u64>();
                let each = self.info.size(of).unwrap_or(0);
                each > 0
                    && count <= 16
                    && (0..count).all(|i| self.classify(of, at + i * each, classes, depth))
            }
            DebugType::Aggregate(aggregate) if aggregate.members.len() <= MEMBERS_MAX => {
                aggregate.members.iter().all(|member| match member.bits {
                    Some((first, _)) => {
                        let byte = at + member.offset + first / 8;
                        classes.get_mut((byte / 8) as usize).is_some_and(|half| {
                            *half = Class::Integer;
                            true
                        })
                    }
                    None => self.classify(member.ty, at + member.offset, classes, depth),
                })
            }
            // long double, vectors and the like.
            DebugType::Other(_) | DebugType::Aggregate(_) | DebugType::Alias(_) => false,
        }
    }
}

fn memory(base: u8, displacement: i64, size: u64) -> Part {
    let address = Address { base: Some(base), index: None, displacement };
    Part { loc: Loc::Memory(address), at: 0, len: u32::try_from(size).unwrap_or(u32::MAX) }
}
