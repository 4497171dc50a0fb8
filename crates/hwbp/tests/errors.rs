//! Each error, from each engine.

use hwbp::{Accounts, EngineKind, Kind, Machine, Place, Pools, Refused, Request};
use sys::Errno;

#[test]
fn what_the_machine_does_not_have_is_invalid() {
    for engine in EngineKind::ALL {
        let pools = Pools::Split { data: 2, instruction: 0 };
        let accounts = Accounts::new(Machine { cpus: 2, pools }, engine);
        let no_cpu = accounts.reserve(Request::data(Place::Cpu(2))).unwrap_err();
        assert_eq!(no_cpu, Refused::NoSuchCpu { cpu: 2, cpus: 2 });
        let kind = Kind::Instruction;
        let no_kind = accounts.reserve(Request { place: Place::Task(1), kind }).unwrap_err();
        assert_eq!((no_cpu.errno(), no_kind.errno()), (Errno::EINVAL, Errno::EINVAL));
    }
}

#[test]
fn a_modification_that_does_not_fit_leaves_the_old_in_place() {
    for engine in EngineKind::ALL {
        let pools = Pools::Split { data: 2, instruction: 1 };
        let accounts = Accounts::new(Machine { cpus: 3, pools }, engine);
        let place = Place::Task(1);
        let code = Request { place, kind: Kind::Instruction };
        let mut data = accounts.reserve(Request::data(place)).unwrap();
        let held = accounts.reserve(code).unwrap();
        assert!(matches!(data.modify(code), Err(Refused::NoSlot { .. })));
        assert_eq!((accounts.used(Request::data(place)), accounts.used(code)), (Ok(1), Ok(1)));
        drop(held);
        data.modify(code).unwrap();
        assert_eq!((accounts.used(Request::data(place)), accounts.used(code)), (Ok(0), Ok(1)));
        let elsewhere = data.modify(Request::data(Place::Cpu(0))).unwrap_err();
        assert_eq!(elsewhere.errno(), Errno::EINVAL);
        drop(data);
        assert!(!accounts.is_used());
    }
}

#[test]
fn who_must_not_wait_gets_and_gives_back_what_is_free() {
    for engine in EngineKind::ALL {
        let accounts = Accounts::new(Machine::x86_64(2), engine);
        let held = accounts.try_reserve(Request::data(Place::Task(1))).unwrap();
        assert!(held.try_release().is_ok());
        assert!(!accounts.is_used());
    }
}
