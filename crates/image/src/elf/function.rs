//! The functions of an image: one record per address, whatever the number of its names.
//!
//! For:     `select`, listing, and knowing where a function ends.
//! State:   none; `ElfImage` keeps the result.
//! Context: control.
//! Keeps:   U1 sorted by address, no two with the same one; each in code.
//!          U2 names of one function are distinct, the one to show comes first.
//! Checked: tests/suite/elf.rs on libc, libstdc++, python3, Go, musl and stripped programs.

use std::ops::Range;

use super::name::{self, SymbolName};
use super::symbols::{self, Symbol, SymbolKind};
use super::{ElfImage, go};
use crate::ImageAddr;

/// Where a function is known from; the first one that knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Source {
    /// The symbol table.
    Symtab,
    /// The dynamic linker's symbol table.
    Dynsym,
    /// The symbol table of the separate debug file.
    DebugFile,
    /// The compressed symbol table inside the file.
    DebugData,
    /// Go's own function table.
    GoTable,
    /// The unwind table, which has no names.
    EhFrame,
}

/// What stands at a function's address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FunctionKind {
    /// A function.
    Func,
    /// A resolver: the loader calls it once to learn which implementation the name stands for.
    Ifunc,
    /// A label without a type in code; it may be a function written in assembly, or data.
    Untyped,
    /// A stretch of code with an unwind entry and no name.
    Unnamed,
}

/// How a function's size is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SizeSource {
    /// A symbol says it.
    Symbol,
    /// The unwind table says it.
    EhFrame,
    /// The next function or the end of the section; padding may be included.
    Next,
}

/// One function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its first instruction.
    pub addr: ImageAddr,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// How the length is known.
    pub size_source: SizeSource,
    /// All its names, the one to show first; empty if only the unwind table knows it.
    pub names: Vec<SymbolName>,
    /// What stands there.
    pub kind: FunctionKind,
    /// Where it is known from.
    pub source: Source,
}

impl Function {
    /// The name to show.
    pub fn name(&self) -> Option<&str> {
        self.names.first().map(|n| n.text.as_ref())
    }

    /// Its addresses.
    pub fn range(&self) -> Range<ImageAddr> {
        self.addr..ImageAddr(self.addr.0.saturating_add(self.size_bytes))
    }
}

impl ElfImage {
    /// All functions, sorted by address. Aliases of one address are one function.
    pub fn functions(&self) -> &[Function] {
        self.functions.get_or_init(|| {
            let (functions, labels) = build(self);
            let _ = self.labels.set(labels);
            functions
        })
    }

    /// Labels inside functions, sorted: code that assembly can reach by name.
    pub(super) fn labels(&self) -> &[ImageAddr] {
        self.functions();
        self.labels.get().map_or(&[], |l| l.as_slice())
    }

    /// The function that `addr` lies in.
    pub fn function_at(&self, addr: ImageAddr) -> Option<&Function> {
        let functions = self.functions();
        let after = functions.partition_point(|f| f.addr <= addr);
        // An outer function may hold an inner one that ends earlier.
        functions[..after].iter().rev().take(8).find(|f| f.range().contains(&addr))
    }

    /// Whether a function of Go's own is there, which has Go's calling convention. C code in a Go program has no dot in its names.
    pub fn is_go_code(&self, addr: ImageAddr) -> bool {
        let is_go = |function: &Function| function.names.iter().any(|name| name.text.contains('.'));
        self.is_go() && self.function_at(addr).is_some_and(is_go)
    }

    /// Names that the image takes from other images, sorted.
    pub fn imports(&self) -> Vec<String> {
        symbols::imports(self)
    }
}

fn build(image: &ElfImage) -> (Vec<Function>, Vec<ImageAddr>) {
    let (debug_file, debug_data) = (image.debug_file(), image.debug_data());
    let mut symbols = Vec::new();
    symbols::collect(image, &image.data, None, &mut symbols);
    if let Some(data) = &debug_file {
        symbols::collect(image, data, Some(Source::DebugFile), &mut symbols);
    }
    if let Some(data) = &debug_data {
        symbols::collect(image, data, Some(Source::DebugData), &mut symbols);
    }
    if !symbols.iter().any(|s| s.source == Source::Symtab) {
        go::collect(image, &mut symbols);
    }
    symbols.sort_by_key(|s| s.addr);
    let mut functions: Vec<_> = symbols.chunk_by(|a, b| a.addr == b.addr).map(one_function).collect();
    confirm_by_unwind_table(image, &mut functions);
    let labels = take_labels(&mut functions);
    add_unnamed(image, &mut functions);
    complete_sizes(image, &mut functions);
    (functions, labels)
}

