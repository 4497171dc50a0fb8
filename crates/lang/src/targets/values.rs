//! Types and places of values, from debug information to the language's types.
//!
//! For:     `args`, `retval`, casts, `uaddr`.
//! State:   which types were taken over already.
//! Context: control.
//! Keeps:   V1 a type that leads back to itself is taken over once. V2 at most [`TYPES_MAX`] types are taken over.
//! Checked: tests/sites.rs.

use super::Targets;
use crate::ast::{AttachPoint, Location, Spec};
use crate::site::{Located, Symbol, from_here};
use crate::types::{CTypes, Enum, Field, Int, Struct, StructId, Type};
use image::ImageAddr;
use image::dwarf::{DebugInfo, DebugType, FunctionInfo, Member, Part, TypeRef};
use std::sync::Arc;

const TYPES_MAX: usize = 200_000;

impl Targets {
    /// The arguments of a function as a struct.
    pub(super) fn arguments(
        &mut self,
        point: &AttachPoint,
        types: &mut CTypes,
    ) -> Result<Located<StructId>, String> {
        let none = || format!("no debug information with the arguments of {}", point.text);
        let mut found: Option<(StructId, FunctionInfo)> = None;
        let mut at = Vec::new();
        for site in point.sites.iter() {
            let (file, info, pc) = self.function(point, site.place).ok_or_else(none)?;
            let id = self.struct_of(file, &info, types);
            match &found {
                None => found = Some((id, info.clone())),
                Some((first, _)) => {
                    let (a, b) = (types.get(*first), types.get(id));
                    if a.fields != b.fields {
                        return Err(format!("the functions of {} take different arguments", point.text));
                    }
                }
            }
            at.push(info.parameters.into_iter().map(|p| located(p.parts, pc)).collect());
        }
        let (ty, _) = found.ok_or_else(none)?;
        Ok(Located { ty, at })
    }

    fn struct_of(&mut self, file: usize, info: &FunctionInfo, types: &mut CTypes) -> StructId {
        let mut made: Vec<Type> = Vec::new();
        for parameter in &info.parameters {
            made.push(self.lang_type(file, parameter.ty, types));
        }
        let (offsets, size) = types.layout(made.iter());
        let field = |((ty, p), offset): ((Type, &image::dwarf::Parameter), u32)| Field {
            name: p.name.clone(),
            ty,
            offset,
            bits: None,
        };
        let fields = made.into_iter().zip(&info.parameters).zip(offsets).map(field).collect();
        types.add(Struct { name: "struct args".into(), union: false, size, align: 8, fields, defined: true })
    }

    /// What a function returns.
    pub(super) fn value(&mut self, point: &AttachPoint, types: &mut CTypes) -> Option<Located<Type>> {
        let mut found: Option<Type> = None;
        let mut at: Vec<Arc<[Vec<Part>]>> = Vec::new();
        for site in point.sites.iter() {
            let (file, info, pc) = self.function(point, site.place)?;
            let ty = self.lang_type(file, info.returns, types);
            if matches!(ty, Type::Void | Type::None) || found.as_ref().is_some_and(|known| *known != ty) {
                return None;
            }
            found = Some(ty);
            at.push([located(info.value, pc)].into());
        }
        Some(Located { ty: found?, at })
    }

    /// The function of a place: its file, what is known at the probed instruction, and that.
    pub(super) fn function(
        &self,
        point: &AttachPoint,
        place: u32,
    ) -> Option<(usize, FunctionInfo, ImageAddr)> {
        let place = self.places.get(place as usize)?;
        let file = &self.files[place.file];
        let debug = file.debug(&self.debug_dirs)?;
        let start = match &point.spec {
            Spec::Uprobe { at: Location::Function { offset, .. }, .. } => ImageAddr(place.addr.0 - offset),
            _ => file.image.function_at(place.addr).map_or(place.addr, |f| f.addr),
        };
        let info = debug.function_at(&file.image, start, place.addr)?;
        Some((place.file, info, place.addr))
    }

    /// A type of the traced files by its written name.
    pub(super) fn type_named(
        &mut self,
        points: &[AttachPoint],
        name: &str,
        types: &mut CTypes,
    ) -> Option<Type> {
        let mut files: Vec<usize> = Vec::new();
        for site in points.iter().flat_map(|point| point.sites.iter()) {
            let file = self.places.get(site.place as usize)?.file;
            if !files.contains(&file) {
                files.push(file);
            }
        }
        files.into_iter().find_map(|file| {
            let at = self.files[file].debug(&self.debug_dirs)?.type_named(name)?;
            Some(self.lang_type(file, Some(at), types))
        })
    }

    /// A variable, counted from each site.
    pub(super) fn variable(&self, point: &AttachPoint, name: &str) -> Option<Symbol> {
        let (mut size, mut at) = (0, Vec::new());
        let mut known: Option<(usize, ImageAddr)> = None;
        for site in point.sites.iter() {
            let place = self.places.get(site.place as usize)?;
            let addr = match known {
                Some((file, addr)) if file == place.file => addr,
                _ => {
                    let image = &self.files[place.file].image;
                    let variable = image.variables().into_iter().find(|v| v.name == name);
                    let function =
                        || image.functions().iter().find(|f| f.names.iter().any(|n| &*n.text == name));
                    let (addr, bytes) = match variable {
                        Some(variable) => (variable.addr, variable.size_bytes),
                        None => function().map(|f| (f.addr, f.size_bytes))?,
                    };
                    size = bytes;
                    addr
                }
            };
            known = Some((place.file, addr));
            at.push(addr.0.wrapping_sub(place.addr.0).cast_signed());
        }
        Some(Symbol { size, at })
    }

