//! Functions: what they take and return, and where that lies.
//!
//! For:     `args`, `retval`.
//! State:   none.
//! Context: control.
//! Keeps:   P1 at a function's first instruction a list of locations is believed where it has that instruction; a single location
//!             holds only behind the prologue, so that the calling convention decides.
//!          P2 what was optimized away is said, not guessed.
//! Checked: dwarf/tests.rs, with values that gcc's programs print themselves.

mod abi;
mod frame;

use super::types::children;
use super::{DEPTH_MAX, DebugInfo, Dwarf, Entry, TypeRef, Unit, flag, text};
use crate::loc::{Address, Loc};
use crate::{ElfImage, ImageAddr};
use abi::Convention;
use frame::Frame;
use gimli::{AttributeValue, Operation, constants as c};
use std::collections::HashMap;

/// Pieces of one value.
const PIECES_MAX: usize = 64;

/// What a function takes and returns, at one place of its code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionInfo {
    /// Its name.
    pub name: Option<String>,
    /// What it returns; `None`: nothing.
    pub returns: Option<TypeRef>,
    /// Where that is when it returns.
    pub value: Vec<Part>,
    /// What it takes.
    pub parameters: Vec<Parameter>,
    /// The function is not called by others under its name: the compiler may have changed how it is called.
    pub is_local: bool,
}

/// A parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Its name; empty if it has none.
    pub name: String,
    /// What it is.
    pub ty: Option<TypeRef>,
    /// Where its bytes are.
    pub parts: Vec<Part>,
}

/// Some bytes of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where.
    pub loc: Loc,
    /// The first byte of the value that is there.
    pub at: u32,
    /// How many.
    pub len: u32,
}

impl DebugInfo {
    /// The function that begins at an address.
    pub fn function(&self, image: &ElfImage, start: ImageAddr) -> Option<FunctionInfo> {
        self.function_at(image, start, start)
    }

    /// The function that begins at `start`, as it is before the instruction at `pc`.
    pub fn function_at(&self, image: &ElfImage, start: ImageAddr, pc: ImageAddr) -> Option<FunctionInfo> {
        let at = *self.index().functions.get(&start.0)?;
        let frame = Frame { image, pc, is_entry: start == pc };
        self.with_entry(at, |dwarf, unit, entry| Some(self.read(at, dwarf, unit, entry, &frame)))
    }

    /// Where functions begin whose names fit, ascending.
    pub fn functions_named(&self, fits: &dyn Fn(&str) -> bool) -> Vec<(ImageAddr, String)> {
        let named = self.index().named.iter().filter(|(name, _)| fits(name));
        let entries: HashMap<TypeRef, &String> =
            named.flat_map(|(name, entries)| entries.iter().map(move |entry| (*entry, name))).collect();
        let known = self.index().functions.iter();
        known.filter_map(|(addr, at)| Some((ImageAddr(*addr), (*entries.get(at)?).clone()))).collect()
    }

    /// Where copies of a function were inlined: their first instructions.
    pub fn inlined(&self, name: &str) -> Vec<ImageAddr> {
        let index = self.index();
        let entries = index.named.get(name).into_iter().flatten();
        let mut found: Vec<ImageAddr> =
            entries.filter_map(|at| index.inlined.get(at)).flatten().copied().collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    fn read<'a>(
        &'a self,
        at: TypeRef,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
        frame: &Frame<'_>,
    ) -> FunctionInfo {
        let base = entry.attr_value(c::DW_AT_frame_base);
        let mut parameters = Vec::new();
        let mut given = Vec::new();
        children(unit, at, |child| {
            if child.tag() == c::DW_TAG_formal_parameter {
                let here = TypeRef { entry: child.offset().0, ..at };
                let ty = self.of_origin(here, child, c::DW_AT_type);
                let name = self.name_of_origin(here, dwarf, unit, child).unwrap_or_default();
                given.push(self.located(dwarf, unit, child, base, frame));
                parameters.push(Parameter { name, ty, parts: Vec::new() });
            }
        });
        let returns = self.of_origin(at, entry, c::DW_AT_type);
        let mut convention = Convention::new(self, returns);
        let value = convention.value(returns);
        for (parameter, given) in parameters.iter_mut().zip(given) {
            let by_rule = convention.next(parameter.ty);
            parameter.parts = match given {
                Some(parts) => sized(parts, self.size(parameter.ty).unwrap_or(8)),
                None if frame.is_entry => by_rule,
                None => unknown("it is optimized away here"),
            };
        }
        FunctionInfo {
            name: self.name_of_origin(at, dwarf, unit, entry),
            returns,
            value,
            parameters,
            is_local: !flag(entry, c::DW_AT_external),
        }
    }

