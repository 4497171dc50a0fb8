//! What a value is.
//!
//! For:     the checker, which finds them; lowering and output, which go by them.
//! State:   none. Structs and enums are kept in [`CTypes`] and named by number.
//! Context: control.
//! Keeps:   1. Sizes are those of values in a map: integers of their width, strings and buffers of their capacity.
//!          2. Integers of tuples and records are aligned to their size, as in C.
//! Checked: tests/language.rs.

pub use map::{Agg, SeriesKind};
use std::sync::Arc;

/// Which struct or union of [`CTypes`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StructId(pub u32);

/// Which enum of [`CTypes`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EnumId(pub u32);

/// The type of a value.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Type {
    /// Not known, or nothing: a statement-like call, an empty block.
    #[default]
    None,
    /// C's `void`, behind pointers.
    Void,
    /// `bool`: one byte.
    Bool,
    /// An integer.
    Int(Int),
    /// C's `float` (4) and `double` (8), in structs and arguments.
    Float(u8),
    /// A string of at most so many bytes, its NUL included.
    Str(u32),
    /// Bytes of which at most so many; the length is with the value.
    Buffer(u32),
    /// A pointer into the target, or to a variable (`&`).
    Pointer(Arc<Type>),
    /// So many of one type.
    Array(Arc<Type>, u32),
    /// A C struct or union by value.
    Struct(StructId),
    /// A C enum.
    Enum(EnumId),
    /// `(a, b)`
    Tuple(Arc<[Type]>),
    /// `(a=1, b=2)`
    Record(Arc<[(String, Type)]>),
    /// An IP address: `ntop`.
    Inet,
    /// `macaddr`
    MacAddr,
    /// An address of the target, named when printed.
    Usym,
    /// An address of the kernel.
    Ksym,
    /// A user stack.
    Ustack(StackKind),
    /// A kernel stack.
    Kstack(StackKind),
    /// `strftime`: a time that is formatted when printed. The format is the call's first argument.
    Timestamp,
    /// `username`: a user id that is named when printed.
    Username,
    /// `pcomm` and its like at hits: a process, which is named when printed.
    Comm,
    /// `cgroup_path`
    CgroupPath,
    /// A map's value: `count()` and its like.
    Agg(Agg),
}

/// An integer's type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Int {
    /// Bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// With a sign.
    pub signed: bool,
    /// While types are inferred: of a positive literal, which takes its sign from what it meets.
    pub(crate) flexible: bool,
}

#[allow(missing_docs)]
impl Int {
    pub const I8: Int = Int::new(1, true);
    pub const I16: Int = Int::new(2, true);
    pub const I32: Int = Int::new(4, true);
    pub const I64: Int = Int::new(8, true);
    pub const U8: Int = Int::new(1, false);
    pub const U16: Int = Int::new(2, false);
    pub const U32: Int = Int::new(4, false);
    pub const U64: Int = Int::new(8, false);

    /// Of so many bytes, with or without a sign.
    pub const fn new(size: u8, signed: bool) -> Int {
        Int { size, signed, flexible: false }
    }
}

/// How a stack is taken and printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StackKind {
    /// How a frame is printed.
    pub mode: StackMode,
    /// At most so many frames.
    pub limit: u32,
    /// `dw_ustack`.
    pub dwarf: bool,
}

/// How a frame is printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum StackMode {
    /// `name+offset`
    #[default]
    Bpftrace,
    /// address, `name+offset (file)`
    Perf,
    /// address
    Raw,
    /// build id and offset in the file
    BuildId,
}

/// A struct's or union's field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name. Fields of anonymous members are listed as the struct's own.
    pub name: String,
    /// Its type; of a bit field the declared one.
    pub ty: Type,
    /// Bytes from the struct's start; of a bit field: of the byte in which it begins.
    pub offset: u32,
    /// Of a bit field: the first bit in that byte, and how many bits.
    pub bits: Option<(u8, u8)>,
}

/// A struct or union.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Struct {
    /// With its tag: `struct Foo`, `union N`; empty if anonymous.
    pub name: String,
    /// A union.
    pub union: bool,
    /// Bytes; 0 and no fields if only declared.
    pub size: u32,
    /// Bytes.
    pub align: u32,
    /// In order.
    pub fields: Vec<Field>,
    /// Whether it was defined, not only named.
    pub defined: bool,
}

