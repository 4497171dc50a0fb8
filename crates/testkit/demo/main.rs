//! A small server-like process to try nanoprobe on.
//!
//! For:     the first command of the README.
//! State:   a cache of a few hundred short texts.
//! Context: an ordinary program; it knows nothing of probes.
//! Keeps:   G1 ends by itself after the seconds it was given (default 10); G2 prints one line.
//! Checked: tests/targets.rs.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// What a client asks for.
enum Request {
    Get(u32),
    Put(u32),
}

#[unsafe(no_mangle)]
#[inline(never)]
fn parse_request(text: &str) -> Option<Request> {
    let (verb, key) = text.split_once(' ')?;
    let key = key.parse().ok()?;
    match verb {
        "GET" => Some(Request::Get(key)),
        "PUT" => Some(Request::Put(key)),
        _ => None,
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn cache_lookup(cache: &HashMap<u32, String>, key: u32) -> Option<&String> {
    black_box(cache).get(&key)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn handle_get(cache: &mut HashMap<u32, String>, key: u32) -> usize {
    match cache_lookup(cache, key) {
        Some(value) => value.len(),
        None => handle_miss(cache, key),
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn handle_put(cache: &mut HashMap<u32, String>, key: u32) -> usize {
    cache.insert(key, "x".repeat(key as usize % 400)).map_or(0, |old| old.len())
}

#[unsafe(no_mangle)]
#[inline(never)]
fn handle_miss(cache: &mut HashMap<u32, String>, key: u32) -> usize {
    let value = format!("value of {key}");
    let length = value.len();
    cache.insert(key, value);
    length
}

#[unsafe(no_mangle)]
#[inline(never)]
fn serve(cache: &mut HashMap<u32, String>, text: &str) -> usize {
    match parse_request(text) {
        Some(Request::Get(key)) => handle_get(cache, key),
        Some(Request::Put(key)) => handle_put(cache, key),
        None => 0,
    }
}

/// One request of a repeatable mixture: nine reads to a write.
fn next_request(turn: u32) -> String {
    let key = turn.wrapping_mul(2_654_435_761) >> 22;
    let verb = if turn.is_multiple_of(10) { "PUT" } else { "GET" };
    format!("{verb} {key}")
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10);
    println!("nanoprobe-demo: pid {}, serving itself for {seconds} s", std::process::id());
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut cache = HashMap::new();
    let mut turn = 0u32;
    while Instant::now() < end {
        for _ in 0..200 {
            black_box(serve(&mut cache, &next_request(turn)));
            turn = turn.wrapping_add(1);
        }
        if cache.len() > 700 {
            cache.clear();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
