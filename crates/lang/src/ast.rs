//! The tree of a program, as it was written and, after checking, as it is lowered.
//!
//! For:     the parser, which makes it; the checker, which rewrites it; `--fmt` and the lowering, which read it.
//! State:   none. An expression's type is found by its [`ExprId`] in [`crate::Checked`].
//! Context: control.
//! Keeps:   1. After checking there is none of the forms marked *written*.
//!          2. Each expression of a checked tree has an id of its own, also in a macro that is used twice.
//! Checked: the tests of visit.rs, over every script of our tests.

use crate::builtin::Builtin;
pub use crate::probes::{AttachPoint, Location, Provider, Spec, WatchAt};
pub use crate::source::Span;

/// Which expression: an index into [`crate::Checked::types`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ExprId(pub u32);

/// Which scratch variable: an index into [`crate::Checked::vars`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct VarId(pub u32);

impl VarId {
    /// Before scopes are resolved.
    pub const NONE: VarId = VarId(u32::MAX);
}

/// Which map: an index into [`crate::Checked::maps`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct MapId(pub u32);

impl MapId {
    /// Before maps are resolved.
    pub const NONE: MapId = MapId(u32::MAX);
}

/// An expression.
#[derive(Clone, Debug)]
pub struct Expr {
    /// Its number.
    pub id: ExprId,
    /// Where it was written. In an expanded macro: in the macro's body.
    pub span: Span,
    /// What it is.
    pub kind: ExprKind,
}

/// The forms of expressions.
#[derive(Clone, Debug)]
pub enum ExprKind {
    /// An integer, or an enumerator (its type is then the enum). From `i64::MIN` to `u64::MAX`.
    Int(i128),
    /// `true`, `false`.
    Bool(bool),
    /// A string literal, its escapes undone, without the NUL at its end.
    Str(Vec<u8>),
    /// *Written*: a bare name: builtin, macro, macro parameter, enumerator, `#define`. In a checked tree: one of the words
    /// that some functions take (`ustack(perf)`, `nsecs(boot)`, `pid(init)`), or the field of `container_of`.
    Ident(String),
    /// *Written*: `$1`.
    Positional(u32),
    /// *Written*: `$#`.
    PositionalCount,
    /// `$x`.
    Var(VarRef),
    /// `@x` as a whole: a scalar's value, or the map that a function takes.
    Map(MapRef),
    /// `@x[key]`; several keys are one tuple.
    MapAt(MapRef, Box<Expr>),
    /// `arg0`, `arg1` ...
    Arg(u32),
    /// *Written*: a call of a function or a macro by name. `bang`: `name!(...)`.
    Call(Call),
    /// A call of a function of the language; also `pid` without parentheses.
    Builtin(Builtin, Vec<Expr>),
    /// `-a`, `!a`, `~a`, `*a`, `&a`.
    Unary(UnOp, Box<Expr>),
    /// `a++`, `--a` ... The target is a `Var`, `Map` or `MapAt`.
    Step(Step, Box<Expr>),
    /// `a + b`, `a && b` ...
    Binary(BinOp, Box<Expr>, Box<Expr>),
    /// `c ? a : b`; the middle is `None` in `c ?: b`.
    Ternary(Box<Expr>, Option<Box<Expr>>, Box<Expr>),
    /// `if (c) { } else { }`, as a statement or a value. An `else if` is a block with only an `If`.
    If(Box<If>),
    /// `{ ...; value }`.
    Block(Block),
    /// `a.name`, `a->name` (`arrow`), `a.0`. A pointer on the left is followed.
    Field(Box<Expr>, FieldName),
    /// `a[b]`, on arrays, strings, buffers, pointers and tuples.
    Index(Box<Expr>, Box<Expr>),
    /// `(type)a`. In a checked tree the type is that of the expression.
    Cast(TypeExpr, Box<Expr>),
    /// `(a, b)`, `(a,)`, `()`.
    Tuple(Vec<Expr>),
    /// `(a=1, b=2)`.
    Record(Vec<(Name, Expr)>),
    /// *Written*: `(a)`.
    Paren(Box<Expr>),
    /// *Written*: `sizeof(...)`.
    Sizeof(Box<TypeArg>),
    /// *Written*: `offsetof(type, a.b)`.
    Offsetof(Box<TypeArg>, Vec<Name>),
    /// *Written*: `typeof(...)` as a macro's argument.
    Typeof(Box<TypeArg>),
    /// *Written*: `typeinfo(...)`.
    Typeinfo(Box<TypeArg>),
    /// *Written*: `comptime a`.
    Comptime(Box<Expr>),
}

