#![doc = include_str!("../README.md")]

mod cited;
mod fences;
mod mutants;
mod sources;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = args.split_first().map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
    let good = match name {
        "cited" => cited::run(),
        "fences" => fences::run(),
        "mutants" => mutants::run(rest),
        _ => {
            eprintln!("xtask: no command {name:?}; there are: cited fences mutants");
            false
        }
    };
    std::process::exit(i32::from(!good));
}
