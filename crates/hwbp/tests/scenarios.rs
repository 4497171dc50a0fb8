//! The nine scenarios on every engine and many machines.

use hwbp::{Accounts, EngineKind, Kind, Machine, Pools, Refused, Request, SCENARIOS, Verdict};

#[test]
fn every_scenario_passes_on_every_engine_and_machine() {
    let mut passed = 0;
    for engine in EngineKind::ALL {
        for cpus in [1, 2, 3, 16, 129] {
            for slots in [1, 2, 3, 4, 16] {
                for pools in [Pools::Shared(slots), Pools::Split { data: slots, instruction: 1 }] {
                    let accounts = Accounts::new(Machine { cpus, pools }, engine);
                    for scenario in SCENARIOS {
                        match scenario.run(&accounts) {
                            Verdict::Passed => passed += 1,
                            Verdict::Skipped(_) => assert!(cpus < 2 || slots < 3, "{}", scenario.name),
                            Verdict::Failed(why) => {
                                panic!("{} on {engine:?}, {cpus} CPUs, {slots} slots: {why}", scenario.name)
                            }
                        }
                    }
                }
            }
        }
    }
    // 3 engines, 4 machines of 2 CPUs or more, 2 sorts of pools; 9 with 3 slots or more, else 7.
    assert_eq!(passed, 3 * 4 * 2 * (3 * 9 + 2 * 7));
}

#[test]
fn a_scenario_notices_what_was_held_before() {
    let accounts = Accounts::new(Machine::x86_64(2), EngineKind::Histogram);
    let _held = accounts.reserve(Request::data(hwbp::Place::Cpu(1))).unwrap();
    assert!(SCENARIOS.iter().all(|s| matches!(s.run(&accounts), Verdict::Failed(_))));
}

#[test]
fn on_every_cpu_is_all_or_nothing() {
    for engine in EngineKind::ALL {
        let accounts = Accounts::new(Machine::x86_64(8), engine);
        let wide: Vec<_> = (0..3).map(|_| accounts.reserve_wide(Kind::Data).unwrap()).collect();
        let last = accounts.reserve(Request::data(hwbp::Place::Cpu(7))).unwrap();
        assert!(matches!(accounts.reserve_wide(Kind::Data), Err(Refused::NoSlot { .. })));
        assert_eq!(accounts.used(Request::data(hwbp::Place::Cpu(0))), Ok(3));
        drop((wide, last));
        assert!(!accounts.is_used());
    }
}
