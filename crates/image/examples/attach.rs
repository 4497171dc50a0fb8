//! Times what an attach needs from this crate: `cargo run --release --example attach -- PID SPEC`.

use std::time::Instant;

use image::lookup::find_module;
use image::{Process, Spec, select};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().collect();
    let [_, pid, spec] = args.as_slice() else { return Err("PID and SPEC are needed".into()) };
    let ms = |t: Instant| t.elapsed().as_secs_f64() * 1e3;
    let (whole, mut t) = (Instant::now(), Instant::now());
    let mut step = |what: &str| {
        println!("{:8.2} ms  {what}", ms(t));
        t = Instant::now();
    };
    let process = Process::read(pid.parse()?)?;
    step(&format!("maps, {} modules", process.modules.len()));
    let spec = Spec::parse(spec)?;
    let image = find_module(&spec.library, &process)?.open(process.pid)?;
    step("module found and opened");
    let selection = select(&spec, &image);
    step(&format!("selected {}, refused {}", selection.selected.len(), selection.refused.len()));
    let pointers = image.code_pointers().len();
    step(&format!("{pointers} code pointers"));
    println!("{:8.2} ms  in all", ms(whole));
    Ok(())
}
