//! Maps as they are printed.
//!
//! For:     `print(@m)`, and the end of a run.
//! State:   none.
//! Context: control.
//! Keeps:   T1 elements are in an order that does not depend on chance: values that are equal by their keys.
//! Checked: tests/output.rs.
//! Source:  bpftrace 0.26: numbers by value, averages by average, histograms by their sum, series by their last interval,
//!          all else by key; `top` keeps the last.

use super::maps::Map;
use super::out::{Format, Out};
use super::show::{Shown, number, quoted, value};
use super::{histogram, series};
use crate::program::Script;
use crate::types::{Agg, Int, Type};
use std::cmp::Ordering;

/// How much of a map is printed, and how.
#[derive(Clone, Copy, Debug)]
pub struct How<'a> {
    /// Only so many of the largest; 0 for all.
    pub top: usize,
    /// Values are divided by it.
    pub div: i128,
    /// What marks a text that was cut off.
    pub trailer: &'a str,
    /// Series go by real time.
    pub is_real: bool,
    /// The largest come first.
    pub is_falling: bool,
}

struct Element {
    key: Vec<u8>,
    slot: u32,
    words: Vec<u64>,
    rank: i128,
}

/// Prints a map.
pub fn map(out: &mut Out, script: &Script, map: &Map, how: How<'_>) {
    let mut elements = ordered(script, map, how.top);
    if how.is_falling {
        elements.reverse();
    }
    let name = &map.decl.name;
    match &map.decl.key {
        None => scalar(out, script, map, elements.first(), how),
        Some(ty) => {
            let keys: Vec<Vec<u8>> =
                elements.iter().map(|e| value(script, how.trailer, ty, &e.key, 1).key()).collect();
            let last = last_epoch(map, &elements);
            match out.format {
                Format::Text => {
                    for (element, key) in elements.iter().zip(keys) {
                        let key = out.foreign(key);
                        let (shown, is_block) = shown(script, map, element, last, how);
                        let gap = if is_block { "\n" } else { " " };
                        let shown = out.foreign(shown);
                        let line =
                            [name.as_bytes(), b"[", &key, b"]:", gap.as_bytes(), &shown, b"\n"].concat();
                        out.raw(&line);
                    }
                }
                Format::Json if elements.is_empty() => {}
                Format::Json => {
                    let of = |(e, key): (&Element, Vec<u8>)| {
                        let key: Vec<u8> = key.into_iter().filter(|b| *b != b' ').collect();
                        format!("{}: {}", quoted(&key), json(script, map, e, last, how))
                    };
                    let all: Vec<String> = elements.iter().zip(keys).map(of).collect();
                    let data = format!("{{{}: {{{}}}}}", quoted(name.as_bytes()), all.join(", "));
                    out.line(kind(map), &data);
                }
            }
        }
    }
}

/// Prints the value of one key, as a value.
pub fn element(out: &mut Out, script: &Script, map: &Map, key: &[u8], how: How<'_>) {
    let found = map.find(key).map(|slot| read(map, key.to_vec(), slot));
    let none = Element { key: Vec::new(), slot: u32::MAX, words: zeros(map), rank: 0 };
    let element = found.unwrap_or(none);
    let last = last_epoch(map, std::slice::from_ref(&element));
    match out.format {
        Format::Text => {
            let text = shown(script, map, &element, last, how).0;
            let text = out.foreign(text);
            out.raw(&[text, b"\n".to_vec()].concat());
        }
        Format::Json => {
            let data = json(script, map, &element, last, how);
            out.line("value", &data);
        }
    }
}

fn zeros(map: &Map) -> Vec<u64> {
    map.agg().map_or(Vec::new(), |agg| vec![0; agg.words()])
}

fn scalar(out: &mut Out, script: &Script, map: &Map, element: Option<&Element>, how: How<'_>) {
    let zero = Element { key: Vec::new(), slot: u32::MAX, words: zeros(map), rank: 0 };
    let element = element.unwrap_or(&zero);
    let last = last_epoch(map, std::slice::from_ref(element));
    let name = &map.decl.name;
    match out.format {
        Format::Text => {
            let (text, is_block) = shown(script, map, element, last, how);
            let text = out.foreign(text);
            let gap = if is_block { "\n" } else { " " };
            out.raw(&[name.as_bytes(), b":", gap.as_bytes(), &text, b"\n"].concat());
        }
        Format::Json => {
            let data = format!("{{{}: {}}}", quoted(name.as_bytes()), json(script, map, element, last, how));
            out.line(kind(map), &data);
        }
    }
}

fn kind(map: &Map) -> &'static str {
    match map.agg() {
        Some(Agg::Hist { .. } | Agg::Lhist { .. }) => "hist",
        Some(Agg::Tseries { .. }) => "tseries",
        Some(Agg::Avg { .. } | Agg::Stats { .. }) => "stats",
        _ => "map",
    }
}

