//! What depends on the probed place: its name, its arguments.
//!
//! For:     the lowering.
//! State:   none of its own.
//! Context: control.
//! Keeps:   S1 one program serves all places at which the same loads get its values; names come from a table by the cookie.
//!          S2 bytes that a place does not have are zeros.
//! Checked: tests/sites.rs, on registers and memory of a thread that is made up.

use super::build::{Build, CONTEXT, Done};
use super::code::r;
use super::frame::Place;
use crate::Checked;
use crate::arch::{self, INSTRUCTION, by_dwarf};
use crate::ast::{AttachPoint, Expr, ExprKind, Probe, Provider};
use crate::site::Located;
use crate::types::{Int, StructId, Type};
use crate::visit::Visit;
use bpf::{Alu, Operand, Reg, Size, helper};
use image::dwarf::Part;
use image::{Address, Loc, MarkArgument};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The places that one program serves.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Indices into the attach point's sites.
    pub sites: Vec<usize>,
    /// The cookie of the first; the others follow.
    pub cookie: u64,
    /// Of a mark: its arguments.
    pub marks: Option<Arc<[MarkArgument]>>,
    /// `argN` as Go passes it.
    pub is_go: bool,
    /// `args`: the struct, and where each field is.
    pub args: Option<(StructId, Arc<[Vec<Part>]>)>,
    /// `retval`.
    pub value: Option<Vec<Part>>,
    /// Symbols of `uaddr`: how far behind the probed instruction.
    pub symbols: BTreeMap<String, i64>,
}

/// Sites that need the same loads are together.
pub fn groups(checked: &Checked, number: usize, i: usize, probe: &Probe, point: &AttachPoint) -> Vec<Group> {
    let uses_arguments = uses_arguments(probe);
    let uses_marks = point.provider == Provider::Usdt && uses_arguments;
    let values = checked.located.get(&(number, i));
    let (args, retval) = (values.and_then(|v| v.args.as_ref()), values.and_then(|v| v.retval.as_ref()));
    let of = |located: &Located<Type>, site: usize| located.at.get(site).and_then(|at| at.first().cloned());
    let mut groups: Vec<Group> = Vec::new();
    for (at, site) in point.sites.iter().enumerate() {
        let marks = site.marks.clone().filter(|_| uses_marks);
        let is_go = site.is_go && uses_arguments;
        let args = args.and_then(|l| Some((l.ty, l.at.get(at)?.clone())));
        let value = retval.and_then(|located| of(located, at));
        let symbols: BTreeMap<String, i64> = values
            .iter()
            .flat_map(|v| &v.symbols)
            .filter_map(|(name, symbol)| Some((name.clone(), *symbol.at.get(at)?)))
            .collect();
        let same = |g: &&mut Group| {
            g.marks == marks && g.is_go == is_go && g.args == args && g.value == value && g.symbols == symbols
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.sites.push(at),
            None => groups.push(Group { sites: vec![at], cookie: 0, marks, is_go, args, value, symbols }),
        }
    }
    if groups.is_empty() {
        groups.push(Group::default());
    }
    groups
}

/// Whether `argN` is in it.
fn uses_arguments(probe: &Probe) -> bool {
    struct Find(bool);
    impl Visit for Find {
        fn expr(&mut self, e: &mut Expr) {
            self.0 |= matches!(e.kind, ExprKind::Arg(_));
            self.parts(e);
        }
    }
    let (mut find, mut probe) = (Find(false), probe.clone());
    probe.predicate.iter_mut().for_each(|e| find.expr(e));
    find.block(&mut probe.body);
    find.0
}

impl Build<'_, '_> {
    /// The name of the probed place.
    pub fn probe_name(&mut self, to: Place, len: usize) -> Done {
        let names: Vec<Arc<str>> =
            self.group.sites.iter().map(|site| self.point.sites[*site].name.clone()).collect();
        let cell = |name: &str| {
            let mut bytes = name.as_bytes().to_vec();
            bytes.resize(len, 0);
            bytes
        };
        if names.iter().all(|name| *name == names[0]) {
            let name = names.first().map_or(self.point.text.as_str(), |name| name);
            let from = self.constant(&cell(name));
            self.copy(from, to, len);
            return Ok(());
        }
        let table = self.constant(&names.iter().flat_map(|name| cell(name)).collect::<Vec<u8>>());
        self.code.mov(r(1), CONTEXT);
        self.code.call(helper::ATTACH_COOKIE);
        self.code.alu_imm(Alu::Sub, r(0), self.group.cookie.cast_signed());
        self.code.alu_imm(Alu::Mul, r(0), len as i64);
        self.address(table, r(3));
        self.code.alu(Alu::Add, r(3), Operand::Reg(r(0)));
        self.copy_from_r3(to, len);
        Ok(())
    }

    /// The function that is probed: its address and its process.
    pub fn function(&mut self, to: Place) {
        self.code.mov(r(1), CONTEXT);
        self.code.call(helper::FUNC_IP);
        self.store_r0(to, 8);
        self.code.call(helper::PID_TGID);
        self.code.alu(Alu::Rsh, r(0), Operand::Imm(32));
        self.store_r0(to.plus(8), 8);
    }

    /// r0 = an argument of a mark.
    pub fn mark_argument(&mut self, n: u32, e: &Expr) -> Done {
        if !arch::HAS_PLACES {
            let why = format!("arg{n}: the arguments of marks are not read on {}", arch::NAME);
            return self.refuse(e.span, why);
        }
        if self.point.sites.is_empty() {
            // Places were not looked for: nobody will run this.
            self.code.constant(r(0), 0);
            return Ok(());
        }
        let marks = self.group.marks.clone().unwrap_or_default();
        let Some(argument) = marks.get(n as usize) else {
            let (name, count) = (&self.point.text, marks.len());
            let message = format!("{name} has {count} arguments, and no arg{n}");
            return self.refuse(e.span, message);
        };
        if let Loc::Unknown(why) = &argument.loc {
            return self.refuse(e.span, format!("arg{n} of {}: {why}", self.point.text));
        }
        self.word(&argument.loc, usize::from(argument.size));
        self.narrow(Int::new(argument.size, argument.is_signed));
        Ok(())
    }

