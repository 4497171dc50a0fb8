//! Names: the types that every script has, and what a misspelt one may have meant.
//!
//! For:     the parser and the checker.
//! State:   none.
//! Context: control.
//! Keeps:   1. Two names are near if at most a third of their letters differ.
//! Checked: tests below.

use crate::types::{Int, Type};

/// A type that needs no declaration. Strings, buffers and `inet` without a size have size 0.
pub(crate) fn basic(name: &str) -> Option<Type> {
    Some(match name {
        "void" => Type::Void,
        "bool" | "_Bool" => Type::Bool,
        "int8" | "int8_t" | "s8" | "__s8" | "i8" | "char" | "signed char" => Type::Int(Int::I8),
        "uint8" | "uint8_t" | "u8" | "__u8" | "unsigned char" | "u_char" => Type::Int(Int::U8),
        "int16" | "int16_t" | "s16" | "__s16" | "i16" => Type::Int(Int::I16),
        "uint16" | "uint16_t" | "u16" | "__u16" | "u_short" | "in_port_t" => Type::Int(Int::U16),
        "int32" | "int32_t" | "s32" | "__s32" | "i32" | "pid_t" => Type::Int(Int::I32),
        "uint32" | "uint32_t" | "u32" | "__u32" | "u_int" | "uid_t" | "gid_t" | "in_addr_t" => {
            Type::Int(Int::U32)
        }
        "int64" | "int64_t" | "s64" | "__s64" | "i64" | "ssize_t" | "off_t" | "time_t" | "intptr_t"
        | "ptrdiff_t" => Type::Int(Int::I64),
        "uint64" | "uint64_t" | "u64" | "__u64" | "size_t" | "uintptr_t" | "u_long" => Type::Int(Int::U64),
        "float" => Type::Float(4),
        "double" => Type::Float(8),
        "string" => Type::Str(0),
        "buffer" => Type::Buffer(0),
        "inet" => Type::Inet,
        "usym_t" | "usym" => Type::Usym,
        "ksym_t" | "ksym" => Type::Ksym,
        "timestamp" => Type::Timestamp,
        "username" => Type::Username,
        "macaddr_t" => Type::MacAddr,
        _ => return c_integer(name),
    })
}

/// `unsigned long int` and its like, the words in any order.
fn c_integer(name: &str) -> Option<Type> {
    let (mut longs, mut shorts, mut chars, mut ints, mut unsigned, mut signed) = (0, 0, 0, 0, 0, 0);
    for word in name.split(' ') {
        match word {
            "long" => longs += 1,
            "short" => shorts += 1,
            "char" => chars += 1,
            "int" => ints += 1,
            "unsigned" => unsigned += 1,
            "signed" => signed += 1,
            _ => return None,
        }
    }
    let size = match (longs, shorts, chars, ints) {
        (0, 0, 0, _) => 4,
        (1 | 2, 0, 0, 0 | 1) => 8,
        (0, 1, 0, 0 | 1) => 2,
        (0, 0, 1, 0) => 1,
        _ => return None,
    };
    (ints <= 1 && unsigned + signed <= 1).then_some(Type::Int(Int::new(size, unsigned == 0)))
}

/// The nearest of `known` to a name, if one is near.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = (name.chars().count() / 3).max(1);
    known
        .map(|k| (strsim::damerau_levenshtein(name, k), k))
        .filter(|(far, k)| *far <= most && *far < k.chars().count())
        .min_by_key(|(far, _)| *far)
        .map(|(_, k)| k)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_c_are_known_in_any_order_of_words() {
        assert_eq!(basic("unsigned long"), Some(Type::Int(Int::U64)));
        assert_eq!(basic("long unsigned int"), Some(Type::Int(Int::U64)));
        assert_eq!(basic("short"), Some(Type::Int(Int::I16)));
        assert_eq!(basic("unsigned"), Some(Type::Int(Int::U32)));
        assert_eq!(basic("long char"), None);
        assert_eq!(basic(""), None);
    }

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        assert_eq!(nearest("uprob", ["kprobe", "uprobe"].into_iter()), Some("uprobe"));
        assert_eq!(nearest("zebra", ["kprobe", "uprobe"].into_iter()), None);
    }
}