/// A use of a scratch variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VarRef {
    /// Without `$`.
    pub name: String,
    /// Which one, after checking.
    pub id: VarId,
}

/// A use of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapRef {
    /// Without `@`; empty for `@`.
    pub name: String,
    /// Which one, after checking.
    pub id: MapId,
}

/// A name and where it stands.
#[derive(Clone, Debug)]
pub struct Name {
    /// The name.
    pub text: String,
    /// Its place.
    pub span: Span,
}

/// A call as written.
#[derive(Clone, Debug)]
pub struct Call {
    /// What is called.
    pub name: Name,
    /// Written with `!`.
    pub bang: bool,
    /// The arguments.
    pub args: Vec<Expr>,
}

/// What is selected by `.`.
#[derive(Clone, Debug)]
pub struct FieldName {
    /// A field's name, or digits for a tuple's.
    pub name: Name,
    /// Written `->`.
    pub arrow: bool,
}

/// `if`.
#[derive(Clone, Debug)]
pub struct If {
    /// The condition.
    pub cond: Expr,
    /// Done if it is true.
    pub then: Block,
    /// Done if not.
    pub other: Option<Block>,
}

/// Operators of one operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnOp {
    /// `-`
    Neg,
    /// `!`
    Not,
    /// `~`
    BitNot,
    /// `*`
    Deref,
    /// `&`
    AddrOf,
}

/// Increments and decrements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// `++a`
    PreInc,
    /// `--a`
    PreDec,
    /// `a++`
    PostInc,
    /// `a--`
    PostDec,
}

