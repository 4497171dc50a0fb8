//! Lists what a specification means: `cargo run --example list -- 'u:libc:*alloc*' [PID]`.

use image::lookup::{find_file, find_module};
use image::{ElfImage, NoMatch, Process, Spec, select};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let text = args.next().ok_or("a specification is missing")?;
    let spec = Spec::parse(&text).map_err(|e| format!("{e}\n{}", e.underlined()))?;
    let image = match args.next() {
        Some(pid) => {
            let process = Process::read(pid.parse()?)?;
            find_module(&spec.library, &process)?.open(process.pid)?
        }
        None => ElfImage::open(find_file(&spec.library)?)?,
    };
    let selection = select(&spec, &image);
    for s in &selection.selected {
        let via = s.ifunc.and_then(|f| f.name()).map(|n| format!("  for ifunc {n}")).unwrap_or_default();
        println!("{:>#18x} {}{via}", s.addr, image.name_at(s.addr));
    }
    for r in &selection.refused {
        println!("{:>#18x} {}: {}", r.addr, r.name.map(|n| n.to_string()).unwrap_or_default(), r.reason);
    }
    if selection.selected.is_empty() && selection.refused.is_empty() {
        let why = NoMatch::explain(&spec, &image).map(|n| n.to_string()).unwrap_or_default();
        println!("{}: {why}", image.path().display());
    }
    Ok(())
}