    /// A field of `args`: its place, filled.
    pub fn argument_field(&mut self, name: &str, e: &Expr) -> Done<Place> {
        let Some((id, parts)) = self.group.args.clone() else {
            return self.refuse(e.span, "the arguments of this function are not known");
        };
        let fields = &self.up.checked.ctypes.get(id).fields;
        let Some(at) = fields.iter().position(|f| f.name == name) else {
            return self.refuse(e.span, format!("no argument {name}"));
        };
        let size = self.size(&fields[at].ty);
        let to = self.frame.take(size);
        self.put(&parts[at], to, size, &format!("args.{name}"), e)?;
        Ok(to)
    }

    /// `args` as a whole.
    pub fn arguments(&mut self, to: Place, len: usize, e: &Expr) -> Done {
        let Some((id, parts)) = self.group.args.clone() else {
            return self.refuse(e.span, "the arguments of this function are not known");
        };
        self.zero(to, len);
        let fields = self.up.checked.ctypes.get(id).fields.clone();
        for (field, parts) in fields.iter().zip(parts.iter()) {
            let size = self.size(&field.ty);
            self.put(parts, to.plus(field.offset as usize), size, &format!("args.{}", field.name), e)?;
        }
        Ok(())
    }

    /// r0 = the address of a symbol of the traced file.
    pub fn symbol(&mut self, args: &[Expr], e: &Expr) -> Done {
        let name = args.first().and_then(super::call::word).unwrap_or_default();
        match self.group.symbols.get(&name).copied() {
            Some(distance) => {
                self.register(INSTRUCTION);
                self.code.alu_imm(Alu::Add, r(0), distance);
                Ok(())
            }
            None if self.point.sites.is_empty() => {
                self.code.constant(r(0), 0);
                Ok(())
            }
            None => self.refuse(e.span, format!("could not resolve symbol: {name}")),
        }
    }

    /// What the function returns, if more is known than its register.
    pub fn returned(&mut self, to: Place, len: usize, e: &Expr) -> Done {
        let parts = self.group.value.clone().unwrap_or_default();
        self.put(&parts, to, len, "retval", e)
    }

    /// Puts the parts of a value together.
    pub fn put(&mut self, parts: &[Part], to: Place, len: usize, what: &str, e: &Expr) -> Done {
        if !arch::HAS_PLACES {
            let why = format!(
                "{what}: where {} passes a value of this type is not known; argN and retval are",
                arch::NAME
            );
            return self.refuse(e.span, why);
        }
        let covered: usize = parts.iter().map(|part| part.len as usize).sum();
        if covered < len {
            self.zero(to, len);
        }
        for part in parts {
            let at = part.at as usize;
            let count = (part.len as usize).min(len.saturating_sub(at));
            match &part.loc {
                Loc::Unknown(why) => {
                    let text = &self.point.text;
                    return self.refuse(e.span, format!("{what} of {text}: {why}"));
                }
                Loc::Memory(address) => {
                    self.place_in_memory(*address);
                    self.read_user(to.plus(at), count);
                }
                loc => {
                    self.word(loc, count);
                    if matches!(count, 1 | 2 | 4 | 8) {
                        self.store_r0(to.plus(at), count as u8);
                    } else {
                        let whole = self.keep();
                        self.copy(whole, to.plus(at), count);
                    }
                }
            }
        }
        Ok(())
    }

    /// r0 = so many bytes of a place, zeros above where they are in memory.
    fn word(&mut self, loc: &Loc, len: usize) {
        match loc {
            Loc::Constant(n) => self.code.constant(r(0), n.cast_signed()),
            Loc::Register { number, shift } => {
                self.code.load(Size::Dw, false, r(0), CONTEXT, by_dwarf(*number));
                if *shift > 0 {
                    self.code.alu(Alu::Rsh, r(0), Operand::Imm((*shift).into()));
                }
            }
            Loc::Vector { number, byte } => {
                self.code.constant(r(1), (*number).into());
                self.code.constant(r(2), (*byte).into());
                self.code.call(helper::VECTOR);
            }
            Loc::Memory(address) => {
                self.place_in_memory(*address);
                let to = self.frame.take(8);
                if len < 8 {
                    let kept = self.keep();
                    self.zero(to, 8);
                    self.kept(kept, r(0));
                }
                self.read_user(to, len.min(8));
                self.load(to, Int::new(8, false), r(0));
            }
            Loc::Image(_) | Loc::Unknown(_) => self.code.constant(r(0), 0),
        }
    }

    /// r0 = an address as the probed instruction would have it.
    fn place_in_memory(&mut self, address: Address) {
        let load = |build: &mut Self, dst: Reg, number: u8| {
            build.code.load(Size::Dw, false, dst, CONTEXT, by_dwarf(number));
        };
        match address.base {
            Some(base) => load(self, r(0), base),
            None => self.code.constant(r(0), 0),
        }
        if let Some((index, scale)) = address.index {
            load(self, r(1), index);
            self.code.alu(Alu::Mul, r(1), Operand::Imm(scale.into()));
            self.code.alu(Alu::Add, r(0), Operand::Reg(r(1)));
        }
        if address.displacement != 0 {
            self.code.alu_imm(Alu::Add, r(0), address.displacement);
        }
    }
}
