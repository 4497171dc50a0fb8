//! Times reading of images: `cargo run --release --example measure -- FILE...`, median of five runs.

use std::time::Instant;

use image::ElfImage;

fn main() {
    println!(
        "{:>9} {:>9} {:>9} {:>9} {:>8} {:>9}  file",
        "MB", "open ms", "funcs ms", "ptrs ms", "funcs", "pointers"
    );
    for path in std::env::args().skip(1) {
        let mut rows: Vec<_> = (0..5).map(|_| measure(&path)).collect();
        rows.sort_by(|a, b| (a.0 + a.1 + a.2).total_cmp(&(b.0 + b.1 + b.2)));
        let (open, functions, pointers, n, p) = rows[2];
        let megabytes = std::fs::metadata(&path).map_or(0.0, |m| m.len() as f64 / 1e6);
        println!("{megabytes:9.1} {open:9.2} {functions:9.2} {pointers:9.2} {n:8} {p:9}  {path}");
    }
}

fn measure(path: &str) -> (f64, f64, f64, usize, usize) {
    let ms = |t: Instant| t.elapsed().as_secs_f64() * 1e3;
    let t = Instant::now();
    let image = ElfImage::open(path).unwrap_or_else(|e| panic!("{e}"));
    let open = ms(t);
    let t = Instant::now();
    let functions = image.functions().len();
    let functions_ms = ms(t);
    let t = Instant::now();
    let pointers = image.code_pointers().len();
    (open, functions_ms, ms(t), functions, pointers)
}
