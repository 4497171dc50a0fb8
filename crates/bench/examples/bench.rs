//! `cargo run --release -p nanoprobe-bench --example bench -- alloc`: benchmarks without building the command.

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // Benchmarks that start themselves again say `bench`, as the command does.
    let args = args.strip_prefix(&["bench".to_string()]).unwrap_or(&args);
    std::process::exit(bench::bench_main(args));
}
