//! `cargo run --release --example torture -- rcu --for 60s`: the torture tests until the command has them.

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    std::process::exit(match args.split_first() {
        Some((name, rest)) if name == "rcu" => torture::rcu_main(rest),
        Some((name, rest)) if name == "mem" => torture::mem_main(rest),
        _ => {
            eprintln!("torture: rcu mem");
            2
        }
    });
}
