//! Which of four consumers are there before and after, at entry and at return: 16 by 16.
//!
//! After the kernel's `uprobe_multi_test` consumers test, with one of each kind: entry,
//! return, session that goes on, session that ignores. A set is there when the function is entered, another
//! when it returns; what stays, goes or comes between the two must be called exactly as the rules say.

mod kit;

use kit::*;
use probe::*;
use std::sync::Arc;

fn kinds() -> [Arc<Count>; 4] {
    [Count::new(), Count::ret_only(), Count::session(), Count::saying(Verdict::Ignore)]
}

/// Entries and returns that each consumer must have seen.
fn wanted(before: usize, after: usize) -> [(u64, u64); 4] {
    let has = |set: usize, i: usize| set & (1 << i) != 0;
    // An instance is made if somebody there at the entry wants the return.
    let instance = has(before, 1) || has(before, 2);
    std::array::from_fn(|i| {
        let entry = u64::from(has(before, i) && i != 1);
        let returned = match i {
            1 => instance && has(after, 1),
            2 => has(before, 2) && has(after, 2),
            _ => false,
        };
        (entry, u64::from(returned))
    })
}

#[test]
fn every_set_before_and_after_is_called_as_the_rules_say() {
    for protection in Protection::ALL {
        let w = world(Config::new(protection, protection));
        // A site keeps the uprobe between the two.
        let site = w.register(8, &Count::new()).probe();
        let mut cells = 0;
        for (before, after) in (0..16).flat_map(|b| (0..16).map(move |a| (b, a))) {
            let counts = kinds();
            let is_in = |set: usize, i: usize| set & (1 << i) != 0;
            let mut there: [Option<Registered>; 4] = Default::default();
            let change = |there: &mut [Option<Registered>; 4], set| {
                for i in 0..4 {
                    match (there[i].take(), is_in(set, i)) {
                        (Some(old), false) => w.drop_nosync(old),
                        (None, true) => there[i] = Some(w.register(8, &counts[i])),
                        (old, _) => there[i] = old,
                    }
                }
            };
            change(&mut there, before);
            let mut stack = w.registry.return_stack();
            let (hit, _) = stack.enter(&site, &mut Regs::default());
            assert_eq!(hit, Hit::Handled);
            change(&mut there, after);
            stack.leave(&mut Regs::default());
            let seen: [_; 4] = std::array::from_fn(|i| (counts[i].hits(), counts[i].returns()));
            assert_eq!(seen, wanted(before, after), "{protection}: {before:04b} then {after:04b}");
            assert_eq!(stack.entries, stack.returns);
            cells += 1;
        }
        assert_eq!(cells, 256);
    }
}
