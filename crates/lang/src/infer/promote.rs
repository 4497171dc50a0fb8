//! What two types become where they meet, and how a type is written in messages.
use crate::types::{Agg, CTypes, Int, StackMode, Type};
use std::sync::Arc;

/// The type of a literal: the smallest signed one that holds it.
pub(crate) fn literal(value: i128) -> Type {
    let (size, signed) = match value {
        -0x80..=0x7f => (1, true),
        -0x8000..=0x7fff => (2, true),
        -0x8000_0000..=0x7fff_ffff => (4, true),
        v if v <= i128::from(i64::MAX) => (8, true),
        _ => (8, false),
    };
    Type::Int(Int { size, signed, flexible: value >= 0 && signed })
}

/// The type that holds values of both; `None` if there is none.
pub(crate) fn promote(a: &Type, b: &Type, types: &CTypes) -> Option<Type> {
    Some(match (a, b) {
        (Type::None, other) | (other, Type::None) => other.clone(),
        (a, b) if a == b => a.clone(),
        (Type::Int(a), Type::Int(b)) => Type::Int(ints(*a, *b)),
        (Type::Enum(e), Type::Int(i)) | (Type::Int(i), Type::Enum(e)) => {
            let of = types.enumeration(*e).map_or(Int::U32, |e| e.int);
            Type::Int(ints(of, *i))
        }
        (Type::Enum(a), Type::Enum(b)) => {
            let of = |e| types.enumeration(e).map_or(Int::U32, |e| e.int);
            Type::Int(ints(of(*a), of(*b)))
        }
        (Type::Str(a), Type::Str(b)) => Type::Str(*a.max(b)),
        (Type::Buffer(a), Type::Buffer(b)) => Type::Buffer(*a.max(b)),
        (Type::Pointer(x), Type::Pointer(y)) => match (&**x, &**y) {
            (Type::Void, _) => b.clone(),
            (_, Type::Void) => a.clone(),
            _ => return None,
        },
        (Type::Tuple(a), Type::Tuple(b)) if a.len() == b.len() => {
            let parts: Option<Vec<_>> = a.iter().zip(b.iter()).map(|(a, b)| promote(a, b, types)).collect();
            Type::Tuple(parts?.into())
        }
        (Type::Record(a), Type::Record(b)) if a.len() == b.len() => {
            let mut parts = Vec::new();
            for (name, ty) in a.iter() {
                let (_, other) = b.iter().find(|(n, _)| n == name)?;
                parts.push((name.clone(), promote(ty, other, types)?));
            }
            Type::Record(parts.into())
        }
        (Type::Array(x, n), Type::Array(y, m)) if n == m => Type::Array(Arc::new(promote(x, y, types)?), *n),
        (Type::Agg(a), Type::Agg(b)) => Type::Agg(aggregations(*a, *b)?),
        (Type::Ustack(a), Type::Ustack(b)) if a.mode == b.mode && a.dwarf == b.dwarf => {
            Type::Ustack(crate::types::StackKind { limit: a.limit.max(b.limit), ..*a })
        }
        _ => return None,
    })
}

fn ints(a: Int, b: Int) -> Int {
    let size = a.size.max(b.size);
    if a.signed == b.signed {
        return Int { size, signed: a.signed, flexible: a.flexible && b.flexible };
    }
    // A positive literal takes the sign of what it meets.
    if a.flexible || b.flexible {
        return Int::new(size, if a.flexible { b.signed } else { a.signed });
    }
    let (signed, unsigned) = if a.signed { (a, b) } else { (b, a) };
    Int::new(if signed.size > unsigned.size { signed.size } else { (unsigned.size * 2).min(8) }, true)
}

fn aggregations(a: Agg, b: Agg) -> Option<Agg> {
    Some(match (a, b) {
        (a, b) if a == b => a,
        (Agg::Sum { .. }, Agg::Sum { .. }) => Agg::Sum { signed: true },
        (Agg::Min { .. }, Agg::Min { .. }) => Agg::Min { signed: true },
        (Agg::Max { .. }, Agg::Max { .. }) => Agg::Max { signed: true },
        (Agg::Avg { .. }, Agg::Avg { .. }) => Agg::Avg { signed: true },
        (Agg::Stats { .. }, Agg::Stats { .. }) => Agg::Stats { signed: true },
        (Agg::Tseries { interval, num, how, .. }, Agg::Tseries { interval: i, num: n, how: h, .. })
            if (interval, num, how) == (i, n, h) =>
        {
            Agg::Tseries { interval, num, how, signed: true }
        }
        _ => return None,
    })
}