    /// A type of a file's debug information as the language has it.
    fn lang_type(&mut self, file: usize, at: Option<TypeRef>, types: &mut CTypes) -> Type {
        let files = std::mem::take(&mut self.files);
        let found = match files[file].debug(&self.debug_dirs) {
            Some(debug) => Taking { debug, file, known: &mut self.known, types }.ty(at),
            None => Type::Void,
        };
        self.files = files;
        found
    }
}

fn located(parts: Vec<Part>, pc: ImageAddr) -> Vec<Part> {
    parts.into_iter().map(|part| Part { loc: from_here(part.loc, pc), ..part }).collect()
}

/// Types on their way from one file's debug information.
struct Taking<'a> {
    debug: &'a DebugInfo,
    file: usize,
    known: &'a mut std::collections::HashMap<(usize, TypeRef), Type>,
    types: &'a mut CTypes,
}

impl Taking<'_> {
    fn ty(&mut self, at: Option<TypeRef>) -> Type {
        let Some((at, ty)) = self.debug.bare(at) else { return Type::Void };
        if let Some(known) = self.known.get(&(self.file, at)) {
            return known.clone();
        }
        if self.known.len() > TYPES_MAX {
            return Type::Void;
        }
        let made = match ty {
            DebugType::Bool => Type::Bool,
            DebugType::Int { size: 16, .. } => bytes(16),
            DebugType::Int { size, is_signed, .. } => Type::Int(Int::new(size, is_signed)),
            DebugType::Float(size) => Type::Float(size),
            DebugType::Pointer(to) => {
                let to = match self.ty(to) {
                    Type::None => Type::Void,
                    to => to,
                };
                Type::Pointer(Arc::new(to))
            }
            DebugType::Array(of, counts) => self.array(of, &counts),
            DebugType::Aggregate(aggregate) => {
                let word = if aggregate.is_union { "union" } else { "struct" };
                let id = self.types.add(Struct {
                    name: if aggregate.name.is_empty() {
                        String::new()
                    } else {
                        format!("{word} {}", aggregate.name)
                    },
                    union: aggregate.is_union,
                    size: u32::try_from(aggregate.size).unwrap_or(0),
                    align: 1,
                    fields: Vec::new(),
                    defined: !aggregate.is_declaration,
                });
                // Known before its members, which may lead back to it.
                self.known.insert((self.file, at), Type::Struct(id));
                let fields = aggregate.members.iter().flat_map(|member| self.field(member)).collect();
                let align = self.alignment(&aggregate.members, aggregate.size);
                let made = &mut self.types.structs[id.0 as usize];
                (made.fields, made.align) = (fields, align);
                Type::Struct(id)
            }
            DebugType::Enum { name, size, is_signed, variants } => {
                let name = format!("enum {name}");
                Type::Enum(self.types.add_enum(Enum { name, int: Int::new(size, is_signed), variants }))
            }
            DebugType::Alias(_) | DebugType::Other(0) => Type::Void,
            DebugType::Other(size) => bytes(size),
            _ => Type::Void,
        };
        self.known.insert((self.file, at), made.clone());
        made
    }

    /// `char[N]` is a string.
    fn array(&mut self, of: Option<TypeRef>, counts: &[u64]) -> Type {
        let is_char = matches!(self.debug.bare(of), Some((_, DebugType::Int { size: 1, is_char: true, .. })));
        let mut ty = self.ty(of);
        for (i, count) in counts.iter().rev().enumerate() {
            let count = u32::try_from(*count).unwrap_or(0).min(1 << 20);
            ty = match ty {
                Type::Int(_) if is_char && i == 0 && count > 0 => Type::Str(count),
                ty => Type::Array(Arc::new(ty), count),
            };
        }
        ty
    }

    /// A member, or what is in one without a name.
    fn field(&mut self, member: &Member) -> Vec<Field> {
        let ty = self.ty(member.ty);
        let offset = u32::try_from(member.offset).unwrap_or(0);
        match (&member.name, &ty) {
            (Some(name), _) => {
                let bits = member.bits.map(|(first, count)| (first as u8, count.min(64) as u8));
                vec![Field { name: name.clone(), ty, offset, bits }]
            }
            (None, Type::Struct(id)) => {
                let inner = self.types.get(*id).fields.clone();
                inner.into_iter().map(|f| Field { offset: f.offset + offset, ..f }).collect()
            }
            _ => Vec::new(),
        }
    }

    /// To what a struct is aligned: no debug information says it. What its members need and its size allows.
    fn alignment(&mut self, members: &[Member], size: u64) -> u32 {
        let needs = members.iter().map(|m| {
            let ty = self.ty(m.ty);
            self.types.align(&ty)
        });
        let most = needs.max().unwrap_or(1).max(1);
        if size.is_multiple_of(most.into()) { most } else { 1 }
    }
}

fn bytes(size: u64) -> Type {
    Type::Array(Arc::new(Type::Int(Int::U8)), u32::try_from(size).unwrap_or(0).min(1 << 20))
}
