//! `cargo run --release --example torture -- rcu --for 60s`: the torture tests without the command.

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    std::process::exit(torture::torture_main(&args));
}
