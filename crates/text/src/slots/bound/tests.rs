use super::*;

fn enter(bound: &Bound, probe: u64, binding: &Binding) -> Taken {
    let taken = bound.enter_wait(probe, binding);
    if taken.must_fill {
        bound.filled(taken.slot);
    }
    taken
}

#[test]
fn a_slot_is_filled_once_while_there_are_slots_enough() {
    let bound = Bound::new(4);
    let bindings: [Binding; 4] = Default::default();
    for round in 0..10 {
        for (probe, binding) in bindings.iter().enumerate() {
            let taken = enter(&bound, 1 + probe as u64, binding);
            assert_eq!(taken.must_fill, round == 0);
            bound.leave(taken.slot);
        }
    }
    assert_eq!(bound.times_rebound(), 0);
}

#[test]
fn the_slot_that_was_not_entered_for_longest_goes_first_and_one_in_use_never() {
    let bound = Bound::new(3);
    let bindings: [Binding; 5] = Default::default();
    let slots: Vec<_> = (0..3).map(|probe| enter(&bound, 1 + probe as u64, &bindings[probe]).slot).collect();
    bound.leave(slots[1]);
    bound.leave(slots[0]);
    // Probe 1 was entered before probe 2; probe 3 is in use.
    assert_eq!(enter(&bound, 4, &bindings[3]), Taken { slot: slots[0], must_fill: true });
    assert_eq!(enter(&bound, 5, &bindings[4]), Taken { slot: slots[1], must_fill: true });
    bound.leave(slots[0]);
    assert_eq!(enter(&bound, 1, &bindings[0]), Taken { slot: slots[0], must_fill: true });
    assert_eq!(bound.times_rebound(), 3);
}

#[test]
fn nobody_enters_a_slot_that_is_being_filled_or_filled_by_another_while_in_use() {
    use std::sync::atomic::AtomicU64;
    const ROUNDS: u64 = 3000;
    let bound = Bound::new(2);
    let bindings: [Binding; 5] = Default::default();
    let contents: [AtomicU64; 2] = Default::default();
    let filled = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (bound, bindings, contents, filled) = (&bound, &bindings, &contents, &filled);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let probe = 1 + (thread * 7 + round * 3) % 5;
                    let taken = bound.enter_wait(probe, &bindings[probe as usize - 1]);
                    if taken.must_fill {
                        contents[taken.slot].store(0, Relaxed);
                        std::thread::yield_now();
                        contents[taken.slot].store(probe, Relaxed);
                        filled.fetch_add(1, Relaxed);
                        bound.filled(taken.slot);
                    }
                    assert_eq!(contents[taken.slot].load(Relaxed), probe);
                    if round % 16 == 0 {
                        std::thread::yield_now();
                    }
                    assert_eq!(contents[taken.slot].load(Relaxed), probe);
                    bound.leave(taken.slot);
                }
            });
        }
    });
    assert!(filled.load(Relaxed) > 5 && bound.times_slept() > 0);
    assert!(filled.load(Relaxed) < 8 * ROUNDS, "a bound slot is used again");
}
