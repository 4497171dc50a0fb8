//! The engines against the definition, over random operations. The seed is printed when it fails.

use hwbp::{Accounts, Checker, EngineKind, Kind, Machine, Place, Pools, Request, Reservation};

/// splitmix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u32) -> u32 {
        (self.next() % u64::from(bound)) as u32
    }
}

fn random_request(rng: &mut Rng, cpus: u32, tasks: u32) -> Request {
    let (task, cpu) = (u64::from(rng.below(tasks)), rng.below(cpus));
    let place = match rng.below(4) {
        0 => Place::Cpu(cpu),
        1 => Place::TaskOnCpu(task, cpu),
        _ => Place::Task(task),
    };
    let kind = if rng.below(4) == 0 { Kind::Instruction } else { Kind::Data };
    Request { place, kind }
}

/// Every engine does the same; each answer is compared with the checker's. Returns grants and refusals.
fn compare(machine: Machine, tasks: u32, seed: u64, operations: u32) -> (u32, u32) {
    let all: Vec<Accounts> = EngineKind::ALL.map(|kind| Accounts::new(machine, kind)).into();
    let mut held: Vec<(Request, Vec<Reservation<'_>>)> = Vec::new();
    let mut checker = Checker::new(machine);
    let mut rng = Rng(seed);
    let (mut granted, mut refused) = (0, 0);
    // Phases of filling and emptying, so that full and empty are both seen.
    let mut fill = 5;
    for step in 0..operations {
        if step % 512 == 0 {
            fill = 2 + rng.below(6);
        }
        let request = random_request(&mut rng, machine.cpus, tasks);
        let at = format!("{machine:?} seed {seed} step {step} {request:?}");
        let choice = rng.below(10);
        if choice < fill || held.is_empty() {
            let wanted = checker.would_grant(request);
            let got: Vec<_> = all.iter().map(|a| a.reserve(request)).collect();
            assert!(got.iter().all(|g| g.is_ok() == wanted), "{at}: wanted {wanted}, got {got:?}");
            if wanted {
                checker.add(request);
                held.push((request, got.into_iter().flatten().collect()));
                granted += 1;
            } else {
                refused += 1;
            }
        } else if choice < 9 {
            let (old, reservations) = held.swap_remove(rng.below(held.len() as u32) as usize);
            assert!(checker.remove(old));
            drop(reservations);
        } else {
            let at_held = rng.below(held.len() as u32) as usize;
            let old = held[at_held].0;
            let to = Request { place: old.place, kind: request.kind };
            assert!(checker.remove(old));
            let wanted = checker.would_grant(to);
            checker.add(if wanted { to } else { old });
            let got: Vec<_> = held[at_held].1.iter_mut().map(|r| r.modify(to)).collect();
            assert!(got.iter().all(|g| g.is_ok() == wanted), "{at}: modify {old:?}: {got:?}");
            held[at_held].0 = if wanted { to } else { old };
        }
        // Some other question, so that wrong counts are seen before they matter.
        let question = random_request(&mut rng, machine.cpus, tasks);
        let used = checker.used(question);
        for (accounts, kind) in all.iter().zip(EngineKind::ALL) {
            assert_eq!(accounts.used(question), Ok(used), "{at}: {kind:?} on {question:?}");
        }
    }
    drop(held);
    assert!(all.iter().all(|a| !a.is_used()), "{machine:?} seed {seed}: something is left");
    (granted, refused)
}

#[test]
fn a_million_random_operations_have_the_same_answers() {
    let total = std::env::var("NANOPROBE_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64);
    println!("seed {seed}");
    let machines = [
        (1, Pools::Shared(4)),
        (2, Pools::Shared(4)),
        (3, Pools::Shared(2)),
        (4, Pools::Split { data: 4, instruction: 2 }),
        (5, Pools::Shared(1)),
        (8, Pools::Shared(6)),
    ];
    let each = total / machines.len() as u32 + 1;
    let (mut granted, mut refused) = (0, 0);
    for (n, (cpus, pools)) in machines.into_iter().enumerate() {
        let done = compare(Machine { cpus, pools }, 1 + n as u32, seed + n as u64, each);
        granted += done.0;
        refused += done.1;
    }
    println!("{} operations: {granted} granted, {refused} refused", each * machines.len() as u32);
    assert!(granted > total / 10 && refused > total / 50, "granted {granted} refused {refused}");
}

#[test]
fn threads_on_the_histogram_engine_never_overcommit_and_leave_exact_counts() {
    let seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64);
    let machine = Machine::x86_64(3);
    let accounts = Accounts::new(machine, EngineKind::Histogram);
    for round in 0..200 {
        let held: Vec<Vec<Reservation<'_>>> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4u64)
                .map(|n| {
                    let accounts = &accounts;
                    s.spawn(move || {
                        let mut rng = Rng(seed ^ (round << 8) ^ n);
                        let mut held: Vec<Reservation<'_>> = Vec::new();
                        for _ in 0..100 {
                            let request = random_request(&mut rng, 3, 3);
                            match rng.below(2) {
                                0 => held.extend(accounts.reserve(request)),
                                _ if held.is_empty() => {}
                                _ => drop(held.swap_remove(rng.below(held.len() as u32) as usize)),
                            }
                        }
                        held
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let mut checker = Checker::new(machine);
        held.iter().flatten().for_each(|r| checker.add(r.request()));
        assert_eq!(checker.overcommitted(), None, "seed {seed} round {round}: {:?}", checker.held());
        for place in [Place::Cpu(0), Place::Cpu(1), Place::Cpu(2), Place::Task(0), Place::TaskOnCpu(1, 2)] {
            let request = Request::data(place);
            assert_eq!(accounts.used(request), Ok(checker.used(request)), "seed {seed} round {round}");
        }
        drop(held);
        assert!(!accounts.is_used(), "seed {seed} round {round}");
    }
}