/// One function of all symbols with the same address.
fn one_function(symbols: &[Symbol<'_>]) -> Function {
    let kind = symbols.iter().map(|s| s.kind).max().unwrap_or(SymbolKind::Untyped);
    Function {
        addr: ImageAddr(symbols[0].addr),
        size_bytes: symbols.iter().map(|s| s.size_bytes).max().unwrap_or(0),
        size_source: SizeSource::Symbol,
        names: name::names(symbols),
        kind: match kind {
            SymbolKind::Untyped => FunctionKind::Untyped,
            SymbolKind::Func => FunctionKind::Func,
            SymbolKind::Ifunc => FunctionKind::Ifunc,
        },
        source: symbols.iter().map(|s| s.source).min().unwrap_or(Source::Symtab),
    }
}

/// An unwind entry that starts at a label without a type or size makes a function of it.
fn confirm_by_unwind_table(image: &ElfImage, functions: &mut [Function]) {
    let fdes = image.fdes();
    for f in functions.iter_mut().filter(|f| f.kind == FunctionKind::Untyped || f.size_bytes == 0) {
        let Ok(at) = fdes.binary_search_by_key(&f.addr, |fde| fde.start) else { continue };
        if f.kind == FunctionKind::Untyped {
            f.kind = FunctionKind::Func;
        }
        if f.size_bytes == 0 {
            f.size_bytes = fdes[at].len_bytes;
            f.size_source = SizeSource::EhFrame;
        }
    }
}

/// Takes out labels that lie inside a sized function, and returns where they were.
fn take_labels(functions: &mut Vec<Function>) -> Vec<ImageAddr> {
    let mut end = ImageAddr(0);
    let mut labels = Vec::new();
    functions.retain(|f| {
        let is_label = f.kind == FunctionKind::Untyped && f.size_bytes == 0 && f.addr < end;
        if is_label {
            labels.push(f.addr);
        }
        end = end.max(f.range().end);
        !is_label
    });
    labels
}

/// Adds the unwind entries that start in no known function.
fn add_unnamed(image: &ElfImage, functions: &mut Vec<Function>) {
    let mut plt = image.plt_ranges();
    plt.sort_by_key(|p| p.start);
    let is_plt = |at: ImageAddr| {
        let after = plt.partition_point(|p| p.start <= at);
        plt[..after].last().is_some_and(|p| p.contains(&at))
    };
    let mut unnamed = Vec::new();
    let (mut next, mut end) = (0, ImageAddr(0));
    for fde in image.fdes() {
        while next < functions.len() && functions[next].addr <= fde.start {
            end = end.max(functions[next].range().end);
            next += 1;
        }
        let is_known = fde.start < end || next > 0 && functions[next - 1].addr == fde.start;
        if is_known || is_plt(fde.start) {
            continue;
        }
        end = fde.end();
        unnamed.push(Function {
            addr: fde.start,
            size_bytes: fde.len_bytes,
            size_source: SizeSource::EhFrame,
            names: Vec::new(),
            kind: FunctionKind::Unnamed,
            source: Source::EhFrame,
        });
    }
    functions.append(&mut unnamed);
    functions.sort_by_key(|f| f.addr);
}

/// Lets functions without a size reach to the next one or the end of their section.
fn complete_sizes(image: &ElfImage, functions: &mut [Function]) {
    let mut next = None;
    for f in functions.iter_mut().rev() {
        if f.size_bytes == 0 {
            let code = image.code_ranges();
            let section = code[..code.partition_point(|r| r.start <= f.addr)].last();
            let section_end = section.map_or(f.addr, |r| r.end.max(f.addr));
            let end = next.map_or(section_end, |n: ImageAddr| n.min(section_end));
            f.size_bytes = end.0 - f.addr.0;
            f.size_source = SizeSource::Next;
        }
        next = Some(f.addr);
    }
}
