//! Who gets the four debug registers of each CPU, and a watchpoint on a value of this process.

use hwbp::{Access, Accounts, EngineKind, Machine, Place, Request, Watchpoint};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static LIMIT: AtomicU64 = AtomicU64::new(1);

fn main() -> Result<(), hwbp::Refused> {
    let accounts = Accounts::new(Machine::x86_64(8), EngineKind::Histogram);
    let task = |id| Request::data(Place::Task(id));
    let held = (0..4).map(|_| accounts.reserve(task(7))).collect::<Result<Vec<_>, _>>()?;
    println!("a fifth for the same task: {}", accounts.reserve(task(7)).expect_err("four there are"));
    let _other = accounts.reserve(task(8))?; // another task has its own four
    drop(held);

    // Needs a processor with debug registers and the right to use them.
    match Watchpoint::on(&LIMIT, Access::Write) {
        Err(why) => println!("no watchpoint here: {why}"),
        Ok(mut watch) => {
            LIMIT.store(2, Relaxed);
            println!("writes to LIMIT: {:?}", watch.hits());
        }
    }
    Ok(())
}