    /// A reference of an entry, or of the one that it is a copy of.
    fn of_origin<'a>(&'a self, at: TypeRef, entry: &Entry<'a>, name: gimli::DwAt) -> Option<TypeRef> {
        if let Some(value) = entry.attr_value(name) {
            return self.reference(at, &value);
        }
        self.through_origins(at, entry, |_, _, at, entry| {
            entry.attr_value(name).and_then(|value| self.reference(at, &value))
        })
    }

    fn name_of_origin<'a>(
        &'a self,
        at: TypeRef,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
    ) -> Option<String> {
        text(dwarf, unit, entry, c::DW_AT_name).or_else(|| {
            self.through_origins(at, entry, |dwarf, unit, _, entry| text(dwarf, unit, entry, c::DW_AT_name))
        })
    }

    fn through_origins<'a, T>(
        &'a self,
        at: TypeRef,
        entry: &Entry<'a>,
        ask: impl Fn(&Dwarf<'a>, &Unit<'a>, TypeRef, &Entry<'a>) -> Option<T>,
    ) -> Option<T> {
        let origin = |at: TypeRef, entry: &Entry<'a>| {
            let value = entry.attr_value(c::DW_AT_abstract_origin);
            let value = value.or_else(|| entry.attr_value(c::DW_AT_specification))?;
            self.reference(at, &value)
        };
        let mut next = origin(at, entry)?;
        for _ in 0..DEPTH_MAX {
            let (found, further) = self.with_entry(next, |dwarf, unit, entry| {
                Some((ask(dwarf, unit, next, entry), origin(next, entry)))
            })?;
            if found.is_some() {
                return found;
            }
            next = further?;
        }
        None
    }

    /// What the entry says of its place; `None`: it says nothing that holds here.
    fn located<'a>(
        &self,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
        base: Option<AttributeValue<super::Slice<'a>>>,
        frame: &Frame<'_>,
    ) -> Option<Vec<Part>> {
        let value = entry.attr_value(c::DW_AT_location)?;
        if let AttributeValue::Exprloc(expression) = value {
            // True of the whole body: at the first instruction it is not there yet.
            return (!frame.is_entry).then(|| frame.evaluate(dwarf, unit, expression, base));
        }
        let mut list = dwarf.attr_locations(unit, value).ok()??;
        while let Ok(Some(entry)) = list.next() {
            if (entry.range.begin..entry.range.end).contains(&frame.pc.0) {
                return Some(frame.evaluate(dwarf, unit, entry.data, base));
            }
        }
        None
    }
}

fn unknown(why: &str) -> Vec<Part> {
    vec![Part { loc: Loc::Unknown(why.into()), at: 0, len: 0 }]
}

/// A single part is as long as the value.
fn sized(mut parts: Vec<Part>, size: u64) -> Vec<Part> {
    if let [part] = parts.as_mut_slice()
        && part.len == 0
    {
        part.len = u32::try_from(size).unwrap_or(u32::MAX);
    }
    parts
}

/// A value on the stack of an expression: a number, or a register and what is added.
#[derive(Clone, Copy)]
enum Value {
    Constant(u64),
    Sum { register: u8, plus: i64 },
    Image(u64),
}