/// Operators of two operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BinOp {
    /// `||`
    LogOr,
    /// `&&`
    LogAnd,
    /// `|`
    Or,
    /// `^`
    Xor,
    /// `&`
    And,
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `>`
    Gt,
    /// `<=`
    Le,
    /// `>=`
    Ge,
    /// `<<`
    Shl,
    /// `>>`
    Shr,
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`
    Div,
    /// `%`
    Mod,
}

/// `{ statements; value }`.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// With its braces.
    pub span: Span,
    /// In order.
    pub stmts: Vec<Stmt>,
    /// The value, if the last has no semicolon and is an expression that yields something.
    pub value: Option<Box<Expr>>,
}

/// A statement.
#[derive(Clone, Debug)]
pub struct Stmt {
    /// Without its semicolon.
    pub span: Span,
    /// What it is.
    pub kind: StmtKind,
}

/// The forms of statements.
#[derive(Clone, Debug)]
pub enum StmtKind {
    /// An expression for its effect.
    Expr(Expr),
    /// `_ = a`.
    Discard(Expr),
    /// `let $x: type = a`; `var` is a `Var`. Without a value the variable is zeros.
    Let {
        /// The variable.
        var: Expr,
        /// Its type, if said.
        ty: Option<TypeExpr>,
        /// Its first value.
        init: Option<Expr>,
    },
    /// `target = a`, `target += a`. The target is a `Var`, `Map` or `MapAt`.
    Assign {
        /// Where to.
        target: Expr,
        /// The operator of a compound assignment.
        op: Option<BinOp>,
        /// What.
        value: Expr,
    },
    /// `while (c) { }`.
    While(Expr, Block),
    /// `unroll (n) { }`. In a checked tree `n` is an `Int`.
    Unroll(Expr, Block),
    /// `for ($i : from..to) { }`; `var` is a `Var`. The bounds are evaluated once.
    ForRange {
        /// The variable.
        var: Expr,
        /// The first.
        from: Expr,
        /// After the last.
        to: Expr,
        /// What is done.
        body: Block,
    },
    /// `for ($kv : @m) { }`; `map` is a `Map`, the variable a tuple of key and value.
    ForMap {
        /// The variable.
        var: Expr,
        /// The map.
        map: Expr,
        /// What is done.
        body: Block,
    },
    /// `break`
    Break,
    /// `continue`
    Continue,
    /// `return`, `return a` (of a `test` probe: not 0 is a failure).
    Return(Option<Expr>),
}

/// A type as written.
#[derive(Clone, Debug)]
pub struct TypeExpr {
    /// Its place.
    pub span: Span,
    /// What it is.
    pub kind: TypeExprKind,
}

/// The forms of written types.
#[derive(Clone, Debug)]
pub enum TypeExprKind {
    /// `int32`, `string`, `my_typedef`, a macro's parameter.
    Name(String),
    /// `struct tag`, `union tag`, `enum tag`.
    Tagged(Tag, String),
    /// `type*`.
    Pointer(Box<TypeExpr>),
    /// `type[N]`, `type[]`. Of `string`, `buffer`, `inet`: its size.
    Array(Box<TypeExpr>, Option<Box<Expr>>),
    /// `typeof(...)`.
    Typeof(Box<TypeArg>),
}

/// Which name space a tag is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Tag {
    /// `struct`
    Struct,
    /// `union`
    Union,
    /// `enum`
    Enum,
}

/// The operand of `sizeof` and its like.
#[derive(Clone, Debug)]
pub enum TypeArg {
    /// A type.
    Type(TypeExpr),
    /// An expression that is never run.
    Expr(Expr),
}

/// One block of actions with its probes.
#[derive(Clone, Debug)]
pub struct Probe {
    /// From the first attach point to the last brace.
    pub span: Span,
    /// Which events.
    pub points: Vec<AttachPoint>,
    /// `/ ... /`.
    pub predicate: Option<Expr>,
    /// What is done.
    pub body: Block,
}

/// `macro name(parameters) { }`.
#[derive(Clone, Debug)]
pub struct Macro {
    /// Its place.
    pub span: Span,
    /// Its name.
    pub name: Name,
    /// What it takes.
    pub params: Vec<Param>,
    /// What it stands for.
    pub body: Block,
}

/// A macro's parameter.
#[derive(Clone, Debug)]
pub struct Param {
    /// Name without sigil.
    pub name: Name,
    /// What may be given.
    pub kind: ParamKind,
}

/// What a macro's parameter takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParamKind {
    /// `$x`: a scratch variable, which the macro may change.
    Var,
    /// `@x`: a map.
    Map,
    /// `x`: an expression, inserted wherever it is named.
    Expr,
}

/// `let @m = hash(100);`
#[derive(Clone, Debug)]
pub struct MapDecl {
    /// Its place.
    pub span: Span,
    /// The name without `@`.
    pub name: Name,
    /// `hash`, `lruhash` ...
    pub kind: Name,
    /// How many keys it may hold.
    pub max_entries: Expr,
}

/// One assignment of the config block.
#[derive(Clone, Debug)]
pub struct ConfigItem {
    /// The name as written.
    pub name: Name,
    /// The value: `Int`, `Str`, `Bool` or `Ident`.
    pub value: Expr,
}

/// `import "path";`
#[derive(Clone, Debug)]
pub struct Import {
    /// Its place.
    pub span: Span,
    /// What is written between the quotes.
    pub path: String,
}

/// A part of a script in the order in which it was written.
#[derive(Clone, Debug)]
pub enum Item {
    /// A preprocessor line or a C declaration; `crate::ctypes` reads it.
    C(Span),
    /// `config = { }`.
    Config(Span, Vec<ConfigItem>),
    /// `import "x.bt";`
    Import(Import),
    /// A block of actions.
    Probe(Probe),
    /// A macro.
    Macro(Macro),
    /// A map's declaration.
    MapDecl(MapDecl),
}

/// A file as it was written.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// In order.
    pub items: Vec<Item>,
    /// Comments, in order; `--fmt` keeps them.
    pub comments: Vec<Span>,
}