/// An enum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Enum {
    /// With its tag: `enum Foo`; `enum ` and nothing if anonymous.
    pub name: String,
    /// Its integer type.
    pub int: Int,
    /// Names and values, in order.
    pub variants: Vec<(String, i64)>,
}

/// The structs, unions and enums of a program.
#[derive(Clone, Debug, Default)]
pub struct CTypes {
    /// By [`StructId`].
    pub structs: Vec<Struct>,
    /// By [`EnumId`].
    pub enums: Vec<Enum>,
}

impl CTypes {
    /// A struct; its fields are empty if there is none of that number.
    pub fn get(&self, id: StructId) -> &Struct {
        static NONE: Struct = Struct {
            name: String::new(),
            union: false,
            size: 0,
            align: 1,
            fields: Vec::new(),
            defined: false,
        };
        self.structs.get(id.0 as usize).unwrap_or(&NONE)
    }

    /// An enum, if there is one of that number.
    pub fn enumeration(&self, id: EnumId) -> Option<&Enum> {
        self.enums.get(id.0 as usize)
    }

    /// Adds a struct.
    pub fn add(&mut self, new: Struct) -> StructId {
        self.structs.push(new);
        StructId((self.structs.len() - 1) as u32)
    }

    /// Adds an enum.
    pub fn add_enum(&mut self, new: Enum) -> EnumId {
        self.enums.push(new);
        EnumId((self.enums.len() - 1) as u32)
    }

    /// Bytes of a value in a map, a tuple or the target's memory.
    pub fn size(&self, ty: &Type) -> u32 {
        match ty {
            Type::None | Type::Void => 0,
            Type::Bool => 1,
            Type::Int(i) => u32::from(i.size),
            Type::Float(n) => u32::from(*n),
            Type::Str(n) => *n,
            Type::Buffer(n) => 4 + n,
            Type::Array(of, n) => self.size(of).saturating_mul(*n),
            Type::Struct(id) => self.get(*id).size,
            Type::Enum(id) => self.enumeration(*id).map_or(4, |e| u32::from(e.int.size)),
            Type::Tuple(of) => self.layout(of.iter()).1,
            Type::Record(of) => self.layout(of.iter().map(|(_, t)| t)).1,
            Type::Inet => 20,
            Type::MacAddr => 6,
            Type::Usym => 16,
            Type::Ustack(_) | Type::Kstack(_) => 24,
            Type::CgroupPath | Type::Timestamp => 16,
            Type::Pointer(_) | Type::Ksym | Type::Username | Type::Comm => 8,
            Type::Agg(Agg::Count | Agg::Sum { .. }) => 8,
            Type::Agg(_) => 16,
        }
    }

    /// To what a value is aligned.
    pub fn align(&self, ty: &Type) -> u32 {
        match ty {
            Type::Int(i) => u32::from(i.size),
            Type::Float(n) => u32::from(*n),
            Type::Array(of, _) => self.align(of),
            Type::Struct(id) => self.get(*id).align.max(1),
            Type::Tuple(of) => of.iter().map(|t| self.align(t)).max().unwrap_or(1),
            Type::Record(of) => of.iter().map(|(_, t)| self.align(t)).max().unwrap_or(1),
            Type::Enum(_) | Type::Buffer(_) | Type::Inet => 4,
            Type::None | Type::Void | Type::Bool | Type::Str(_) | Type::MacAddr => 1,
            _ => 8,
        }
    }

    /// Offsets of a tuple's parts, and its size.
    pub fn layout<'a>(&self, parts: impl Iterator<Item = &'a Type>) -> (Vec<u32>, u32) {
        let (mut offsets, mut at, mut most) = (Vec::new(), 0u32, 1);
        for part in parts {
            let align = self.align(part).max(1);
            most = most.max(align);
            at = at.next_multiple_of(align);
            offsets.push(at);
            at = at.saturating_add(self.size(part)).min(1 << 30);
        }
        (offsets, at.next_multiple_of(most))
    }
}
