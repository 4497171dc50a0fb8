//! `cargo run --release --example bench -- refscale`: the benchmarks until the command has them.

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    std::process::exit(match args.split_first() {
        Some((name, rest)) if name == "refscale" => bench::refscale_main(rest),
        Some((name, rest)) if name == "synchronize" => bench::synchronize_main(rest),
        _ => {
            eprintln!("bench: refscale or synchronize");
            2
        }
    });
}