fn read(map: &Map, key: Vec<u8>, slot: u32) -> Element {
    let words = map.words(slot);
    let rank = match (map.agg(), &map.decl.value) {
        (Some(agg), _) => signed(agg, agg.number(&words)),
        (None, Type::Int(int)) => number(&map.value(slot), *int),
        _ => 0,
    };
    Element { key, slot, words, rank }
}

fn signed(agg: Agg, n: u64) -> i128 {
    match agg {
        Agg::Sum { signed: true } | Agg::Min { signed: true } | Agg::Max { signed: true } => {
            i128::from(n.cast_signed())
        }
        Agg::Avg { signed: true } | Agg::Stats { signed: true } => i128::from(n.cast_signed()),
        _ => i128::from(n),
    }
}

/// The elements in order, the last `top` of them.
fn ordered(script: &Script, map: &Map, top: usize) -> Vec<Element> {
    let mut elements: Vec<Element> =
        map.elements().into_iter().map(|(key, slot)| read(map, key, slot)).collect();
    let by_key = |a: &Element, b: &Element| match &map.decl.key {
        Some(ty) => compare(script, ty, &a.key, &b.key),
        None => Ordering::Equal,
    };
    elements.sort_by(|a, b| a.rank.cmp(&b.rank).then_with(|| by_key(a, b)));
    if top > 0 && elements.len() > top {
        elements.drain(..elements.len() - top);
    }
    elements
}

/// Keys in order: numbers as numbers, tuples by their first part first, text by its bytes.
fn compare(script: &Script, ty: &Type, a: &[u8], b: &[u8]) -> Ordering {
    match ty {
        Type::Int(int) => number(a, *int).cmp(&number(b, *int)),
        Type::Tuple(items) => {
            let (offsets, _) = script.ctypes.layout(items.iter());
            let parts = items.iter().zip(offsets).map(|(ty, at)| {
                let (at, end) = (at as usize, (at + script.ctypes.size(ty)) as usize);
                let part = |bytes: &'_ [u8]| bytes.get(at..end).unwrap_or_default().to_vec();
                compare(script, ty, &part(a), &part(b))
            });
            parts.fold(Ordering::Equal, Ordering::then)
        }
        _ => a.cmp(b),
    }
}

fn last_epoch(map: &Map, elements: &[Element]) -> u64 {
    let Some(agg @ Agg::Tseries { .. }) = map.agg() else { return 0 };
    let last = |e: &Element| series::points(agg, &e.words).keys().last().copied();
    elements.iter().filter_map(last).max().unwrap_or(0)
}

/// The value's text, and whether it takes lines of its own.
fn shown(script: &Script, map: &Map, element: &Element, last: u64, how: How<'_>) -> (Vec<u8>, bool) {
    let Some(agg) = map.agg() else { return (plain(script, map, element, how).text(), false) };
    match agg {
        Agg::Hist { .. } | Agg::Lhist { .. } => {
            (histogram::text(agg, &element.words, how.div).into_bytes(), true)
        }
        Agg::Tseries { .. } => {
            let rows = series::rows(agg, &series::points(agg, &element.words), last);
            (series::text(agg, &rows, how.is_real).into_bytes(), true)
        }
        _ => (one(agg, element, how.div).text(), false),
    }
}

fn json(script: &Script, map: &Map, element: &Element, last: u64, how: How<'_>) -> String {
    let Some(agg) = map.agg() else { return plain(script, map, element, how).json() };
    match agg {
        Agg::Hist { .. } | Agg::Lhist { .. } => histogram::json(agg, &element.words, how.div),
        Agg::Tseries { .. } => {
            let rows = series::rows(agg, &series::points(agg, &element.words), last);
            series::json(&rows, how.is_real)
        }
        _ => one(agg, element, how.div).json(),
    }
}

fn plain(script: &Script, map: &Map, element: &Element, how: How<'_>) -> Shown {
    let zeros = vec![0; map.decl.value_size];
    let bytes = if element.slot == u32::MAX { zeros } else { map.value(element.slot) };
    // A narrow number is kept in eight bytes, of which its own come first.
    value(script, how.trailer, &map.decl.value, &bytes, how.div)
}

fn one(agg: Agg, element: &Element, div: i128) -> Shown {
    let words = &element.words;
    match agg {
        Agg::Stats { signed: is_signed } => {
            let total = if is_signed { i128::from(words[1].cast_signed()) } else { i128::from(words[1]) };
            Shown::Record(vec![
                ("count".into(), Shown::Int(i128::from(words[0]))),
                ("average".into(), Shown::Int(signed(agg, agg.number(words)) / div)),
                ("total".into(), Shown::Int(total)),
            ])
        }
        agg => Shown::Int(signed(agg, agg.number(words)) / div),
    }
}

/// A number of 64 bits with a sign.
pub const INT64: Int = Int::new(8, true);