impl Frame<'_> {
    fn evaluate<'a>(
        &self,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        expression: gimli::Expression<super::Slice<'a>>,
        base: Option<AttributeValue<super::Slice<'a>>>,
    ) -> Vec<Part> {
        self.parts(dwarf, unit, expression, base).unwrap_or_else(|| {
            unknown("its debug information has it at a place that takes more than a load to read")
        })
    }

    fn parts<'a>(
        &self,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        expression: gimli::Expression<super::Slice<'a>>,
        base: Option<AttributeValue<super::Slice<'a>>>,
    ) -> Option<Vec<Part>> {
        let (mut parts, mut at) = (Vec::new(), 0u32);
        let (mut stack, mut done): (Vec<Value>, Option<Loc>) = (Vec::new(), None);
        let mut operations = expression.operations(unit.encoding());
        while let Some(operation) = operations.next().ok()? {
            match operation {
                Operation::Register { register } => done = Some(in_register(register.0)?),
                Operation::RegisterOffset { register, offset, .. } => {
                    stack.push(Value::Sum { register: general(register.0)?, plus: offset });
                }
                Operation::FrameOffset { offset } => {
                    let (register, plus) = self.base(unit, base.as_ref()?)?;
                    stack.push(Value::Sum { register, plus: plus.wrapping_add(offset) });
                }
                Operation::CallFrameCFA => {
                    let (register, plus) = self.cfa()?;
                    stack.push(Value::Sum { register, plus });
                }
                Operation::UnsignedConstant { value } => stack.push(Value::Constant(value)),
                Operation::SignedConstant { value } => stack.push(Value::Constant(value.cast_unsigned())),
                Operation::Address { address } => stack.push(Value::Image(address)),
                Operation::AddressIndex { index } => {
                    stack.push(Value::Image(dwarf.address(unit, index).ok()?));
                }
                Operation::PlusConstant { value } => match stack.last_mut()? {
                    Value::Constant(n) | Value::Image(n) => *n = n.wrapping_add(value),
                    Value::Sum { plus, .. } => *plus = plus.wrapping_add_unsigned(value),
                },
                // At the first instruction registers are as at the entry.
                Operation::EntryValue { expression } if self.is_entry => {
                    let inner = gimli::Expression(expression);
                    match inner.operations(unit.encoding()).next().ok()?? {
                        Operation::Register { register } => {
                            stack.push(Value::Sum { register: general(register.0)?, plus: 0 });
                        }
                        _ => return None,
                    }
                }
                Operation::StackValue => {
                    done = Some(match stack.pop()? {
                        Value::Constant(n) => Loc::Constant(n),
                        Value::Sum { register, plus: 0 } => Loc::Register { number: register, shift: 0 },
                        _ => return None,
                    });
                }
                Operation::ImplicitValue { data } => {
                    let mut word = [0; 8];
                    let bytes = data.slice();
                    word.get_mut(..bytes.len())?.copy_from_slice(bytes);
                    done = Some(Loc::Constant(u64::from_le_bytes(word)));
                }
                Operation::Piece { size_in_bits, bit_offset: None | Some(0) } if size_in_bits % 8 == 0 => {
                    let len = u32::try_from(size_in_bits / 8).ok()?;
                    let loc = done.take().or_else(|| stack.pop().map(in_memory));
                    let loc =
                        loc.unwrap_or_else(|| Loc::Unknown("a part of it is optimized away here".into()));
                    parts.push(Part { loc, at, len });
                    at = at.checked_add(len)?;
                    if parts.len() > PIECES_MAX {
                        return None;
                    }
                }
                Operation::Nop => {}
                _ => return None,
            }
        }
        if parts.is_empty() {
            let loc = done.or_else(|| stack.pop().map(in_memory));
            let loc = loc.unwrap_or_else(|| Loc::Unknown("it is optimized away here".into()));
            parts.push(Part { loc, at: 0, len: 0 });
        }
        Some(parts)
    }
}

fn in_memory(value: Value) -> Loc {
    match value {
        Value::Image(addr) => Loc::Image(ImageAddr(addr)),
        Value::Constant(n) => Loc::Memory(Address { displacement: n.cast_signed(), ..Address::default() }),
        Value::Sum { register, plus } => {
            Loc::Memory(Address { base: Some(register), index: None, displacement: plus })
        }
    }
}

fn general(number: u16) -> Option<u8> {
    u8::try_from(number).ok().filter(|n| *n < 16)
}

fn in_register(number: u16) -> Option<Loc> {
    match u8::try_from(number).ok()? {
        n @ 0..=15 => Some(Loc::Register { number: n, shift: 0 }),
        n @ 17..=32 => Some(Loc::Vector { number: n - 17, byte: 0 }),
        _ => None,
    }
}
