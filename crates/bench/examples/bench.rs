//! `cargo run --release -p nanoprobe-bench --example bench -- alloc`: benchmarks without building the command.

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    std::process::exit(bench::bench_main(&args));
}