/// The integer that an aggregation reads as; `None` if it reads as none.
pub(crate) fn read_as(ty: &Type) -> Option<Type> {
    Some(match ty {
        Type::Agg(Agg::Count) => Type::Int(Int::U64),
        Type::Agg(Agg::Sum { signed } | Agg::Min { signed } | Agg::Max { signed } | Agg::Avg { signed }) => {
            Type::Int(Int::new(8, *signed))
        }
        _ => return None,
    })
}

/// Without the mark of literals.
pub(crate) fn settled(ty: &Type) -> Type {
    match ty {
        Type::Int(i) => Type::Int(Int::new(i.size, i.signed)),
        Type::Tuple(of) => Type::Tuple(of.iter().map(settled).collect()),
        Type::Record(of) => Type::Record(of.iter().map(|(n, t)| (n.clone(), settled(t))).collect()),
        Type::Array(of, n) => Type::Array(Arc::new(settled(of)), *n),
        Type::Pointer(of) => Type::Pointer(Arc::new(settled(of))),
        other => other.clone(),
    }
}

/// A type as messages and `typeinfo` write it.
pub(crate) fn shown(ty: &Type, types: &CTypes) -> String {
    let list = |parts: Vec<String>| format!("({})", parts.join(","));
    match ty {
        Type::None => "none".into(),
        Type::Void => "void".into(),
        Type::Bool => "bool".into(),
        Type::Int(i) => format!("{}int{}", if i.signed { "" } else { "u" }, u32::from(i.size) * 8),
        Type::Float(4) => "float".into(),
        Type::Float(_) => "double".into(),
        Type::Str(n) => format!("string[{n}]"),
        Type::Buffer(n) => format!("buffer[{n}]"),
        Type::Pointer(of) => format!("{} *", shown(of, types)),
        Type::Array(of, n) => format!("{}[{n}]", shown(of, types)),
        Type::Struct(id) => types.get(*id).name.clone(),
        Type::Enum(id) => types.enumeration(*id).map_or_else(String::new, |e| e.name.clone()),
        Type::Tuple(of) => list(of.iter().map(|t| shown(t, types)).collect()),
        Type::Record(of) => list(of.iter().map(|(n, t)| format!("{n}={}", shown(t, types))).collect()),
        Type::Inet => "inet".into(),
        Type::MacAddr => "mac_address".into(),
        Type::Usym => "usym_t".into(),
        Type::Ksym => "ksym_t".into(),
        Type::Ustack(_) => "ustack_t".into(),
        Type::Kstack(_) => "kstack_t".into(),
        Type::Timestamp => "timestamp".into(),
        Type::Username => "username_t".into(),
        Type::Comm => "comm_t".into(),
        Type::CgroupPath => "cgroup_path_t".into(),
        Type::Agg(agg) => match agg {
            Agg::Count => "count_t",
            Agg::Sum { .. } => "sum_t",
            Agg::Min { .. } => "min_t",
            Agg::Max { .. } => "max_t",
            Agg::Avg { .. } => "avg_t",
            Agg::Stats { .. } => "stats_t",
            Agg::Hist { .. } => "hist_t",
            Agg::Lhist { .. } => "lhist_t",
            Agg::Tseries { .. } => "tseries_t",
        }
        .into(),
    }
}

/// The kind of a type, for `typeinfo`.
pub(crate) fn base(ty: &Type, types: &CTypes) -> String {
    match ty {
        Type::Int(_) | Type::Enum(_) => "int".into(),
        Type::Str(_) => "string".into(),
        Type::Buffer(_) => "buffer".into(),
        Type::Pointer(_) => "pointer".into(),
        Type::Array(..) => "array".into(),
        Type::Struct(_) => "c_type".into(),
        Type::Tuple(_) => "tuple".into(),
        Type::Record(_) => "record".into(),
        other => shown(other, types),
    }
}

/// The mode of a stack by its word.
pub(crate) fn stack_mode(word: &str) -> Option<StackMode> {
    Some(match word {
        "bpftrace" => StackMode::Bpftrace,
        "perf" => StackMode::Perf,
        "raw" => StackMode::Raw,
        "build_id" => StackMode::BuildId,
        _ => return None,
    })
}
